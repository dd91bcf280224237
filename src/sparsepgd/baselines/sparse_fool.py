"""SparseFool (Modas, Moosavi-Dezfooli and Frossard, 2019): approximates the boundary by a plane and moves the fewest
coordinates to it.

The original counts features. With `Pixels` a coordinate is a pixel, whose channels move together.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.goals import Goal, Untargeted
from sparsepgd.problem.rows import select
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.registry import registered
from sparsepgd.search.standalone import Claims, Queries, Standalone, changed, fewest, keep_best
from sparsepgd.threat import Budget, Features, Pattern, Pixels, Threat


@registered("SF")
@dataclass(frozen=True, eq=False)
class SparseFool(Standalone):
    """White box, minimum norm: it ends when the model is fooled, with any number of pixels.

    The k most changed pixels of each point are evaluated, too, so that a success is within the budget. With k as large
    as the image, `result.groups` is the result of the original attack. There is no targeted mode.
    """

    name: ClassVar[str] = "sparse-fool"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    goals: ClassVar[tuple[type[Goal], ...]] = (Untargeted,)
    quick_settings: ClassVar[dict[str, Any]] = {"steps": 8, "deepfool_steps": 10, "classes": 3}

    steps: int = count(3000)  # linear approximations of the boundary; the original stops after 20 to 50
    _: KW_ONLY
    lam: float = positive(3.0)  # the paper's lambda: how far beyond the boundary the plane is
    overshoot: float = 0.02
    deepfool_steps: int = count(50)
    classes: int = count(10, least=2)  # the most likely classes, whose boundaries DeepFool considers

    @classmethod
    def at_cost(cls, budget: Budget, passes: int, **settings: Any) -> Self:
        """It ends when the model is fooled; with few classes a step is cheap."""
        return cls(budget, passes, classes=3, **settings)

    @property
    def evaluations(self) -> int:
        return self.steps * (2 * self.deepfool_steps + 3)

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """Algorithm 2 of the paper."""
        claims = Claims.none(images)
        rows = torch.arange(len(images.y), device=images.y.device)
        x_i = images.x
        for _ in range(self.steps):
            active = select(images, rows)
            normal, x_b = self._deepfool(oracle, active, x_i, rows)
            x_i = _linear_solver(threat, active, x_i, normal, x_b)
            moved = (x_i != active.x).to(x_i)
            x = active.render((1 + self.overshoot) * (x_i - active.x), moved, self.quantize)
            crossed = self._claim(oracle, threat, active, x, rows, claims)
            on = (~crossed & ~(claims.fooled[rows] & self.early_stop)).nonzero()[:, 0]
            if not len(on):
                break
            rows, x_i = rows[on], x_i[on]
        return claims.x_adv

    def _claim(
        self, oracle: Queries, threat: Threat, active: Images, x: Tensor, rows: Tensor, claims: Claims
    ) -> Tensor:
        """Whether the points x fool the model (n,); points beyond the budget are also evaluated with only k pixels."""
        seen = oracle.evaluate(x, rows)
        within = changed(threat, active, x) <= self.budget.k
        cut = keep_best(self, threat, active, x, threat.gather((x - active.x) ** 2))
        for pick, point in ((within, x), (~within, cut)):
            some = pick.nonzero()[:, 0]
            if len(some):
                said = select(seen, some) if point is x else oracle.evaluate(point[some], rows[some])
                claims.offer(point[some], rows[some], said, fewest(threat, select(active, some), point[some], said))
        return seen.fooled

    def _deepfool(self, oracle: Queries, active: Images, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The unit normal of the boundary near x, towards the other side, and a point lambda times as far away."""
        free = (active.high > active.low).to(x)  # the plane has no slope where nothing may change
        r, on = torch.zeros_like(x), torch.arange(len(x), device=x.device)
        for _ in range(self.deepfool_steps):
            ahead = partial(_ahead, active.y[on], self.classes - 1)
            logits, w = oracle.slopes(x[on] + r[on], rows[on], ahead)
            w = w * free[on][:, None]
            length = w.flatten(2).norm(dim=2).clamp(min=torch.finfo(w.dtype).tiny)  # (n, classes)
            distance, nearest = (ahead(logits).abs() / length).min(1)
            each = torch.arange(len(on), device=on.device)
            step = distance.clamp(min=1e-4) / length[each, nearest]
            move = step[:, None, None, None] * w[each, nearest]
            r[on] += torch.nan_to_num(move, 0.0, 0.0, 0.0)  # without a slope 0 * inf
            said = oracle.logits(x[on] + (1 + self.overshoot) * r[on], rows[on]).argmax(1)
            on = on[said == active.y[on]]
            if not len(on):
                break
        x_b = x + (1 + self.overshoot) * r
        _, w = oracle.slopes(x_b, rows, partial(_ahead, active.y, 1))
        normal = w[:, 0] * free
        size = normal.flatten(1).norm(dim=1).clamp(min=torch.finfo(w.dtype).tiny)
        return normal / size[:, None, None, None], x + self.lam * r


def _ahead(y: Tensor, others: int, logits: Tensor, part: slice = slice(None)) -> Tensor:
    """z_j - z_y for the most likely other classes j, (n, others); `part` selects the entries of y."""
    label = y[part][:, None]
    largest = logits.scatter(1, label, -torch.inf).topk(min(others, logits.shape[1] - 1)).values
    return largest - logits.gather(1, label)


def _linear_solver(threat: Threat, active: Images, x: Tensor, normal: Tensor, x_b: Tensor) -> Tensor:
    """Algorithm 1 of the paper without its loop: from x to beyond the plane through x_b, in the fewest coordinates.

    Coordinates move to the end of the box in the order of |normal|, the last one only as far as needed. So a cumulative
    sum gives the share of its room that each coordinate uses: 1 for the first ones, a fraction for one, then 0.
    """
    missing = ((x_b - x) * normal).flatten(1).sum(1, keepdim=True).clamp(min=0) + 1e-3
    room = torch.where(normal > 0, active.high - x, active.low - x)
    order = threat.gather(normal.abs()).flatten(1).argsort(dim=1, descending=True, stable=True)
    gain = threat.gather(normal * room).flatten(1).gather(1, order)  # of the whole room
    part = ((missing - (gain.cumsum(1) - gain)) / gain.clamp(min=torch.finfo(gain.dtype).tiny)).clamp(0, 1)
    part = torch.where(gain > 0, part, 0)
    share = torch.zeros_like(part).scatter(1, order, part).view(-1, *threat.grid)
    return (x + share * room).clamp(active.low, active.high)
