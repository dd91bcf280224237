"""The search for adversarial images: the shared loop and the attacks."""

from sparsepgd.search.anneal import SparseAnneal
from sparsepgd.search.attack import Attack
from sparsepgd.search.ensemble import SparseAutoAttack
from sparsepgd.search.random_search.cluster_rs import ClusterRS
from sparsepgd.search.random_search.sparse_rs import SparseRS
from sparsepgd.search.spgd import SparsePGD

__all__ = ["Attack", "ClusterRS", "SparseAnneal", "SparseAutoAttack", "SparsePGD", "SparseRS"]
