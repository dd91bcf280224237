"""SparseAnneal: gradient ascent in short cycles that begin with many groups and end with k.

The pseudo-code and the results are in docs/anneal.md. A cycle changes the best point at random, ascends, and keeps the
point with the largest margin. If groups do not overlap (pixels, features, rows, columns, index sets), a cycle begins
with many groups and drops the weakest ones until k are left. Groups that overlap (patches, shapes) are moved instead
(moves.py). If groups are single points (pixels, features), some cycles are a local search: they change a few points at
random, without a gradient (random_search/clusters.py).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.checks import count
from sparsepgd.problem.goals import LOSSES, LossName
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import choose, put, renewed, select
from sparsepgd.search.loop import Aim, Images, Keeps
from sparsepgd.search.moves import column, largest, moved, placed
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search.clusters import Change, longest_side, numbers, varied
from sparsepgd.search.registry import registered
from sparsepgd.search.stepwise import Stepwise
from sparsepgd.threat import Threat


@dataclass(frozen=True)
class CycleSettings:
    """The settings of all cycles. A start is a cycle that begins at the clean image; sizes are shares of eps."""

    starts: int  # largest number of starts; after the first, each requires that the one before found the best point
    size: float  # first step of the first start
    growth: float  # factor from the first step of one start to that of the next
    span: float  # other cycles: the first step of the best start, times a random factor from 1 / span to span
    length: int  # steps of a cycle
    decay: float  # factor by which steps shrink in `length` steps
    late: int = 0  # number of the first cycle that is longer than others if the first start was the best one,
    late_length: int | None = None  # and its steps; None: `length`
    widths: tuple[float, float] = (1.0, 1.0)  # a cycle begins with so many times k groups, a start with the larger
    hold: float = 0.6  # share of the steps until k groups are left
    noise: float = 0.0  # largest uniform noise added to the best point
    barred: float = 0.0  # largest share of the groups that a cycle excludes
    local: float = 0.0  # probability of local search, if groups are single points
    ascents: int = 0  # number of the last cycle that is never a local search


# Chosen on held-out training images
ANNEALED = CycleSettings(
    starts=3, size=0.1, growth=2.5, span=1.5, length=10, decay=0.5, late=6, late_length=15, widths=(3.0, 40.0),
    noise=0.05, barred=0.2, local=0.3, ascents=20,
)  # fmt: skip
# For groups that overlap. Here `size` is a share of the range of the image, but at most MOST_OF_EPS times eps.
MOVED = CycleSettings(starts=1, size=0.2, growth=1.0, span=1.5, length=10, decay=0.2)
MOST_OF_EPS = 0.8

# The minimum-norm search for groups that do not overlap: to how many of them a cycle comes down
FIRST_LENGTH = 20  # steps of the first cycle,
FIRST_PART = 128  # which ends with all groups divided by this number
RISE = 4  # factor from one cycle to the next until there is a success
DEEPEST = 0.3  # afterwards, smallest share of the limit
FEW = 32  # after a success with a limit below this no cycle begins at the clean image; from it on, no local search


@dataclass(frozen=True, eq=False)
class Point:
    """The clean image changed by delta on the groups v, then clipped to its box.

    The clipped part stays in delta, within eps, so that it counts when groups are ranked.
    """

    delta: Tensor  # (B, C, H, W), 0 outside the groups
    v: Tensor  # (B, *grid), 0 or 1

    @property
    def count(self) -> Tensor:
        """(B,), the number of groups."""
        return self.v.flatten(1).sum(1)


@dataclass(frozen=True, eq=False)
class Cycle:
    """A cycle of each image: its settings and its current point."""

    number: Tensor  # (B,), from 0
    start: Tensor  # (B,) bool
    k: Tensor  # (B,), groups at its end
    length: Tensor  # (B,), steps
    width: Tensor  # (B,), begins with width * k groups
    size: Tensor  # (B,), first step
    noise: Tensor  # (B,), size of the noise added to the best point
    free: Tensor  # (B, *grid) bool, groups that are not excluded
    local: Tensor  # (B,) bool, local search instead of ascent,
    side: Tensor  # (B,), with squares of this side; 1: single points
    moves: Tensor  # (B,) bool, begins with the move of a group, if groups overlap
    t: Tensor  # (B,), steps done
    now: Point


@dataclass(frozen=True, eq=False)
class State:
    cycle: Cycle
    best: Point  # the one with the largest margin of all points with at most `limit` groups
    margin: Tensor  # (B,), of the best point; -inf: none so far, or it is a success and fewer groups are searched for
    size: Tensor  # (B,), first step of the best start: the one that found the best point
    limit: Tensor  # (B,), groups: those of the budget; in a minimum-norm search one fewer than the last success has
    proven: Tensor  # (B,), the limit after the last success that was confirmed in full precision


@registered()
@dataclass(frozen=True, eq=False)
class SparseAnneal(Stepwise[State]):
    """White box, for every budget. The only setting is ``steps``: the number of gradients for each image, in all cycles
    together. The first is that at the clean image. A run of at least one cycle is the beginning of every longer run, so
    more steps never hurt.

    ``early_stop=False`` is a minimum-norm search: after each success it looks for one with fewer groups. The last
    success is the result (`result.groups`). Points are compared by their margin; cycles ascend the margin, the DLR and
    the cross-entropy in turn.
    """

    name: ClassVar[str] = "anneal"
    minimum_norm: ClassVar[bool] = True

    steps: int = count(1000)
    _: KW_ONLY
    loss: LossName = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2:
            raise UnsupportedError(f"steps={self.steps}; the first is taken at the clean image: use at least 2")

    @property
    def evaluations(self) -> int:
        return self.steps

    @property
    def revision(self) -> int:
        return 8 if self.early_stop else 10

    @property
    def keeps(self) -> Keeps:
        return "largest" if self.early_stop else "latest"

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        settings, clean, limit = settings_for(threat), _clean(threat, images), self.budget.k
        k, length = limit, settings.length
        if not self.early_stop and not threat.overlapping:
            k, length = min(limit, math.ceil(math.prod(threat.grid) / FIRST_PART)), FIRST_LENGTH
        zero, real = torch.zeros_like(images.y), torch.zeros_like(images.clean_loss, dtype=torch.float32)
        cycle = Cycle(
            number=zero, start=zero == 0, k=zero + k, length=zero + min(length, self.steps - 1),
            width=real + max(settings.widths), size=real + settings.size, noise=real, free=clean.v == 0,
            local=zero > 0, side=zero, moves=zero > 0, t=zero, now=clean,
        )  # fmt: skip
        cycle = replace(cycle, now=self._narrowed(threat, images, cycle))
        return State(cycle, clean, real - torch.inf, cycle.size, zero + limit, zero + limit)

    def propose(self, threat: Threat, images: Images, state: State) -> Tensor:
        now = state.cycle.now
        return images.render(now.delta, threat.expand(now.v), self.quantize)

    def aim(self, state: State) -> Aim:
        return Aim(self._within(state), along=(state.cycle.number + 1) % len(LOSSES))

    def update(
        self, threat: Threat, images: Images, state: State, seen: Evaluation, step: Tensor, noise: Noise
    ) -> State:
        """One step of the cycle, or the beginning of the next one if the cycle is finished."""
        assert seen.gradient is not None
        g, within, finished = seen.gradient.float(), self._within(state), state.cycle.t >= state.cycle.length
        fooled, improved = within & seen.fooled, within & (seen.loss > state.margin)
        state = self._with_best(state, seen, improved)
        if not self.early_stop:
            finished = finished | (fooled & (state.cycle.now.count <= state.cycle.k))
            state = self._with_fewer(threat, images, state, fooled)
        moves = (improved & state.cycle.moves) <= fooled  # False: improved since a move, but not fooled

        def next_cycle(rows: Tensor | slice) -> Cycle:
            return self._next(threat, select(images, rows), select(state, rows), g[rows], moves[rows], noise)

        def variation(rows: Tensor | slice) -> Point:
            at = replace(state, cycle=cycle)
            return self._vary(threat, select(images, rows), select(at, rows), step[rows], noise)

        risen = self._ascend(threat, images, state, g, noise)
        cycle = renewed(finished, next_cycle, replace(state.cycle, t=state.cycle.t + 1, now=risen))
        now = self._narrowed(threat, images, cycle)
        if threat.pointwise and self.steps > ANNEALED.ascents * (ANNEALED.length + 1):
            now = renewed(cycle.local, variation, now)
        return replace(state, cycle=replace(cycle, now=now))

    def _within(self, state: State) -> Tensor:
        """(B,) bool: whether the current point is within the limit, and not the clean image."""
        count = state.cycle.now.count
        return (count > 0) & (count <= state.limit)

    def _with_best(self, state: State, seen: Evaluation, improved: Tensor) -> State:
        """With the current point as the best one where it `improved`, (B,) bool."""
        return replace(
            state,
            best=put(improved, state.cycle.now, state.best),
            margin=torch.where(improved, seen.loss.to(state.margin.dtype), state.margin),
            size=torch.where(improved & state.cycle.start, state.cycle.size, state.size),
        )

    def _next(self, threat: Threat, images: Images, state: State, g: Tensor, moves: Tensor, noise: Noise) -> Cycle:
        """The next cycle at its first point. `moves`: (B,) bool, whether one of the overlapping groups moves. None does
        if the last cycle moved one and the margin was still rising at its end: its values may not yet fit its place."""
        settings, number = settings_for(threat), state.cycle.number + 1
        narrow, wide = settings.widths
        start = state.cycle.start & (state.size == state.cycle.size) & (number < settings.starts)
        late = (state.size <= settings.size) & (number >= settings.late)  # no start any more
        draws = noise.uniform(Stream.PROPOSAL, images.index, number, (7,)).unbind(1)
        size = state.size * settings.span ** (2 * draws[1] - 1)
        cycle = Cycle(
            number,
            start,
            k=state.limit.clamp(min=1),
            length=torch.where(late, settings.late_length or settings.length, settings.length),
            width=torch.where(start, wide, narrow * (wide / narrow) ** draws[0]),
            size=torch.where(start, state.size * settings.growth, size),
            noise=settings.noise * draws[2],
            free=noise.uniform(Stream.MASK, images.index, number, threat.grid) >= column(settings.barred * draws[3]),
            local=(draws[5] < settings.local) & (number > settings.ascents) & (state.margin.abs() < torch.inf),
            side=torch.where(draws[6] < 0.5, longest_side(state.limit), 1),
            moves=moves,
            t=torch.zeros_like(number),
            now=state.cycle.now,
        )
        if not self.early_stop and not threat.overlapping:
            cycle = self._towards_fewer(state, cycle, draws[4])
        return replace(cycle, now=self._disturb(threat, images, state, cycle, g, noise))

    def _disturb(self, threat: Threat, images: Images, state: State, cycle: Cycle, g: Tensor, noise: Noise) -> Point:
        """The first point of a cycle."""
        best = state.best
        if threat.overlapping:
            v = best.v
            if not self.early_stop:  # the best point may have more groups than the limit allows
                v = v * threat.top_k(threat.gather(best.delta**2) * v, None, cycle.k, self.budget.k)
            point = Point(*moved(threat, images, best.delta, v, g, cycle.number, noise))
            point = choose(cycle.moves, point, best)
        else:
            spread = 2 * noise.uniform(Stream.MAGNITUDE, images.index, cycle.number, threat.shape) - 1
            delta = images.clip(best.delta) + self.budget.eps * column(cycle.noise) * spread
            point = Point(delta, best.v)
        clean = column(self._from_clean(state, cycle))
        return Point(*(torch.where(clean, 0.0, one) for one in (images.clip(point.delta), point.v)))

    def _ascend(self, threat: Threat, images: Images, state: State, g: Tensor, noise: Noise) -> Point:
        """One step along the gradient g. It also gives overlapping groups their first positions."""
        cycle, now = state.cycle, state.cycle.now
        settings = settings_for(threat)
        size = self.budget.eps * cycle.size * settings.decay ** (cycle.t / settings.length)
        delta = now.delta + column(size) * direction(threat, g)
        if not threat.overlapping:
            return Point(delta.clamp(-self.budget.eps, self.budget.eps), now.v)
        first = Point(*placed(threat, images, g, cycle.k, cycle.number, noise))
        return choose(now.count > 0, Point(images.clip(delta) * threat.expand(now.v), now.v), first)

    def _narrowed(self, threat: Threat, images: Images, cycle: Cycle) -> Point:
        """The current point on its strongest groups that are not excluded: from width * k of them at the beginning of a
        cycle to k. Groups that overlap are kept."""
        if threat.overlapping:
            return cycle.now
        settings = settings_for(threat)
        left = (1 - cycle.t / (settings.hold * cycle.length)).clamp(min=0)
        count = (cycle.k * cycle.width**left).round().long().clamp(max=math.prod(threat.grid))
        most = math.ceil(max(settings.widths) * self.budget.k)
        v = strongest(threat, images, cycle.now.delta, count, most, cycle.free)
        return Point(cycle.now.delta * threat.expand(v), v)

    def _vary(self, threat: Threat, images: Images, state: State, step: Tensor, noise: Noise) -> Point:
        """A random variation of the best point."""
        kept = Change(state.best.v > 0, images.clip(state.best.delta) * threat.expand(state.best.v))
        sizes = numbers(images, kept.mask)
        draws = torch.split(noise.uniform(Stream.VARIATION, images.index, step, (sum(sizes),)), list(sizes), 1)
        new = varied(self.budget, images, kept, draws, state.cycle.side, state.cycle.side == 1, state.limit)
        return Point(new.value, new.mask.float())

    # The minimum-norm search

    def _with_fewer(self, threat: Threat, images: Images, state: State, fooled: Tensor) -> State:
        """Where the current point is a success, `fooled` (B,) bool, it becomes the best one, and the limit is one group
        fewer than it changes."""
        now = state.cycle.now
        used = ((threat.gather(images.clip(now.delta).abs()) > 0) & (now.v > 0)).flatten(1).sum(1)
        return replace(
            state,
            best=put(fooled, now, state.best),
            margin=torch.where(fooled, -torch.inf, state.margin),
            limit=torch.where(fooled, used - 1, state.limit),
        )

    def judged(self, state: State, real: Tensor, denied: Tensor) -> State:
        """A denied success does not count: the limit is again that before it."""
        proven = torch.where(real, state.limit, state.proven)
        return replace(state, proven=proven, limit=torch.where(denied, proven, state.limit))

    def _towards_fewer(self, state: State, cycle: Cycle, draw: Tensor) -> Cycle:
        """The next cycle with the number of groups that it comes down to: before the first success more than in the
        last cycle, afterwards a random share of the limit. If the last cycle ended with a success and no start is due,
        the next one begins with its `limit` strongest groups, without noise. `draw`: (B,), uniform in (0, 1)."""
        success = state.limit < self.budget.k
        fewer = (state.limit * (DEEPEST + (1 - DEEPEST) * draw)).long().clamp(min=1)
        k = torch.where(success, fewer, (RISE * state.cycle.k).clamp(max=self.budget.k))
        onward = success & state.margin.isinf() & ~self._from_clean(state, cycle)
        return replace(
            cycle,
            k=k,
            width=torch.where(onward, state.limit / k, cycle.width),
            noise=torch.where(onward, 0, cycle.noise),
            free=cycle.free | column(onward),
            local=cycle.local & (state.limit < FEW),
        )

    def _from_clean(self, state: State, cycle: Cycle) -> Tensor:
        """(B,) bool: whether the cycle begins at the clean image. All starts do, but in a minimum-norm search only
        before the first success or with a limit of at least FEW."""
        return cycle.start if self.early_stop else cycle.start & ((state.limit == self.budget.k) | (state.limit >= FEW))


def settings_for(threat: Threat) -> CycleSettings:
    if not threat.overlapping:
        return ANNEALED
    return replace(MOVED, size=min(MOVED.size / threat.budget.eps, MOST_OF_EPS))


def _clean(threat: Threat, images: Images) -> Point:
    delta = torch.zeros_like(images.x, dtype=torch.float32)
    return Point(delta, delta.new_zeros(len(delta), *threat.grid))


def strongest(
    threat: Threat, images: Images, delta: Tensor, count: Tensor, most: int, free: Tensor | float = 1.0
) -> Tensor:
    """(B, *grid), 1 on the `count` (B,) groups with the largest product of delta and delta clipped, `most` at most.
    `free`: (B, *grid), 0 on groups that are excluded."""
    score = threat.gather(delta * images.clip(delta)) * free
    return threat.top_k(score, images.usable, count, most)


def direction(threat: Threat, g: Tensor) -> Tensor:
    """The gradient g (B, C, H, W), scaled so that the largest entry of the result is 1.

    Single points keep their gradient. In larger groups each entry has the sign of its gradient and the size of its
    group: the sum of absolute gradients. Index sets that share entries are treated like single points, because an
    entry has no group of its own.
    """
    shared = threat.tables is not None and threat.tables.holders.shape[1] > 1
    if threat.pointwise or shared:
        return g / largest(g)
    weight = threat.gather(g.abs())
    return g.sign() * threat.expand(weight / largest(weight))
