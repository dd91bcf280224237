"""GreedyFool (Dong et al., 2020): adds pixels by their gradients until the model is fooled, then removes some.

The original also has a distortion map, a generative network that keeps changes out of smooth regions. It is omitted.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.goals import LossName
from sparsepgd.problem.rows import select
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.registry import registered
from sparsepgd.search.standalone import Claims, Queries, Standalone, changed
from sparsepgd.threat import Budget, Features, Pattern, Pixels, Threat


@registered()
@dataclass(frozen=True, eq=False)
class GreedyFool(Standalone):
    """White box, minimum norm. Each step adds the pixel with the largest mean_c |g|, up to k, and moves all of them.

    With early_stop the attack ends at its first success. With early_stop=False the reduction of the paper follows,
    which removes the least changed pixels first. With k as large as the image this is the attack of the paper.
    """

    name: ClassVar[str] = "greedy-fool"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    points_besides: ClassVar[int] = 1
    minimum_norm: ClassVar[bool] = True

    steps: int = count(10_000)
    _: KW_ONLY
    pace: float = positive(0.5)  # the largest move of a step, in units of eps
    magnitudes: int = count(10)  # of the reduction: number of strengths at which the rest of the perturbation is tried
    reductions: int = count(3000)  # largest number of trials
    loss: LossName = "margin"

    @classmethod
    def quick(cls, budget: Budget) -> Self:
        return cls(budget, steps=2 * budget.k + 20, reductions=60)

    @property
    def evaluations(self) -> int:
        return self.steps + 1 + (0 if self.early_stop else self.reductions * self.magnitudes)

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        claims = Claims.none(images)
        self._increase(oracle, threat, images, claims)
        if not self.early_stop:
            self._reduce(oracle, threat, images, claims)
        return claims.x_adv

    def _increase(self, oracle: Queries, threat: Threat, images: Images, claims: Claims) -> None:
        rows = torch.arange(len(images.y), device=images.y.device)
        x = images.x
        mask = torch.zeros(len(rows), *threat.grid, device=x.device)  # the paper's m, the pixels added so far
        for step in range(self.steps + 1):
            seen = oracle.evaluate(x, rows, gradient=step < self.steps)
            claims.offer(x, rows, seen)
            if seen.gradient is None:
                break
            active = select(images, rows)
            g = seen.gradient
            if step < self.budget.k:
                mask = mask + _best_unused(threat.gather(g.abs()), mask, active.usable)
            g = g * mask
            d = g / g.abs().amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
            moved = active.render(x - active.x + self.pace * self.budget.eps * d, mask, self.quantize)
            stays = (moved == x).flatten(1).all(1) & (step + 1 >= self.budget.k)  # no further change is possible
            on = (~claims.fooled[rows] & ~stays).nonzero()[:, 0]
            if not len(on):
                break
            rows, x, mask = rows[on], moved[on], mask[on]

    def _reduce(self, oracle: Queries, threat: Threat, images: Images, claims: Claims) -> None:
        """Remove one pixel and try the rest at several strengths. Keep the weakest success; if there is none, try to
        remove the next pixel.

        `turn` counts the pixels, beginning with the least changed one, that could not be removed.
        """
        rows = claims.fooled.nonzero()[:, 0]
        turn = torch.zeros_like(rows)
        claims.worth = torch.where(claims.fooled, -changed(threat, images, claims.x_adv).to(claims.worth), claims.worth)
        for _ in range(self.reductions):
            left = changed(threat, select(images, rows), claims.x_adv[rows])
            on = ((turn < left) & (left > 1)).nonzero()[:, 0]
            rows, turn, left = rows[on], turn[on], left[on]
            if not len(rows):
                return
            active, delta = select(images, rows), claims.x_adv[rows] - images.x[rows]
            size = threat.gather(delta.abs()).flatten(1)
            order = torch.where(size > 0, size, torch.inf).argsort(dim=1, stable=True)
            drop = torch.zeros_like(size).scatter(1, order.gather(1, turn[:, None]), 1).view(-1, *threat.grid)
            rest = delta * (1 - drop)
            rest = rest / rest.abs().amax((1, 2, 3), keepdim=True)
            strengths = self.budget.eps * torch.arange(1, self.magnitudes + 1, device=rest.device) / self.magnitudes
            p = (strengths[:, None, None, None] * rest[:, None]).flatten(0, 1)  # (n * magnitudes, C, H, W)
            several = torch.arange(len(rows), device=rows.device).repeat_interleave(self.magnitudes)
            keep = ((size > 0).view_as(drop) & (drop == 0)).to(p)
            x = select(active, several).render(p, keep[several], self.quantize)
            seen = oracle.evaluate(x, rows[several])
            worth = torch.where(seen.fooled, -changed(threat, select(active, several), x).to(seen.loss), -torch.inf)
            claims.offer(x, rows[several], seen, worth)  # the first, i.e. weakest, among equals
            shrunk = changed(threat, active, claims.x_adv[rows]) < left
            turn = torch.where(shrunk, turn, turn + 1)


def _best_unused(score: Tensor, used: Tensor, usable: Tensor | None) -> Tensor:
    """1 at the best group (B, *grid) that is not used yet."""
    score = score.masked_fill(used > 0, -1)
    if usable is not None:
        score = score.masked_fill(~usable, -2)
    return torch.zeros_like(used).flatten(1).scatter(1, score.flatten(1).argmax(1, keepdim=True), 1).view_as(used)
