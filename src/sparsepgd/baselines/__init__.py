"""Published attacks by other authors, one file each, with the same interface as all attacks here."""

from sparsepgd.baselines.corner_search import CornerSearch
from sparsepgd.baselines.cw_l0 import CWL0
from sparsepgd.baselines.greedy_fool import GreedyFool
from sparsepgd.baselines.l1_apgd import L1APGD
from sparsepgd.baselines.loap import LOAP
from sparsepgd.baselines.one_pixel import OnePixel
from sparsepgd.baselines.pgd0 import PGD0
from sparsepgd.baselines.saif import SAIF
from sparsepgd.baselines.sigma_zero import SigmaZero
from sparsepgd.baselines.sparse_fool import SparseFool

__all__ = [
    "CWL0",
    "L1APGD",
    "LOAP",
    "PGD0",
    "SAIF",
    "CornerSearch",
    "GreedyFool",
    "OnePixel",
    "SigmaZero",
    "SparseFool",
]
