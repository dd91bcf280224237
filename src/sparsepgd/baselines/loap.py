"""LOAP: optimises the content of a patch by gradient signs, its position by trials (Rao, Stutz and Schiele, 2020)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sparsepgd.baselines.restarts import Repeated
from sparsepgd.problem.checks import choice, count, positive
from sparsepgd.problem.rows import select
from sparsepgd.search.loop import Images
from sparsepgd.search.moves import rolled
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.registry import registered
from sparsepgd.search.standalone import Claims, Queries, Standalone
from sparsepgd.threat import Columns, Frame, Patches, Pattern, Rows, Shape, Threat

MOVES = {"full": 4, "random": 1, "none": 0}


@dataclass(frozen=True, eq=False)
class Placed:
    """x' = (1 - M) x + M P, where M is the mask of the groups at the positions q."""

    P: Tensor  # (B, C, H, W), colours, dense
    q: Tensor  # (B, k) positions, as indices of the flat group grid, all different

    def render(self, threat: Threat, images: Images, quantize: bool) -> Tensor:
        """(B, C, H, W), within the budget."""
        return images.render(self.P - images.x, mask(threat, self.q), quantize)

    def shifted(self, threat: Threat, images: Images, turn: int, shift: Tensor) -> Placed:
        """The group with index `turn`, moved by `shift` (B, 2) with its colours.

        It is not moved if it would leave the image, reach a position that is not allowed, or coincide with another one.
        """
        (_, height, width), here = threat.grid, self.q[:, turn]
        row, column = here // width + shift[:, 0], here % width + shift[:, 1]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        there = torch.where(inside, row * width + column, here)
        legal = inside & (there[:, None] != self.q).all(1)
        if images.usable is not None:
            legal &= images.usable.flatten(1).gather(1, there[:, None])[:, 0]
        q = self.q.clone()
        q[:, turn] = torch.where(legal, there, here)
        moved = mask(threat, q[:, turn : turn + 1]) * legal.view(-1, 1, 1, 1)
        return Placed(torch.where(moved > 0, rolled(self.P, shift[:, 0], shift[:, 1]), self.P), q)


@registered("LOAP")
@dataclass(frozen=True, eq=False)
class LOAP(Repeated, Standalone):
    """White box, for patches and every other pattern whose groups can be moved.

    Each step moves the colours by ``alpha`` (in units of eps) along the sign of the gradient. Then one group, in turn,
    is shifted with its colours by ``stride``: in all four directions ("full"), in a random one, or not at all. The best
    shift is kept if its loss is larger than before the step. With "full" a step costs 5 forwards and 1 backward.
    Every evaluated point is within the budget, so trial positions may be successes, too.
    The defaults are the authors' for evaluation: 30 restarts of 100 steps. For training they use steps=25, alpha=0.1.
    """

    name: ClassVar[str] = "loap"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Patches, Rows, Columns, Shape, Frame)
    passes_per_step: ClassVar[int] = 6
    quick_settings: ClassVar[dict[str, Any]] = {"steps": 30, "restarts": 1}

    steps: int = count(100)
    _: KW_ONLY
    alpha: float = positive(0.05)
    stride: int = count(2)
    moves: Literal["full", "random", "none"] = choice("full", MOVES)
    restarts: int = count(30)

    @property
    def evaluations(self) -> int:
        return self.attempts * self.steps * (1 + MOVES[self.moves])

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        claims, rows = Claims.none(images), torch.arange(len(images.x), device=images.x.device)
        state = self._start(threat, images, noise)
        for step in range(self.steps):
            x_adv = state.render(threat, images, self.quantize)
            seen = oracle.evaluate(x_adv, rows, gradient=True)
            claims.offer(x_adv, rows, seen)
            assert seen.gradient is not None
            g = seen.gradient.float()
            P = state.P + self.alpha * self.budget.eps * mask(threat, state.q) * g.sign()
            state = Placed(P.clamp(images.low, images.high), state.q)
            trials = self._trials(threat, images, state, step, noise)
            if trials:
                places, each = torch.cat([one.render(threat, images, self.quantize) for one in trials]), len(trials)
                tried = oracle.evaluate(places, rows.repeat(each))
                claims.offer(places, rows.repeat(each), tried)
                largest, which = tried.loss.view(each, -1).max(0)
                state = chosen([state, *trials], torch.where(largest > seen.loss, which + 1, 0))
            if self.early_stop:
                left = (~claims.fooled[rows]).nonzero()[:, 0]
                rows, images, state = rows[left], select(images, left), select(state, left)
            if not len(rows):
                break
        return claims.x_adv

    def _start(self, threat: Threat, images: Images, noise: Noise) -> Placed:
        u = noise.uniform(Stream.MAGNITUDE, images.index, 0, threat.shape)
        P = images.low + u * (images.high - images.low)
        v = threat.top_k(noise.uniform(Stream.MASK, images.index, 0, threat.grid), images.usable)
        return Placed(P, v.flatten(1).sort(dim=1, descending=True, stable=True).indices[:, : self.budget.k])

    def _trials(self, threat: Threat, images: Images, state: Placed, step: int, noise: Noise) -> list[Placed]:
        """The states in which the current group has been shifted; axes without room are omitted."""
        _, height, width = threat.grid
        shifts = [(way, 0) for way in (-self.stride, self.stride) if height > self.stride]
        shifts += [(0, way) for way in (-self.stride, self.stride) if width > self.stride]
        if not shifts or self.moves == "none":
            return []
        turn, ways = step % self.budget.k, torch.tensor(shifts, device=state.q.device)
        if self.moves == "full":
            return [state.shifted(threat, images, turn, way.expand(len(state.q), 2)) for way in ways]
        draw = noise.uniform(Stream.PROPOSAL, images.index, step, (1,))[:, 0]
        return [state.shifted(threat, images, turn, ways[(draw * len(ways)).long()])]


def mask(threat: Threat, q: Tensor) -> Tensor:
    """(B, 1, H, W), 1 on the groups at the positions q (B, n)."""
    v = torch.zeros(len(q), math.prod(threat.grid), device=q.device).scatter_(1, q, 1.0)
    return threat.expand(v.view(-1, *threat.grid))


def chosen(states: list[Placed], which: Tensor) -> Placed:
    image = torch.arange(len(which), device=which.device)
    P, q = torch.stack([one.P for one in states]), torch.stack([one.q for one in states])
    return Placed(P[which, image], q[which, image])
