"""sigma-zero: gradient descent on a smooth l0 norm with an adaptive threshold (Cina et al., ICLR 2025)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparsepgd.baselines.relaxed import Relaxed
from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.goals import LossName
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.registry import registered
from sparsepgd.search.standalone import fewest
from sparsepgd.threat import Features, Pattern, Pixels, Threat

BETA_1, BETA_2 = 0.9, 0.999  # of Adam


@dataclass(frozen=True, eq=False)
class State:
    delta: Tensor  # (B, C, H, W)
    m: Tensor  # (B, C, H, W)
    v: Tensor  # (B, C, H, W)
    tau: Tensor  # (B,), groups smaller than this are set to zero


@registered()
@dataclass(frozen=True, eq=False)
class SigmaZero(Relaxed[State]):
    """White box, minimum norm. The pattern determines what is counted: Features(), as in the paper, or pixels.

    The threshold determines how sparse a point is. If the point is adversarial, its k largest groups are the candidate;
    if it has more than k, one more forward pass checks them. By default the search on an image ends at its first
    success within k. With early_stop=False it uses all steps and returns the success with the fewest groups
    (`result.l0`, `result.groups`); with k as large as the image this is the attack of the paper.
    """

    name: ClassVar[str] = "sigma-zero"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    minimum_norm: ClassVar[bool] = True
    quick_settings: ClassVar[dict[str, Any]] = {"steps": 100}

    steps: int = count(1000)
    _: KW_ONLY
    eta: float = positive(1.0)  # the learning rate, which falls to a tenth by a cosine
    sigma: float = positive(1e-3)
    tau: float = positive(0.3)
    tau_step: float = positive(0.01)  # of the threshold, in units of the learning rate
    loss: LossName = "margin"

    def promising(self, seen: Evaluation) -> Tensor:
        return seen.fooled

    def worth(self, threat: Threat, images: Images, candidate: Tensor, verdict: Evaluation) -> Tensor:
        return verdict.loss if self.early_stop else fewest(threat, images, candidate, verdict)

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        zero = torch.zeros_like(images.x, dtype=torch.float32)
        return State(zero, zero, zero, torch.full_like(images.clean_loss, self.tau, dtype=torch.float32))

    def point(self, threat: Threat, images: Images, state: State) -> Tensor:
        return images.render(state.delta, state.delta != 0, self.quantize)

    def project(self, threat: Threat, images: Images, state: State) -> Tensor:
        kept = threat.top_k(threat.gather(state.delta**2), images.usable)
        return images.render(state.delta, kept * (state.delta != 0), self.quantize)

    def update(self, threat: Threat, images: Images, state: State, seen: Evaluation, step: int) -> State:
        """Descent on max(-margin, 0) + the mean over groups of s / (s + sigma), s = sum_c delta^2."""
        assert seen.gradient is not None
        adversarial = seen.fooled.view(-1, 1, 1, 1)
        s = threat.gather(state.delta**2)
        smooth = 2 * state.delta * self.sigma / (s + self.sigma) ** 2 / math.prod(threat.grid)
        g = smooth - torch.where(adversarial, 0, seen.gradient.float())
        g = g / g.flatten(1).abs().amax(1).clamp(min=1e-12).view(-1, 1, 1, 1)

        m, v = torch.lerp(g, state.m, BETA_1), torch.lerp(g * g, state.v, BETA_2)
        scale = math.sqrt(1 - BETA_2 ** (step + 1))
        delta = state.delta - self._rate(step) / (1 - BETA_1 ** (step + 1)) * m / (v.sqrt() / scale + 1e-8)
        delta = images.clip(delta)

        change = self.tau_step * self._rate(step)
        tau = (state.tau + torch.where(seen.fooled, change, -change)).clamp(0, 1)
        size = delta.abs() if self.budget.pattern.per_channel else delta.abs().amax(1, keepdim=True)
        return State(torch.where(size < tau.view(-1, 1, 1, 1), 0, delta), m, v, tau)

    def _rate(self, step: int) -> float:
        """The cosine from eta to eta / 10."""
        return self.eta * (0.1 + 0.45 * (1 + math.cos(math.pi * step / self.steps)))
