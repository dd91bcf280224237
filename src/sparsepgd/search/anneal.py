"""SparseAnneal: ascent with many groups and small changes that shrinks to k groups, over and over from the best point.

Pseudo-code and figures are in docs/anneal.md. A cycle disturbs the best point, ascends, and keeps what has the larger
margin. Groups that do not overlap (pixels, features, rows, columns, index sets) are disturbed by letting many more of
them change at first; groups that overlap (patches, shapes) by moving one of them (moves.py). Where groups are single
points (pixels, features), some cycles are a local search instead: random variations (random_search/clusters.py).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.checks import check_counts
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
    """How cycles are made; the values were chosen on held-out training images."""

    starts: int  # cycles that begin at the clean image, at most: there is a next one if the last found the best point
    size: float  # the first step of the first of them, as a share of eps,
    growth: float  # and by how much that of each further one is larger
    span: float  # later first steps: that of the start which found the best point, times 1 / span to span
    length: int  # steps of a cycle
    decay: float  # a step after so many, as a share of the first
    longer: int | None = None  # steps of later cycles where the smallest first step is the best; None: as of others,
    late: int = 0  # and how many cycles come before the first of them
    widths: tuple[float, float] = (1.0, 1.0)  # a cycle begins with so many times k groups; the larger for starts
    hold: float = 0.6  # the share of its steps after which it has come down to k groups
    noise: float = 0.0  # the largest uniform noise that is added to the best point
    barred: float = 0.0  # the largest share of the groups that a cycle may not use
    local: float = 0.0  # the share of the cycles that search around the best point, if groups are single points,
    ascents: int = 0  # and how many cycles come before the first of them


ANNEALED = CycleSettings(
    starts=3,
    size=0.1,
    growth=2.5,
    span=1.5,
    length=10,
    decay=0.5,
    longer=15,
    late=6,
    widths=(3.0, 40.0),
    noise=0.05,
    barred=0.2,
    local=0.3,
    ascents=20,
)
MOVED = CycleSettings(starts=1, size=0.2, growth=1.0, span=1.5, length=10, decay=0.2)  # of groups that overlap
FURTHEST = 0.8  # their first step, as a share of eps, where eps is small: otherwise it is the share `size` of 1
FIRST = 20  # steps of the first cycle of a minimum-norm search
PART = 128  # it comes down to this part of all groups,
RISE = 4  # each later one to so many times as many as the one before, until there is a success,
DEEPEST = 0.3  # and then to a share of the fewest so far: from this share on, drawn evenly
# With fewer groups than this a minimum-norm search does not begin at the clean image again; with as many or more it has
# no local search, which replaces few at a time.
FEW = 32


@dataclass(frozen=True, eq=False)
class Point:
    """The clean image, changed by delta on the groups v, and then clipped to the range of images.

    What is clipped stays in delta, within eps: it shows how far the steps would have gone, and groups are ranked by it.
    """

    delta: Tensor  # (B, C, H, W), 0 outside the groups
    v: Tensor  # (B, *grid), 0 or 1


@dataclass(frozen=True, eq=False)
class Cycle:
    """The settings of a cycle, and how far it is."""

    number: Tensor  # (B,)
    start: Tensor  # (B,) bool, whether it tries one of the first steps
    k: Tensor  # (B,), groups that it comes down to
    t: Tensor  # (B,), steps done
    length: Tensor  # (B,), steps in all
    width: Tensor  # (B,), it begins with width * k groups
    size: Tensor  # (B,), of its first step
    noise: Tensor  # (B,), added to the best point
    free: Tensor  # (B, *grid) bool, groups that it may use
    local: Tensor  # (B,) bool, whether it is a local search: random variations of the best point instead of ascent,
    side: Tensor  # (B,), and the side of the squares that it tries, 1: single points


@dataclass(frozen=True, eq=False)
class Path:
    cycle: Cycle
    now: Point


@dataclass(frozen=True, eq=False)
class State:
    now: Point
    count: Tensor  # (B,), its groups
    best: Point  # of all points within the limit, the one with the largest margin
    margin: Tensor  # (B,), of it; -inf: there is none yet
    size: Tensor  # (B,), the first step of the start that found the best point
    limit: Tensor  # (B,), groups: those of the budget; in a minimum-norm search one fewer than the last success has
    proven: Tensor  # (B,), the limit after the last success that full precision confirmed
    cycle: Cycle


@registered()
@dataclass(frozen=True, eq=False)
class SparseAnneal(Stepwise[State]):
    """White box, for every budget. There is nothing to set but ``steps``: how many gradients are taken for each image,
    in all cycles together, the first of them at the clean image. A run of at least one cycle is the beginning of
    every longer run, so more steps never hurt.

    ``early_stop=False`` is a minimum-norm search: after each success it goes on with fewer, and the last success is
    the result (`result.groups`). Points are compared by their margin; cycles ascend the margin, the DLR and the
    cross-entropy in turn.
    """

    name: ClassVar[str] = "anneal"
    minimum_norm: ClassVar[bool] = True

    steps: int = 1000
    _: KW_ONLY
    loss: LossName = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps)
        if self.steps < 2:
            raise UnsupportedError(f"steps={self.steps}; the first is taken at the clean image: use at least 2")

    @property
    def evaluations(self) -> int:
        return self.steps

    @property
    def revision(self) -> int:
        return 7 if self.early_stop else 9

    @property
    def keeps(self) -> Keeps:
        return "largest" if self.early_stop else "latest"

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        zero, number = torch.zeros_like(images.y), torch.zeros_like(images.clean_loss, dtype=torch.float32)
        settings, clean = settings_for(threat), _clean(threat, images)
        whole = self.early_stop or threat.overlapping
        length = min(settings.length if whole else FIRST, self.steps - 1)
        k = self.budget.k if whole else min(self.budget.k, -(-math.prod(threat.grid) // PART))
        wide, size = number + max(settings.widths), number + settings.size
        cycle = Cycle(
            zero, zero == 0, zero + k, zero, zero + length, wide, size, number, clean.v == 0, number > 0, zero
        )
        now, count = self._support(threat, images, clean, cycle)
        limit = zero + self.budget.k
        return State(now, count, clean, number - torch.inf, size, limit, limit, cycle)

    def propose(self, threat: Threat, images: Images, state: State) -> Tensor:
        return images.render(state.now.delta, threat.expand(state.now.v), self.quantize)

    def aim(self, state: State) -> Aim:
        return Aim(self._within(state), along=(state.cycle.number + 1) % len(LOSSES))

    def update(
        self, threat: Threat, images: Images, state: State, seen: Evaluation, step: Tensor, noise: Noise
    ) -> State:
        """One step of the cycle, or, where it is over, the beginning of the next one."""
        assert seen.gradient is not None
        g, over = seen.gradient.float(), state.cycle.t >= state.cycle.length
        within = self._within(state)
        solved, rising = within & seen.fooled, within & (seen.loss > state.margin)
        state = self._remember(state, seen, rising)
        if not self.early_stop:
            state = self._with_fewer(threat, images, state, solved)
            over = over | (solved & (state.count <= state.cycle.k))
        stays = rising & ~solved  # the cycle was still rising at its end

        def begun(rows: Tensor | slice) -> Path:
            return self._begin(threat, select(images, rows), select(state, rows), g[rows], stays[rows], noise)

        def nearby(rows: Tensor | slice) -> Point:
            at = dataclasses.replace(state, cycle=path.cycle)
            return self._vary(threat, select(images, rows), select(at, rows), step[rows], noise)

        further = dataclasses.replace(state.cycle, t=state.cycle.t + 1)
        path = renewed(over, begun, Path(further, self._ascend(threat, images, state, g, noise)))
        now, count = self._support(threat, images, path.now, path.cycle)
        if threat.pointwise and self.steps > ANNEALED.ascents * (ANNEALED.length + 1):
            local = path.cycle.local
            now = renewed(local, nearby, now)
            count = torch.where(local, now.v.flatten(1).sum(1).long(), count)
        return dataclasses.replace(state, now=now, count=count, cycle=path.cycle)

    def judged(self, state: State, real: Tensor, denied: Tensor) -> State:
        """A success that is denied does not count: as many groups are allowed as before it."""
        proven = torch.where(real, state.limit, state.proven)
        return dataclasses.replace(state, proven=proven, limit=torch.where(denied, proven, state.limit))

    def _within(self, state: State) -> Tensor:
        """(B,) bool: whether the point is within the limit, and not the clean image."""
        return (state.count > 0) & (state.count <= state.limit)

    def _remember(self, state: State, seen: Evaluation, better: Tensor) -> State:
        """Where it is better, (B,) bool, the point becomes the best one."""
        return dataclasses.replace(
            state,
            best=put(better, state.now, state.best),
            margin=torch.where(better, seen.loss.to(state.margin.dtype), state.margin),
            size=torch.where(better & state.cycle.start, state.cycle.size, state.size),
        )

    def _with_fewer(self, threat: Threat, images: Images, state: State, solved: Tensor) -> State:
        """In a minimum-norm search: after a success, (B,) bool, the search goes on from it with fewer."""
        used = ((threat.gather(images.clip(state.now.delta).abs()) > 0) & (state.now.v > 0)).flatten(1).sum(1)
        return dataclasses.replace(
            state,
            best=put(solved, state.now, state.best),
            margin=torch.where(solved, -torch.inf, state.margin),
            limit=torch.where(solved, used - 1, state.limit),
        )

    def _begin(self, threat: Threat, images: Images, state: State, g: Tensor, stays: Tensor, noise: Noise) -> Path:
        """The next cycle, and where it begins."""
        cycle = self._next(threat, images, state, noise)
        return Path(cycle, self._disturb(threat, images, state, cycle, g, stays, noise))

    def _next(self, threat: Threat, images: Images, state: State, noise: Noise) -> Cycle:
        """The settings of the next cycle."""
        settings, number = settings_for(threat), state.cycle.number + 1
        narrow, wide = settings.widths
        start = state.cycle.start & (state.size == state.cycle.size) & (number < settings.starts)
        long = (state.size <= settings.size) & (number >= settings.late)  # which is after the starts
        draws = noise.uniform(Stream.PROPOSAL, images.index, number, (7,)).unbind(1)
        later = state.size * settings.span ** (2 * draws[1] - 1)
        cycle = Cycle(
            number,
            start,
            k=state.limit.clamp(min=1),
            t=torch.zeros_like(number),
            length=torch.where(long, settings.longer or settings.length, settings.length),
            width=torch.where(start, wide, narrow * (wide / narrow) ** draws[0]),
            size=torch.where(start, state.size * settings.growth, later),
            noise=settings.noise * draws[2],
            free=noise.uniform(Stream.MASK, images.index, number, threat.grid) >= column(settings.barred * draws[3]),
            local=(draws[5] < settings.local) & (number > settings.ascents) & (state.margin.abs() < torch.inf),
            side=torch.where(draws[6] < 0.5, longest_side(state.limit), 1),
        )
        return cycle if self.early_stop or threat.overlapping else self._towards_fewer(state, cycle, draws[4])

    def _towards_fewer(self, state: State, cycle: Cycle, draw: Tensor) -> Cycle:
        """The next cycle in a minimum-norm search of groups that do not overlap. Without a success so far it comes down
        to more groups than the last one, otherwise to a share of the fewest so far. Where the last point is a success,
        and no start is due, it begins there, with one group fewer and undisturbed. `draw`: (B,), uniform in [0, 1)."""
        solved = state.limit < self.budget.k
        fewer = (state.limit * (DEEPEST + (1 - DEEPEST) * draw)).long().clamp(min=1)
        k = torch.where(solved, fewer, (RISE * state.cycle.k).clamp(max=self.budget.k))
        onward = solved & state.margin.isinf() & ~self._from_clean(state, cycle)
        return dataclasses.replace(
            cycle,
            k=k,
            width=torch.where(onward, state.limit / k, cycle.width),
            noise=torch.where(onward, 0, cycle.noise),
            free=cycle.free | column(onward),
            local=cycle.local & (state.limit < FEW),
        )

    def _disturb(
        self, threat: Threat, images: Images, state: State, cycle: Cycle, g: Tensor, stays: Tensor, noise: Noise
    ) -> Point:
        """Where the cycle begins. `stays`: (B,) bool, overlapping groups stay where they are."""
        if threat.overlapping:
            v = state.best.v
            if not self.early_stop:  # the best point may have more groups than the search goes on with
                v = v * threat.top_k(threat.gather(state.best.delta**2) * v, None, cycle.k, self.budget.k)
            point = Point(*moved(threat, images, state.best.delta, v, g, cycle.number, noise))
            point = choose(stays, state.best, point)
        else:
            spread = 2 * noise.uniform(Stream.MAGNITUDE, images.index, cycle.number, threat.shape) - 1
            delta = images.clip(state.best.delta) + self.budget.eps * column(cycle.noise) * spread
            point = Point(delta, state.best.v)
        clean = column(self._from_clean(state, cycle))
        return Point(*(torch.where(clean, 0.0, one) for one in (images.clip(point.delta), point.v)))

    def _from_clean(self, state: State, cycle: Cycle) -> Tensor:
        """(B,) bool: whether the cycle begins at the clean image. Starts do; in a minimum-norm search only as long as
        there is no success or it has many groups."""
        return cycle.start if self.early_stop else cycle.start & ((state.limit == self.budget.k) | (state.limit >= FEW))

    def _ascend(self, threat: Threat, images: Images, state: State, g: Tensor, noise: Noise) -> Point:
        """One step up the gradient g of all that may change; groups that overlap get their first places by it."""
        cycle, now = state.cycle, state.now
        settings = settings_for(threat)
        size = self.budget.eps * cycle.size * settings.decay ** (cycle.t / settings.length)
        delta = now.delta + column(size) * direction(threat, g)
        if not threat.overlapping:
            return Point(delta.clamp(-self.budget.eps, self.budget.eps), now.v)
        first = Point(*placed(threat, images, g, cycle.k, cycle.number, noise))
        return choose(state.count > 0, Point(images.clip(delta) * threat.expand(now.v), now.v), first)

    def _vary(self, threat: Threat, images: Images, state: State, step: Tensor, noise: Noise) -> Point:
        """A random variation of the best point."""
        kept = Change(state.best.v > 0, images.clip(state.best.delta) * threat.expand(state.best.v))
        sizes = numbers(images, kept.mask)
        draws = torch.split(noise.uniform(Stream.VARIATION, images.index, step, (sum(sizes),)), list(sizes), 1)
        new = varied(self.budget, images, kept, draws, state.cycle.side, state.cycle.side == 1, state.limit)
        return Point(new.value, new.mask.float())

    def _support(self, threat: Threat, images: Images, point: Point, cycle: Cycle) -> tuple[Point, Tensor]:
        """The point on its groups, and how many they are, (B,). Groups that overlap stay where they are. Of others that
        are free, those with the largest product of delta and delta clipped are kept, fewer and fewer until they are
        k."""
        if threat.overlapping:
            return point, point.v.flatten(1).sum(1).long()
        settings = settings_for(threat)
        left = (1 - cycle.t / (settings.hold * cycle.length)).clamp(min=0)
        count = (cycle.k * cycle.width**left).round().long().clamp(max=math.prod(threat.grid))
        most = math.ceil(max(settings.widths) * self.budget.k)
        v = strongest(threat, images, point.delta, count, most, cycle.free)
        return Point(point.delta * threat.expand(v), v), count


def settings_for(threat: Threat) -> CycleSettings:
    if not threat.overlapping:
        return ANNEALED
    return dataclasses.replace(MOVED, size=min(MOVED.size / threat.budget.eps, FURTHEST))


def _clean(threat: Threat, images: Images) -> Point:
    delta = torch.zeros_like(images.x, dtype=torch.float32)
    return Point(delta, delta.new_zeros(len(delta), *threat.grid))


def strongest(
    threat: Threat, images: Images, delta: Tensor, count: Tensor, most: int, free: Tensor | float = 1.0
) -> Tensor:
    """(B, *grid), 1 on the `count` (B,) groups, at most `most`, with the largest product of delta and delta clipped."""
    score = threat.gather(delta * images.clip(delta)) * free
    return threat.top_k(score, images.usable, count, most)


def direction(threat: Threat, g: Tensor) -> Tensor:
    """Up the gradient g, the group that matters most by 1. Single points go by their gradient; of larger groups every
    entry goes by the sign of its own, as far as the group matters. Where sets share entries that would not tell one
    from the next, and entries go by their gradient, too."""
    shared = threat.tables is not None and threat.tables.holders.shape[1] > 1
    if threat.pointwise or shared:
        return g / largest(g)
    weight = threat.gather(g.abs())
    return g.sign() * threat.expand(weight / largest(weight))
