"""Sparse adversarial attacks: a few pixels, a row, a patch, a sticker, a watermark, and how robust a model is."""

from sparsepgd import errors
from sparsepgd.problem import Goal, Result, Targeted, Untargeted
from sparsepgd.search import Attack, SparsePGD, SparseRS
from sparsepgd.threat import Budget, Columns, Features, Frame, Patches, Pattern, Pixels, Rows, Shape

__version__ = "0.1.0"

__all__ = [
    "Attack",
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
    "SparsePGD",
    "SparseRS",
    "Targeted",
    "Untargeted",
    "errors",
]
