"""What a baseline cannot do is refused with a word on what can."""

from __future__ import annotations

from sparsepgd.errors import UnsupportedError
from sparsepgd.threat import Budget, Pattern


def check_pattern(attack: str, budget: Budget, *patterns: type[Pattern]) -> None:
    """The budget must be of one of the patterns that the attack knows."""
    if not isinstance(budget.pattern, patterns):
        known = " or ".join(pattern.__name__ for pattern in patterns)
        raise UnsupportedError(
            f"{attack} takes a budget of {known}, not {budget.pattern!r}; for this one use SparsePGD(budget) "
            "or SparseRS(budget), which take every pattern"
        )
