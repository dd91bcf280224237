"""The one loop under every attack: propose, evaluate, record, update, let go of the finished, take in new ones.

Images live in slots. The host looks at the device only every few steps; then finished images leave and
waiting ones take their place. Every decision in between is a tensor with one entry for each slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.oracle import Evaluation, Oracle
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
        now: Waiting = _each(lambda tensor: tensor.to(threat.kernel.device, non_blocking=True), waiting)
        low, high = threat.box(now.x, now.allowed, quantize)
        return cls(now.x, now.y, now.label, now.clean_loss, now.index, now.row, low, high, now.usable)

    def render(self, p: Tensor, mask: Tensor, quantize: bool) -> Tensor:
        """x + p where the mask is set, x itself elsewhere; inside the box, and on the 8-bit grid if asked for."""
        moved = self.x + p.to(self.x.dtype)
        if quantize:
            moved = (moved * LEVELS).round() / LEVELS
        return torch.where(mask > 0, moved.clamp(self.low, self.high), self.x)


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
    def start(self, threat: Threat, images: Images, noise: Noise) -> S: ...
    def propose(self, threat: Threat, images: Images, state: S) -> Tensor: ...
    def update(self, threat: Threat, images: Images, state: S, seen: Evaluation, step: Tensor, noise: Noise) -> S: ...


@dataclass(frozen=True, eq=False)
class Slots(Generic[S]):
    """The images at work, one a row."""

    images: Images
    state: S
    best: Best
    step: Tensor  # (B,), evaluations done


def run(
    search: Search[S],
    oracle: Oracle,
    threat: Threat,
    waiting: Waiting,
    noise: Noise,
    slots: int,
    progress: Progress | None = None,
) -> Best:
    """Search for all images; at most `slots` of them are on the device's table at a time."""
    every = _steps_between_looks(threat.kernel.device)
    found = _nothing_found(waiting, search.evaluations)
    live = None
    total, left, fooled = len(waiting.x) * search.evaluations, len(waiting.x), 0
    while live is not None or len(waiting.x):
        room = slots - (len(live.step) if live is not None else 0)
        if room > 0 and len(waiting.x):
            entering = Images.entering(select(waiting, slice(0, room)), threat, search.quantize)
            fresh = _start(search, threat, entering, noise)
            waiting = select(waiting, slice(room, None))
            live = fresh if live is None else join(live, fresh)
        assert live is not None
        for _ in range(every):
            live = _step(search, oracle, threat, live, noise)
        live, done = _look(search, oracle, live, found)
        left -= len(done)
        fooled += int(done.sum())
        if progress is not None:
            under_way = int(live.step.sum()) if live is not None else 0
            progress(total - (left * search.evaluations - under_way), total, fooled)
    return found


def _steps_between_looks(device: torch.device) -> int:
    """A look stalls a device, but not a CPU."""
    return 1 if device.type == "cpu" else 10


def sweep(search: Search[S], oracle: Oracle, threat: Threat, images: Images, noise: Noise) -> Best:
    """All evaluations of all images at once, unconfirmed; the host never looks. For training."""
    live = _start(search, threat, images, noise)
    for _ in range(search.evaluations):
        live = _step(search, oracle, threat, live, noise, first_stays=search.early_stop)
    return live.best


def _nothing_found(images: Images | Waiting, evaluations: int) -> Best:
    step = torch.full_like(images.y, evaluations)
    return Best(images.x.clone(), images.clean_loss.clone(), torch.zeros_like(images.y, dtype=torch.bool), step)


def _start(search: Search[S], threat: Threat, images: Images, noise: Noise) -> Slots[S]:
    state = search.start(threat, images, noise)
    return Slots(images, state, _nothing_found(images, search.evaluations), torch.zeros_like(images.y))


def _step(
    search: Search[S], oracle: Oracle, threat: Threat, now: Slots[S], noise: Noise, first_stays: bool = False
) -> Slots[S]:
    """One evaluation and one update of every slot, without a word to the host."""
    images, best = now.images, now.best
    x_adv = search.propose(threat, images, now.state)
    seen = oracle.evaluate(x_adv, images.y, images.label, search.needs_gradient)
    first = seen.fooled & ~best.fooled
    improved = (seen.fooled == best.fooled) & (seen.loss > best.loss)  # a success beats a failure
    better = first | (improved & ~best.fooled if first_stays else improved)
    active = now.step < search.evaluations
    better, first = better & active, first & active
    record = Best(
        torch.where(better[:, None, None, None], x_adv, best.x_adv),
        torch.where(better, seen.loss.to(best.loss.dtype), best.loss),
        best.fooled | first,
        torch.where(first, now.step, best.step),
    )
    state = search.update(threat, images, now.state, seen, now.step, noise)
    return Slots(images, state, record, now.step + 1)


def _look(search: Search[S], oracle: Oracle, now: Slots[S], found: Best) -> tuple[Slots[S] | None, Tensor]:
    """Write finished images to their place; keep the rest. Returns whether each finished one was fooled.

    A success counts only if the model confirms it in full precision; otherwise the image goes on.
    """
    over = now.step >= search.evaluations
    claimed = now.best.fooled & (over | search.early_stop)
    rows = claimed.nonzero()[:, 0]
    if len(rows):
        images = now.images
        logits = oracle.answers(now.best.x_adv[rows], len(rows))
        real = oracle.goal.reached(logits, images.y[rows], images.label[rows])
        now.best.fooled[rows] = real
        now.best.step[rows] = torch.where(real, now.best.step[rows], search.evaluations)
    done = over | (now.best.fooled & search.early_stop)
    gone = done.nonzero()[:, 0]
    if not len(gone):
        return now, done[gone]
    place = now.images.row[gone].to(found.step.device)
    for into, of in zip(_tensors(found), _tensors(now.best), strict=True):
        into[place] = of[gone].to(into.device)
    left = (~done).nonzero()[:, 0]
    return (select(now, left) if len(left) else None), now.best.fooled[gone]


def _tensors(best: Best) -> tuple[Tensor, ...]:
    return best.x_adv, best.loss, best.fooled, best.step


D = TypeVar("D")


def select(rows: D, pick: Tensor | slice) -> D:
    """Some rows of a dataclass of tensors."""
    chosen: D = _each(lambda tensor: tensor[pick], rows)
    return chosen


def join(first: D, second: D) -> D:
    """The rows of two dataclasses of tensors, one after the other."""
    joined: D = _each(lambda a, b: torch.cat([a, b]), first, second)
    return joined


def _each(operation: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    if first is None:
        return None
    if isinstance(first, Tensor):
        return operation(first, *others)
    changes = {
        field.name: _each(operation, *(getattr(one, field.name) for one in (first, *others)))
        for field in dataclasses.fields(first)
    }
    return dataclasses.replace(first, **changes)
