"""Shared by all adapters of our attacks: other ranges of values, targets, and unchanged pixels that stay exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsepgd.problem import Targeted
from sparsepgd.problem.oracle import Model
from sparsepgd.problem.shapes import View
from sparsepgd.search.contract import Attacker

Map = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Range:
    """Conversion between a range of values, such as [0, 255], and [0, 1]."""

    low: float = 0.0
    high: float = 1.0

    def unit(self, x: Tensor) -> Tensor:
        return (x - self.low) / (self.high - self.low)

    def back(self, x: Tensor) -> Tensor:
        return x * (self.high - self.low) + self.low

    @property
    def maps(self) -> dict[str, Map]:
        """Arguments for `attacked`; {} if the range is [0, 1] already."""
        return {} if self == Range() else {"unit": self.unit, "back": self.back}


def attacked(
    attack: Attacker,
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    target: Tensor | int | None = None,
    unit: Map | None = None,
    back: Map | None = None,
    **options: Any,
) -> Tensor:
    """x_adv, in the range of x. Unchanged pixels are equal to those of x bit for bit, also after conversions.

    `y`: true labels; if there is a target and they are unknown, pass `unknown(target)`.
    `unit`, `back`: convert the values of x to [0, 1] and back, if x has another range.
    """
    goal = None if target is None else Targeted(target)
    if unit is None or back is None:
        return attack(model, x, y, goal=goal, **options).x_adv
    inside = unit(x).clamp(0, 1)  # round-off may leave [0, 1]
    found = attack(View(lambda point: model(back(point)), model), inside, y, goal=goal, **options).x_adv
    return torch.where(found != inside, back(found), x)


def unknown(target: Tensor) -> Tensor:
    """Labels (B,) for images of which only the target is known: some class that is not the target."""
    return (target == 0).to(target.dtype)
