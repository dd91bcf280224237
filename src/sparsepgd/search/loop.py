"""The step of every attack: propose, evaluate, record, update.

Images are held in slots (table.py). The host synchronises with the device only every few steps; then finished images
leave and waiting images enter. In between, every decision is a tensor with one entry per slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from sparsepgd.kernels import kernels
from sparsepgd.problem.oracle import Evaluator
from sparsepgd.problem.rows import each, put
from sparsepgd.search.noise import Noise
from sparsepgd.threat import LEVELS, Threat

if TYPE_CHECKING:
    from sparsepgd.search.stepwise import Stepwise

Progress = Callable[[int, int, int], None]  # evaluations done, evaluations at most, images fooled
S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Known:
    """Images and what is known about them before the search, one row per image."""

    x: Tensor  # (B, C, H, W)
    y: Tensor  # (B,)
    label: Tensor  # (B,), the class that the loss refers to
    clean_loss: Tensor  # (B,)
    index: Tensor  # (B,), key of the random numbers of the image
    row: Tensor  # (B,), row in the result
    usable: Tensor | None  # (B, *grid) bool, groups with pixels that may change; None: all


@dataclass(frozen=True, eq=False)
class Waiting(Known):
    """Images that wait for a slot, on the device of the caller: a GPU need not hold all of them."""

    allowed: Tensor | None  # (B, 1, H, W) bool, pixels that may change; None: all

    @classmethod
    def of(
        cls, threat: Threat, x: Tensor, y: Tensor, *, clean_loss: Tensor, index: Tensor, label: Tensor | None = None
    ) -> Waiting:
        allowed, usable = threat.masks(len(x), x.device) or (None, None)
        place = torch.arange(len(x), device=x.device)
        return cls(x, y, y if label is None else label, clean_loss, index, place, usable, allowed)


@dataclass(frozen=True, eq=False)
class Images(Known):
    """Images under attack, on the device of the search, with their box: the range of allowed values."""

    low: Tensor  # (B, C, H, W), the smallest value allowed
    high: Tensor  # (B, C, H, W), the largest

    @classmethod
    def entering(cls, waiting: Waiting, threat: Threat, quantize: bool) -> Images:
        """Waiting images, moved to the device of the threat, with their box."""
        now = each(lambda tensor: tensor.to(threat.kernel.device, non_blocking=True).contiguous(), waiting)
        known = {field.name: getattr(now, field.name) for field in fields(Known)}
        low, high = threat.box(now.x, now.allowed, quantize)
        return cls(**known, low=low, high=high)

    def clip(self, p: Tensor) -> Tensor:
        """The perturbation p (B, C, H, W), clipped so that x + p is within the box."""
        if (found := self._kernels(p)) is not None:
            clipped: Tensor = found.clip(p, self.x, self.low, self.high)
            return clipped
        return p.clamp((self.low - self.x).to(p.dtype), (self.high - self.x).to(p.dtype))

    def render(self, p: Tensor, mask: Tensor, quantize: bool) -> Tensor:
        """x + p where the mask is set, x elsewhere; within the box and, with `quantize`, on the 8-bit grid."""
        if (found := self._kernels(p)) is not None:
            rendered: Tensor = found.render(p, mask, self.x, self.low, self.high, LEVELS if quantize else 0)
            return rendered
        moved = self.x + p.to(self.x.dtype)
        if quantize:
            moved = (moved * LEVELS).round() / LEVELS
        return torch.where(mask > 0, moved.clamp(self.low, self.high), self.x)

    def _kernels(self, p: Tensor) -> Any:
        """The GPU kernels, if they support p; otherwise None."""
        fits = p.dtype == self.x.dtype == torch.float32 and p.shape == self.x.shape
        return kernels(p.device) if fits else None


@dataclass(frozen=True, eq=False)
class Aim:
    """How a proposed point is evaluated. By default it counts, and the gradient is that of the attack's loss."""

    counts: Tensor | None = None  # (B,) bool, whether the point is within the budget and may be kept
    along: Tensor | None = None  # (B,), index in LOSSES of the loss whose gradient is taken


# Which of several successes on an image is kept. With "latest", each one must be better than those before it.
Keeps = Literal["first", "largest", "latest"]


@dataclass(frozen=True, eq=False)
class Best:
    x_adv: Tensor  # (B, C, H, W)
    loss: Tensor  # (B,)
    fooled: Tensor  # (B,) bool, in the precision of the search
    step: Tensor  # (B,), evaluations before the first success, or before the last one with "latest"


@dataclass(frozen=True, eq=False)
class Slots(Generic[S]):
    """A batch, one row per slot."""

    images: Images
    state: S
    best: Best
    step: Tensor  # (B,), evaluations done


def run_whole_batch(search: Stepwise[S], oracle: Evaluator, threat: Threat, images: Images, noise: Noise) -> Best:
    """All evaluations of one batch, without synchronisation with the host and without confirmation. For training."""
    step = Step(search, oracle, threat, noise, "first" if search.early_stop else search.keeps)
    live = start(search, threat, images, noise)
    for _ in range(search.evaluations):
        live = step(live)
    return live.best


def no_success(images: Known, evaluations: int) -> Best:
    step = torch.full_like(images.y, evaluations)
    return Best(images.x.clone(), images.clean_loss.clone(), torch.zeros_like(images.y, dtype=torch.bool), step)


def start(search: Stepwise[S], threat: Threat, images: Images, noise: Noise) -> Slots[S]:
    state = search.start(threat, images, noise)
    return Slots(images, state, no_success(images, search.evaluations), torch.zeros_like(images.y))


@dataclass(frozen=True, eq=False)
class Step(Generic[S]):
    """One evaluation and one update of every slot, without synchronisation with the host. The previous best points are
    overwritten."""

    search: Stepwise[S]
    oracle: Evaluator
    threat: Threat
    noise: Noise
    keeps: Keeps

    def __call__(self, now: Slots[S]) -> Slots[S]:
        search, images, best = self.search, now.images, now.best
        x_adv, aim = search.propose(self.threat, images, now.state), search.aim(now.state)
        seen = self.oracle.evaluate(x_adv, images.y, images.label, search.needs_gradient, aim.along)
        counts = now.step < search.evaluations
        if aim.counts is not None:
            counts = counts & aim.counts
        wins = better(seen.fooled, seen.loss, best.fooled, best.loss)
        if self.keeps == "first":
            wins = wins & ~best.fooled
        elif self.keeps == "latest":
            wins = wins | seen.fooled
        wins = counts & wins
        success = seen.fooled & wins
        if self.keeps != "latest":
            success = success & ~best.fooled
        record = Best(
            put(wins, x_adv, best.x_adv),
            torch.where(wins, seen.loss.to(best.loss.dtype), best.loss),
            best.fooled | success,
            torch.where(success, now.step, best.step),
        )
        state = search.update(self.threat, images, now.state, seen, now.step, self.noise)
        return Slots(images, state, record, now.step + 1)


def better(fooled: Tensor, worth: Tensor, other_fooled: Tensor, other_worth: Tensor, ties: bool = False) -> Tensor:
    """(B,) bool, whether a point is better than another one: a success beats a failure; otherwise the larger worth,
    usually the loss, wins. `ties`: whether an equal worth is enough."""
    more = worth >= other_worth if ties else worth > other_worth
    return torch.where(fooled == other_fooled, more, fooled)
