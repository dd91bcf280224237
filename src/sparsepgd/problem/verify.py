"""The verifier, and the result of every attack. It trusts no attack and shares no code with one.

From the clean images, the images that an attack returned and the budget, it decides for each image whether it is within
the budget, and whether the model, evaluated again in full precision, predicts what the adversary wants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsepgd.errors import BudgetError, counted
from sparsepgd.problem import notebook
from sparsepgd.problem.oracle import Oracle
from sparsepgd.threat import LEVELS, Budget
from sparsepgd.threat.norms import group_l0


@dataclass(frozen=True, eq=False)
class Result:
    """One row per image, in the order of the input. ``fooled`` is verified: ``x_adv`` is within the budget, and a new
    forward pass in full precision confirms the success."""

    x_adv: Tensor  # (B, C, H, W); untouched pixels are bit for bit those of x
    fooled: Tensor  # (B,) bool
    clean_correct: Tensor  # (B,) bool; False: not robust, and with an untargeted goal not attacked
    l0: Tensor  # (B,) int64, changed pixels
    groups: Tensor  # (B,) int64, the fewest groups of the pattern that cover them
    steps: Tensor  # (B,) int64, updates until success, or all of them
    forwards: Tensor  # (B,) int64, forward passes of the search on this image, until success
    backwards: Tensor  # (B,) int64
    loss: Tensor  # (B,), of x_adv, as measured by the attack; NaN if the image was not attacked
    clean_prediction: Tensor  # (B,) int64
    prediction: Tensor  # (B,) int64, on x_adv
    broken_by: tuple[str | None, ...]  # the attack that fooled the model, for each image

    def __len__(self) -> int:
        return len(self.fooled)

    @property
    def clean_accuracy(self) -> float:
        return float(self.clean_correct.double().mean()) if len(self) else math.nan

    @property
    def robust(self) -> Tensor:
        """(B,) bool: classified correctly when clean, and not fooled."""
        return self.clean_correct & ~self.fooled

    @property
    def robust_accuracy(self) -> float:
        return float(self.robust.double().mean()) if len(self) else math.nan

    def __repr__(self) -> str:
        return (
            f"Result({counted(len(self), 'images')}, clean {self.clean_accuracy:.1%}, "
            f"robust {self.robust_accuracy:.1%}, {int(self.fooled.sum())} fooled)"
        )

    def _repr_html_(self) -> str:
        return notebook.of_result(self)


def untouched(x: Tensor, y: Tensor, clean: Tensor) -> Result:
    """The result before any attack: the clean images and their predictions. `clean`: logits (B, classes)."""
    prediction, zero, loss = clean.argmax(1), torch.zeros_like(y), clean.new_full(y.shape, math.nan)
    return Result(
        x.clone(), zero > 0, prediction == y, zero, zero, zero, zero, zero, loss, prediction, prediction,
        broken_by=(None,) * len(y),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Extent:
    within: Tensor  # (B,) bool: budget, range, eps, allowed pixels and, with `quantize`, the 8-bit grid
    l0: Tensor  # (B,) int64, changed pixels
    groups: Tensor  # (B,) int64, Omega_0


@dataclass(frozen=True, eq=False)
class Verdict(Extent):
    reached: Tensor  # (B,) bool: within, and the goal is reached
    prediction: Tensor  # (B,) int64


def measure(budget: Budget, x: Tensor, x_adv: Tensor, *, quantize: bool = False) -> Extent:
    """Compare ``x_adv`` (B, C, H, W) with ``x``. A pixel counts as changed if any of its values differs."""
    changed = x_adv != x  # NaN counts as changed
    pixels = changed.any(1)
    groups, coverable = _groups(changed, budget)
    within = coverable & (groups <= budget.k)
    within &= _values_ok(x, x_adv, changed, budget, quantize)
    if budget.allowed is not None:
        within &= ~(pixels & ~budget.allowed.to(x.device)).flatten(1).any(1)
    return Extent(within, pixels.flatten(1).sum(1), groups)


def verify(
    oracle: Oracle,
    budget: Budget,
    x: Tensor,
    x_adv: Tensor,
    y: Tensor,
    label: Tensor,
    *,
    quantize: bool = False,
    batch_size: int = 64,
) -> Verdict:
    extent = measure(budget, x, x_adv, quantize=quantize)
    logits = oracle.answers(x_adv, batch_size)
    reached = extent.within & oracle.goal.reached(logits, y, label)
    return Verdict(extent.within, extent.l0, extent.groups, reached, logits.argmax(1))


def _groups(changed: Tensor, budget: Budget) -> tuple[Tensor, Tensor]:
    """The exact group norm of each image, and whether groups can cover its changes."""
    try:
        return group_l0(changed, budget.pattern).to(changed.device), changed.new_ones(len(changed))
    except BudgetError:
        counts, coverable = [], []
        for row in changed:
            try:
                counts.append(group_l0(row[None], budget.pattern))
                coverable.append(True)
            except BudgetError:
                counts.append(torch.full((1,), -1))
                coverable.append(False)
        return torch.cat(counts).to(changed.device), torch.tensor(coverable, device=changed.device)


def _values_ok(x: Tensor, x_adv: Tensor, changed: Tensor, budget: Budget, quantize: bool) -> Tensor:
    """(B,) bool: all changed values are in [0, 1], within eps of x and, with `quantize`, on the 8-bit grid."""
    before, after = x.double(), x_adv.double()
    if quantize:
        level = (after * LEVELS).round()
        on_grid = (level / LEVELS).to(x.dtype) == x_adv
        near = (level - (before * LEVELS).round()).abs() <= LEVELS * budget.eps + 1e-6
        fine = on_grid & near & (level >= 0) & (level <= LEVELS)
    else:
        near = ((after - before).abs() <= budget.eps) | (budget.eps >= 1)
        fine = (after >= 0) & (after <= 1) & near
    return (fine | ~changed).flatten(1).all(1)
