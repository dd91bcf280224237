"""What the adversary may do: patterns, budgets and the norms that measure them."""

from sparsepgd.threat.budget import LEVELS, Budget, Threat
from sparsepgd.threat.groups import Groups
from sparsepgd.threat.patterns import Columns, Features, Frame, Patches, Pattern, Pixels, Rows, Shape

__all__ = [
    "LEVELS",
    "Budget",
    "Columns",
    "Features",
    "Frame",
    "Groups",
    "Patches",
    "Pattern",
    "Pixels",
    "Rows",
    "Shape",
    "Threat",
]
