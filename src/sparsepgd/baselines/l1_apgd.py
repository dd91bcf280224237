"""l1-APGD, projected to k pixels: sparse ascent in the l1 ball and the box (Croce and Hein, Mind the box, 2021)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparsepgd.baselines.relaxed import Relaxed
from sparsepgd.baselines.restarts import Repeated
from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import choose
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.registry import registered
from sparsepgd.threat import Features, Pattern, Pixels, Threat

PHASES = ((0.0, 3), (0.3, 2), (0.6, 1))  # from this share of the steps on, the radius times this
FIRST_SHARE = 0.2  # of the entries, that a step moves at first
REDUCTION, SMALLEST = 1.5, 0.1  # of the number of entries and of the step size


@dataclass(frozen=True, eq=False)
class State:
    """The perturbation, the best one at this radius, and how many entries the next step moves, and how far."""

    d: Tensor  # (B, C, H, W)
    d_best: Tensor  # (B, C, H, W)
    g_best: Tensor  # (B, C, H, W), gradient there
    loss_best: Tensor  # (B,)
    size: Tensor  # (B,), of a step, in units of the radius
    count: Tensor  # (B,), entries that a step moves
    l0: Tensor  # (B,), entries of d_best at the last check


@registered()
@dataclass(frozen=True, eq=False)
class L1APGD(Repeated, Relaxed[State]):
    """White box. The gradient is taken at the dense point, in the l1 ball of ``radius``. Success is determined on the k
    groups with the largest squares, which costs one more forward pass per step.

    The default ``radius`` is an eighth of the largest l1 norm of k groups (k * eps for features, times the number of
    channels for pixels): of values from 4 to 60 for k = 20 pixels, about 8 was good on a plain and on a robust model.
    With k as large as the image this is the l1 attack. The defaults are those of AutoAttack for l1: untargeted and
    towards 9 classes, 100 steps each; all use the loss of the attack (cross-entropy), not DLR.
    """

    name: ClassVar[str] = "l1-apgd"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    quick_settings: ClassVar[dict[str, Any]] = {"steps": 40, "targets": 0}

    steps: int = count(100)
    _: KW_ONLY
    radius: float | None = positive(None)
    targets: int = 9

    @property
    def evaluations(self) -> int:
        return self.attempts * 2 * self.steps

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        d = noise.normal(Stream.MAGNITUDE, images.index, 0, threat.shape)
        d = project_on_ball(d, images, self._phase(threat, 0)[0])
        one, entries = d.new_ones(len(d)), d[0].numel()
        return State(d, d, d, -torch.inf * one, one, FIRST_SHARE * entries * one, entries * one)

    def point(self, threat: Threat, images: Images, state: State) -> Tensor:
        return images.render(state.d, state.d != 0, quantize=False)

    def project(self, threat: Threat, images: Images, state: State) -> Tensor:
        kept = threat.top_k(threat.gather(state.d**2), images.usable)
        return images.render(state.d, kept * (state.d != 0), self.quantize)

    def update(self, threat: Threat, images: Images, state: State, seen: Evaluation, step: int) -> State:
        """Keep the best point, adapt at a checkpoint, then step along the sign of the gradient's largest entries."""
        assert seen.gradient is not None
        g = seen.gradient.float()
        loss = seen.loss.to(state.loss_best.dtype)
        better = loss > state.loss_best
        now = choose(better, replace(state, d_best=state.d, g_best=g, loss_best=loss), state)
        radius, start, length = self._phase(threat, step)
        if step + 1 == start + length:  # the best point is the start in the next, smaller ball
            d = project_on_ball(now.d_best, images, self._phase(threat, step + 1)[0])
            l0 = (d != 0).flatten(1).sum(1).float()
            return State(d, d, g, torch.full_like(loss, -torch.inf), torch.ones_like(loss), l0 / REDUCTION, l0)
        if (step + 1 - start) % max(int(0.04 * length), 1) == 0:
            now, g = self._check(now, g)
        u = _largest(g, now.count).sign()
        u = u / u.flatten(1).abs().sum(1).clamp(min=1e-10).view(-1, 1, 1, 1)
        d = project_on_ball(now.d + radius * now.size.view(-1, 1, 1, 1) * u, images, radius)
        return replace(now, d=d)

    def _check(self, now: State, g: Tensor) -> tuple[State, Tensor]:
        """Where d_best has become sparser by 5 %, restart from it with the largest step. Otherwise reduce the step."""
        l0 = (now.d_best != 0).flatten(1).sum(1).float()
        sparser = l0 < 0.95 * now.l0
        size = torch.where(sparser, 1.0, (now.size / REDUCTION).clamp(min=SMALLEST))
        d = choose(sparser, now.d_best, now.d)
        return replace(now, d=d, size=size, count=l0 / REDUCTION, l0=l0), choose(sparser, now.g_best, g)

    def _phase(self, threat: Threat, step: int) -> tuple[float, int, int]:
        """The radius at a step, the first step with this radius, and the number of such steps."""
        budget = self.budget
        width = 1 if budget.pattern.per_channel else threat.shape[0]
        radius = self.radius or budget.k * width * budget.eps / 8
        starts = [math.ceil(share * self.steps) for share, _ in PHASES] + [max(self.steps, step + 1)]
        last = max(i for i in range(len(PHASES)) if starts[i] <= step)
        return PHASES[last][1] * radius, starts[last], starts[last + 1] - starts[last]


def _largest(g: Tensor, count: Tensor) -> Tensor:
    """g, with entries smaller than the count-th largest (B,) of the image set to 0."""
    size = g.abs().flatten(1)
    last = count.long().clamp(1, size.shape[1]) - 1
    least = size.sort(1, descending=True).values.gather(1, last[:, None])
    return g * (size >= least).view_as(g)


def project_on_ball(d: Tensor, images: Images, radius: float) -> Tensor:
    """The nearest point in the l1 ball and the box, exactly: |d| minus a threshold, at most what the box allows.

    Its l1 norm is a piecewise linear, decreasing function of the threshold, with knots at a = |d| and at a - b, where b
    is the room in the box. With the knots in descending order, its value at each knot is a difference of two sums.
    """
    a = d.abs().flatten(1)
    b = torch.where(d > 0, images.high - images.x, images.x - images.low).to(d.dtype).flatten(1)
    bends = torch.cat([a, a - b], 1)
    sign = torch.cat([torch.ones_like(a), -torch.ones_like(b)], 1)
    bends, order = bends.sort(1, descending=True)
    sign = sign.gather(1, order)
    slope, total = sign.cumsum(1), (sign * bends).cumsum(1)
    norm = total - bends * slope  # the l1 norm with the threshold at this knot
    reached = ((norm < radius) & (bends > 0)).sum(1, keepdim=True)  # knots, from the top, with a smaller l1 norm
    last = (reached - 1).clamp(min=0)
    threshold = (total.gather(1, last) - radius) / slope.gather(1, last).clamp(min=1)
    whole = torch.minimum(a, b).sum(1, keepdim=True) <= radius
    kept = (a - torch.where(whole, 0, threshold.clamp(min=0))).clamp(min=0)
    return torch.minimum(kept, b).view_as(d) * d.sign()
