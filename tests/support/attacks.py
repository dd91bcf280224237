"""Every registered attack, short enough to run on every budget."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import sparsepgd as sp
from sparsepgd import options
from sparsepgd.errors import UnsupportedError
from sparsepgd.search import registry
from sparsepgd.search.contract import Attacker
from support.budgets import BUDGETS

NAMES = options.ATTACKS  # all registered attacks
STEPS, QUERIES = 12, 13  # unless SHORT has others
SHORT: dict[str, dict[str, Any]] = {
    "corner-search": {"best": 8, "samples": 2, "candidates": 40, "levels": 2},
    "cw-l0": {
        "steps": 6, "lr": 0.2, "c_first": 1, "c_last": 100, "c_factor": 10, "small": math.inf, "power": 1, "rounds": 8
    },
    "greedy-fool": {"steps": 20, "reductions": 10},
    "l1-apgd": {"steps": 6, "targets": 0},
    "loap": {"steps": 2, "restarts": 1},
    "one-pixel": {"population": 12, "generations": 4},
    "pgd0": {"restarts": 1, "targets": 0},
    "saif-binary": {"targets": 0},
    "saif-published": {"steps": 6, "targets": 0},
    "sigma-zero": {"steps": 6},
    "sparse-fool": {"steps": 3, "deepfool_steps": 4, "classes": 3},
}  # fmt: skip
MORE: list[tuple[str, dict[str, Any]]] = [  # further settings that change the algorithm
    ("spgd-unprojected", {"loss": "margin"}),
    ("sparse-rs", {"loss": "margin", "p_init": 0.3}),
    ("pgd0", {"steps": 2, "restarts": 2, "targets": 2}),
    ("saif-published", {"steps": 2, "targets": 2}),
    ("loap", {"steps": 3, "moves": "random", "restarts": 2}),
    ("saa", {"targeted": True}),
]


def short(name: str, budget: sp.Budget, **changes: Any) -> Attacker:
    """The attack of this name with few steps."""
    entry = registry.ENTRIES[name]
    made: Any = entry.kind.of_length(budget, STEPS, QUERIES, **entry.settings)
    return dataclasses.replace(made, **{**SHORT.get(name, {}), **changes})  # type: ignore[no-any-return]


def taken(name: str) -> list[sp.Budget]:
    """The budgets that an attack supports."""
    found = []
    for budget in BUDGETS:
        try:
            short(name, budget)
        except UnsupportedError:
            continue
        found.append(budget)
    return found


def variants(name: str) -> list[dict[str, Any]]:
    """Settings to test: none; the 8-bit grid, without early stop if the attack has one; those of MORE."""
    fields = {field.name for field in dataclasses.fields(registry.ENTRIES[name].kind)}
    other = {"quantize": True, **({"early_stop": False} if "early_stop" in fields else {})}
    return [{}, other, *(changes for known, changes in MORE if known == name)]
