"""Carlini and Wagner's l0 attack (2017): repeats their l2 attack, each time with fewer pixels that may change."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.goals import LossName
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import choose, select
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.registry import registered
from sparsepgd.search.standalone import Claims, Queries, Standalone, fewest
from sparsepgd.threat import Budget, Features, Pattern, Pixels, Threat

SOLVED = 1e-4  # a success if f is below this; a pixel that moved less counts as unchanged
CONFIDENCE = 0.01  # of f, as in the authors' code


@dataclass(frozen=True, eq=False)
class State:
    """The l2 attack: minimise |delta|^2 + c f(x + delta) over w, x + delta = tanh(w) stretched to the box."""

    w: Tensor  # (B, C, H, W)
    valid: Tensor  # (B, *grid), 1 where pixels may change
    c: Tensor  # (B,)
    step: Tensor  # (B,) int64, with this c
    m: Tensor  # (B, C, H, W), Adam's means of the gradient and its square, and its time
    v: Tensor
    t: Tensor  # (B,) int64
    rounds: Tensor  # (B,) int64, l2 attacks that succeeded


@registered()
@dataclass(frozen=True, eq=False)
class CWL0(Standalone):
    """White box, minimum norm. After each success the pixels with the least effect are frozen until the l2 attack
    fails.

    The k pixels with the largest effect are also evaluated alone; with early_stop the attack ends when they fool the
    model. With early_stop=False it runs to the end, and the smallest success counts. All images of a batch step
    together, each with its own c and round.
    """

    name: ClassVar[str] = "cw-l0"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    minimum_norm: ClassVar[bool] = True

    steps: int = count(1000)  # for each c
    _: KW_ONLY
    lr: float = positive(0.01)
    c_first: float = positive(1e-3)
    c_last: float = positive(2e6)
    c_factor: float = positive(2.0, more_than=1)
    small: float = 0.01  # freeze pixels with less effect than this, and one more, ...
    share: float = positive(0.3)  # ... but at most share * n ** power of the n pixels that changed
    power: float = 0.5
    rounds: int = count(2000)
    loss: LossName = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss != "margin":
            raise UnsupportedError(
                f"loss={self.loss!r}; the attack of Carlini and Wagner is defined for the margin; use loss='margin'"
            )

    @classmethod
    def at_cost(cls, budget: Budget, passes: int, **settings: Any) -> Self:
        """The shortest sensible settings, because the cost is not known in advance."""
        return cls.quick(budget)

    @classmethod
    def quick(cls, budget: Budget) -> Self:
        return cls(budget, 15, lr=0.2, c_first=1, c_last=100, c_factor=10, small=math.inf, power=1, rounds=12)

    @property
    def evaluations(self) -> int:
        tries = math.ceil(math.log(self.c_last / self.c_first, self.c_factor)) + 1
        return self.rounds * (tries * self.steps + 1)

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        claims = Claims.none(images)
        rows = torch.arange(len(images.y), device=images.y.device)
        state = self._start(threat, images)
        while len(rows):
            active = select(images, rows)
            middle, half = (active.low + active.high) / 2, (active.high - active.low) / 2
            x = (middle + half * torch.tanh(state.w)).clamp(active.low, active.high)
            x = torch.where(state.valid > 0, x, active.x)
            seen = oracle.evaluate(x, rows, gradient=True)
            solved = CONFIDENCE - seen.loss < SOLVED
            effect = self._effect(threat, active, state, x, seen)
            some = solved.nonzero()[:, 0]
            if len(some):
                self._claim(oracle, threat, select(active, some), x[some], effect[some], rows[some], claims)
            after = self._descend(active, state, x, seen)
            state = choose(solved, self._freeze(state, effect), after)
            over = (state.c > self.c_last) | (state.rounds >= self.rounds) | (state.valid.flatten(1).sum(1) == 0)
            on = (~over & ~(claims.fooled[rows] & self.early_stop)).nonzero()[:, 0]
            rows, state = rows[on], select(state, on)
        return claims.x_adv

    def _start(self, threat: Threat, images: Images) -> State:
        middle, half = (images.low + images.high) / 2, (images.high - images.low) / 2
        w = torch.atanh((images.x - middle) / half.clamp(min=1e-12) * 0.999999)
        valid = torch.ones(len(w), *threat.grid, device=w.device, dtype=w.dtype)
        zero, c = torch.zeros_like(images.y), torch.full_like(images.clean_loss, self.c_first)
        return State(w, valid, c, zero, torch.zeros_like(w), torch.zeros_like(w), zero, zero)

    def _descend(self, active: Images, state: State, x: Tensor, seen: Evaluation) -> State:
        """One step of Adam; after `steps` of them with one c, the next c."""
        assert seen.gradient is not None
        c = torch.where(seen.loss < CONFIDENCE, state.c, 0).to(x)[:, None, None, None]
        half = (active.high - active.low) / 2
        slope = half * (1 - torch.tanh(state.w) ** 2) * state.valid  # dx / dw
        g = (2 * (x - active.x) - c * seen.gradient) * slope
        t = state.t + 1
        m, v = 0.9 * state.m + 0.1 * g, 0.999 * state.v + 0.001 * g**2
        times = t.to(x)[:, None, None, None]
        w = state.w - self.lr * m / (1 - 0.9**times) / ((v / (1 - 0.999**times)).sqrt() + 1e-8)
        spent = state.step + 1 >= self.steps
        c_next = torch.where(spent, state.c * self.c_factor, state.c)
        return State(w, state.valid, c_next, torch.where(spent, 0, state.step + 1), m, v, t, state.rounds)

    @staticmethod
    def _effect(threat: Threat, active: Images, state: State, x: Tensor, seen: Evaluation) -> Tensor:
        """|g * delta| of each pixel that may change and has changed, with g the gradient of f; else 0: (B, *grid)."""
        assert seen.gradient is not None
        delta = x - active.x
        moved = threat.gather((delta.abs() > SOLVED).to(x)) > 0
        least = torch.finfo(x.dtype).tiny  # so that a pixel without gradient still counts as changed
        return torch.where(moved, threat.gather((seen.gradient * delta).abs()).clamp(min=least), 0) * state.valid

    def _claim(
        self,
        oracle: Queries,
        threat: Threat,
        solved: Images,
        x: Tensor,
        effect: Tensor,
        rows: Tensor,
        claims: Claims,
    ) -> None:
        """Where the l2 attack succeeded, evaluate the k pixels with the largest effect alone."""
        mask = threat.top_k(effect.float(), solved.usable) * (effect > 0)
        x = solved.render(x - solved.x, mask, self.quantize)
        seen = oracle.evaluate(x, rows)
        claims.offer(x, rows, seen, fewest(threat, solved, x, seen))

    def _freeze(self, state: State, effect: Tensor) -> State:
        """The next round, without the pixels that have not changed and those with the smallest effect."""
        flat = effect.flatten(1)
        changed = (flat > 0).sum(1)
        weak = ((flat > 0) & (flat <= self.small)).sum(1) + 1
        frozen = torch.minimum(weak, (self.share * changed.to(flat) ** self.power).ceil().long())
        rank = torch.where(flat > 0, flat, torch.inf).argsort(1).argsort(1)  # 0: the smallest effect
        valid = ((flat > 0) & (rank >= frozen[:, None])).to(state.valid).view_as(state.valid)
        zero, none = torch.zeros_like(state.m), torch.zeros_like(state.t)
        return State(state.w, valid, state.c, none, zero, zero, none, state.rounds + 1)
