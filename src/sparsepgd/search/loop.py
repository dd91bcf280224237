"""The one step under every attack: propose, evaluate, record, update; and the loop over it.

Images live in slots (table.py). The host looks at the device only every few steps; then finished images leave
and waiting ones take their place. Every decision in between is a tensor with one entry for each slot.
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
    """Images with all that is known of them before the search, one row each."""

    x: Tensor  # (B, C, H, W)
    y: Tensor  # (B,)
    label: Tensor  # (B,), the class the loss speaks of
    clean_loss: Tensor  # (B,)
    index: Tensor  # (B,), names the image to the random numbers
    row: Tensor  # (B,), the place in the result
    usable: Tensor | None  # (B, *grid) bool, groups with something to change; None: all


@dataclass(frozen=True, eq=False)
class Waiting(Known):
    """Images that are to be attacked, where the caller keeps them: a GPU need not hold them all."""

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
    """The images under attack, on the device, each with its box."""

    low: Tensor  # (B, C, H, W), the smallest value allowed
    high: Tensor  # (B, C, H, W), the largest

    @classmethod
    def entering(cls, waiting: Waiting, threat: Threat, quantize: bool) -> Images:
        """Waiting images on the device of the threat, with the box that they leave to the adversary."""
        now = each(lambda tensor: tensor.to(threat.kernel.device, non_blocking=True).contiguous(), waiting)
        known = {field.name: getattr(now, field.name) for field in fields(Known)}
        low, high = threat.box(now.x, now.allowed, quantize)
        return cls(**known, low=low, high=high)

    def clip(self, p: Tensor) -> Tensor:
        """The change p (B, C, H, W), so that the image stays in its box."""
        if (found := self._kernels(p)) is not None:
            clipped: Tensor = found.clip(p, self.x, self.low, self.high)
            return clipped
        return p.clamp((self.low - self.x).to(p.dtype), (self.high - self.x).to(p.dtype))

    def render(self, p: Tensor, mask: Tensor, quantize: bool) -> Tensor:
        """x + p where the mask is set, x itself elsewhere; inside the box, and on the 8-bit grid if asked for."""
        if (found := self._kernels(p)) is not None:
            rendered: Tensor = found.render(p, mask, self.x, self.low, self.high, LEVELS if quantize else 0)
            return rendered
        moved = self.x + p.to(self.x.dtype)
        if quantize:
            moved = (moved * LEVELS).round() / LEVELS
        return torch.where(mask > 0, moved.clamp(self.low, self.high), self.x)

    def _kernels(self, p: Tensor) -> Any:
        """Those for changes of these images; None: there are none."""
        fits = p.dtype == self.x.dtype == torch.float32 and p.shape == self.x.shape
        return kernels(p.device) if fits else None


@dataclass(frozen=True, eq=False)
class Aim:
    """How a proposed point is to be judged; left out, it counts, and the gradient is that of the attack's loss."""

    counts: Tensor | None = None  # (B,) bool, whether the point is within the budget, so that it may be kept
    along: Tensor | None = None  # (B,), the loss whose gradient is taken, see Oracle.evaluate


Keeps = Literal["first", "largest", "latest"]  # which of several successes: for "latest", the search promises that
# each is better than those before


@dataclass(frozen=True, eq=False)
class Best:
    x_adv: Tensor  # (B, C, H, W)
    loss: Tensor  # (B,)
    fooled: Tensor  # (B,) bool, as the search sees it
    step: Tensor  # (B,), when it was first fooled


@dataclass(frozen=True, eq=False)
class Slots(Generic[S]):
    images: Images
    state: S
    best: Best
    step: Tensor  # (B,), evaluations done


def run_whole_batch(search: Stepwise[S], oracle: Evaluator, threat: Threat, images: Images, noise: Noise) -> Best:
    """All evaluations of all images at once, unconfirmed; the host never looks. For training."""
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
    """One evaluation and one update of every slot, without a word to the host. The old best points are overwritten."""

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
        wins = wins & ~best.fooled if self.keeps == "first" else wins | seen.fooled if self.keeps == "latest" else wins
        wins = counts & wins
        first = seen.fooled & wins if self.keeps == "latest" else seen.fooled & wins & ~best.fooled
        record = Best(
            put(wins, x_adv, best.x_adv),
            torch.where(wins, seen.loss.to(best.loss.dtype), best.loss),
            best.fooled | first,
            torch.where(first, now.step, best.step),
        )
        state = search.update(self.threat, images, now.state, seen, now.step, self.noise)
        return Slots(images, state, record, now.step + 1)


def better(fooled: Tensor, worth: Tensor, other_fooled: Tensor, other_worth: Tensor, ties: bool = False) -> Tensor:
    """(B,) bool, whether a point is better than another one: a success beats a failure, among equals the larger worth
    wins, for most the loss. `ties`: as much is enough."""
    more = worth >= other_worth if ties else worth > other_worth
    return torch.where(fooled == other_fooled, more, fooled)
