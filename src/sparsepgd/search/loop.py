"""The one step under every attack: propose, evaluate, record, update; and the loop over it.

Images live in slots (table.py). The host looks at the device only every few steps; then finished images leave
and waiting ones take their place. Every decision in between is a tensor with one entry for each slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.oracle import Evaluation, Oracle
from sparsepgd.problem.rows import each
from sparsepgd.search.noise import Noise
from sparsepgd.threat import LEVELS, Threat

Progress = Callable[[int, int, int], None]  # evaluations done, evaluations at most, images fooled
S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Waiting:
    """Images that are to be attacked, one row each, where the caller keeps them: a GPU need not hold them all."""

    x: Tensor  # (B, C, H, W)
    y: Tensor  # (B,)
    label: Tensor  # (B,), the class the loss speaks of
    clean_loss: Tensor  # (B,)
    index: Tensor  # (B,), names the image to the random numbers
    row: Tensor  # (B,), the place in what was found
    allowed: Tensor | None  # (B, 1, H, W) bool, pixels that may change; None: all
    usable: Tensor | None  # (B, *grid) bool, groups with something to change; None: all


@dataclass(frozen=True, eq=False)
class Images:
    """The images under attack, on the device, with all that is fixed for them."""

    x: Tensor  # (B, C, H, W)
    y: Tensor  # (B,)
    label: Tensor  # (B,), the class the loss speaks of
    clean_loss: Tensor  # (B,)
    index: Tensor  # (B,), names the image to the random numbers
    row: Tensor  # (B,), the place in the result
    low: Tensor  # (B, C, H, W), the smallest value allowed
    high: Tensor  # (B, C, H, W), the largest
    usable: Tensor | None  # (B, *grid) bool, groups with something to change; None: all

    @classmethod
    def entering(cls, waiting: Waiting, threat: Threat, quantize: bool) -> Images:
        """Waiting images on the device of the threat, with the box and the groups they leave to the adversary."""
        now: Waiting = each(lambda tensor: tensor.to(threat.kernel.device, non_blocking=True).contiguous(), waiting)
        low, high = threat.box(now.x, now.allowed, quantize)
        return cls(now.x, now.y, now.label, now.clean_loss, now.index, now.row, low, high, now.usable)

    def clip(self, p: Tensor) -> Tensor:
        """The change p (B, C, H, W), so that the image stays in its box."""
        return p.clamp((self.low - self.x).to(p.dtype), (self.high - self.x).to(p.dtype))

    def render(self, p: Tensor, mask: Tensor, quantize: bool) -> Tensor:
        """x + p where the mask is set, x itself elsewhere; inside the box, and on the 8-bit grid if asked for."""
        moved = self.x + p.to(self.x.dtype)
        if quantize:
            moved = (moved * LEVELS).round() / LEVELS
        return torch.where(mask > 0, moved.clamp(self.low, self.high), self.x)


@dataclass(frozen=True, eq=False)
class Aim:
    """How a proposed point is to be judged; left out, it counts, and the gradient is that of the attack's loss."""

    counts: Tensor | None = None  # (B,) bool, whether the point is within the budget, so that it may be kept
    along: Tensor | None = None  # (B,), the loss whose gradient is taken, see Oracle.evaluate


Keeps = Literal["first", "largest", "latest"]  # which of several successes: for "latest", the search promises that
# each is better than those before


@dataclass(frozen=True, eq=False)
class Best:
    """The best point of each image so far."""

    x_adv: Tensor  # (B, C, H, W)
    loss: Tensor  # (B,)
    fooled: Tensor  # (B,) bool, as the search sees it
    step: Tensor  # (B,), when it was first fooled


class Search(Protocol[S]):
    """What the loop asks of an attack; its state S is a dataclass of tensors with one row an image."""

    needs_gradient: ClassVar[bool]

    @property
    def evaluations(self) -> int: ...
    @property
    def early_stop(self) -> bool: ...
    @property
    def quantize(self) -> bool: ...
    @property
    def keeps(self) -> Keeps: ...
    def start(self, threat: Threat, images: Images, noise: Noise) -> S: ...
    def propose(self, threat: Threat, images: Images, state: S) -> Tensor: ...
    def aim(self, state: S) -> Aim: ...
    def update(self, threat: Threat, images: Images, state: S, seen: Evaluation, step: Tensor, noise: Noise) -> S: ...


@dataclass(frozen=True, eq=False)
class Slots(Generic[S]):
    """The images at work, one a row."""

    images: Images
    state: S
    best: Best
    step: Tensor  # (B,), evaluations done


def sweep(search: Search[S], oracle: Oracle, threat: Threat, images: Images, noise: Noise) -> Best:
    """All evaluations of all images at once, unconfirmed; the host never looks. For training."""
    step = Step(search, oracle, threat, noise, "first" if search.early_stop else search.keeps)
    live = start(search, threat, images, noise)
    for _ in range(search.evaluations):
        live = step(live)
    return live.best


def nothing_found(images: Images | Waiting, evaluations: int) -> Best:
    step = torch.full_like(images.y, evaluations)
    return Best(images.x.clone(), images.clean_loss.clone(), torch.zeros_like(images.y, dtype=torch.bool), step)


def start(search: Search[S], threat: Threat, images: Images, noise: Noise) -> Slots[S]:
    state = search.start(threat, images, noise)
    return Slots(images, state, nothing_found(images, search.evaluations), torch.zeros_like(images.y))


@dataclass(frozen=True, eq=False)
class Step(Generic[S]):
    """One evaluation and one update of every slot, without a word to the host."""

    search: Search[S]
    oracle: Oracle
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
        better = counts & self._better(seen, best)
        first = seen.fooled & better & (~best.fooled | (self.keeps == "latest"))
        record = Best(
            torch.where(better[:, None, None, None], x_adv, best.x_adv),
            torch.where(better, seen.loss.to(best.loss.dtype), best.loss),
            best.fooled | first,
            torch.where(first, now.step, best.step),
        )
        state = search.update(self.threat, images, now.state, seen, now.step, self.noise)
        return Slots(images, state, record, now.step + 1)

    def _better(self, seen: Evaluation, best: Best) -> Tensor:
        """(B,) bool: a success beats a failure, of two failures the larger loss is better, of two successes as told."""
        larger = seen.loss > best.loss
        if self.keeps == "first":
            return ~best.fooled & (seen.fooled | larger)
        if self.keeps == "latest":
            return seen.fooled | (~best.fooled & larger)
        return torch.where(seen.fooled == best.fooled, larger, seen.fooled)
