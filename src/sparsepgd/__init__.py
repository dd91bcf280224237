"""Measure and improve robustness to sparse perturbations: a few pixels, a row, a patch, a sticker, a watermark."""

from typing import TYPE_CHECKING, Any

from sparsepgd import errors
from sparsepgd.analysis.curves import SmallestK, accuracy_over_steps, smallest_k, steps_histogram
from sparsepgd.problem import Goal, Result, Targeted, Untargeted
from sparsepgd.problem.engine import Engine
from sparsepgd.runs.autoattack import AutoAttack
from sparsepgd.search import Attack, ClusterRS, SparseAnneal, SparseAutoAttack, SparsePGD, SparseRS
from sparsepgd.sources import Data, Source, load_data, load_model
from sparsepgd.threat import Budget, Columns, Features, Frame, Groups, Patches, Pattern, Pixels, Rows, Shape
from sparsepgd.training import train

if TYPE_CHECKING:
    from sparsepgd.evaluation import Evaluation, evaluate

__version__ = "0.2.0"

__all__ = [
    "Attack",
    "AutoAttack",
    "Budget",
    "ClusterRS",
    "Columns",
    "Data",
    "Engine",
    "Evaluation",
    "Features",
    "Frame",
    "Goal",
    "Groups",
    "Patches",
    "Pattern",
    "Pixels",
    "Result",
    "Rows",
    "Shape",
    "SmallestK",
    "Source",
    "SparseAnneal",
    "SparseAutoAttack",
    "SparsePGD",
    "SparseRS",
    "Targeted",
    "Untargeted",
    "accuracy_over_steps",
    "errors",
    "evaluate",
    "load_data",
    "load_model",
    "smallest_k",
    "steps_histogram",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports names that need pydantic or rich on first use."""
    if name in ("Evaluation", "evaluate"):
        from sparsepgd import evaluation

        return getattr(evaluation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
