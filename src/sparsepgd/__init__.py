"""Sparse adversarial attacks: a few pixels, a row, a patch, a sticker, a watermark, and how robust a model is."""

from sparsepgd import errors
from sparsepgd.evaluation.autoattack import AutoAttack
from sparsepgd.evaluation.curves import SmallestK, accuracy_over_steps, smallest_k, steps_histogram
from sparsepgd.problem import Goal, Result, Targeted, Untargeted
from sparsepgd.search import Attack, SparseAutoAttack, SparsePGD, SparseRS
from sparsepgd.threat import Budget, Columns, Features, Frame, Patches, Pattern, Pixels, Rows, Shape

__version__ = "0.1.0"

__all__ = [
    "Attack",
    "AutoAttack",
    "Budget",
    "Columns",
    "Features",
    "Frame",
    "Goal",
    "Patches",
    "Pattern",
    "Pixels",
    "Result",
    "Rows",
    "Shape",
    "SmallestK",
    "SparseAutoAttack",
    "SparsePGD",
    "SparseRS",
    "Targeted",
    "Untargeted",
    "accuracy_over_steps",
    "errors",
    "smallest_k",
    "steps_histogram",
]
