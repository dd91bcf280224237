"""SAIF: Frank-Wolfe on the magnitudes and on the mask of a sparse perturbation (Imtiaz et al., 2022)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sparsepgd.baselines.relaxed import Relaxed
from sparsepgd.baselines.restarts import Repeated
from sparsepgd.problem.checks import choice, count
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import choose
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.registry import registered
from sparsepgd.threat import Features, Pattern, Pixels, Threat

FORMS = ("published", "binary")
MOST_HALVINGS = 50


@dataclass(frozen=True, eq=False)
class State:
    """delta = s * p. (p, s) is the trial point, (p_0, s_0) the last accepted one, (v, z) the vertices ahead of it."""

    p: Tensor  # (B, C, H, W), magnitudes
    s: Tensor  # (B, *grid), the mask: in [0, 1] if published, 0 or 1 if binary
    p_0: Tensor  # (B, C, H, W)
    s_0: Tensor  # (B, *grid)
    v: Tensor  # (B, C, H, W)
    z: Tensor  # (B, *grid)
    loss: Tensor  # (B,), of the pair that was accepted
    t: Tensor  # (B,), pairs accepted
    r: Tensor  # (B,), halvings of the step


@registered(name="saif-binary", compared=False, form="binary")
@registered("saif", "SAIF", name="saif-published", form="published")
@dataclass(frozen=True, eq=False)
class SAIF(Repeated, Relaxed[State]):
    """White box. There are two algorithms with this name; ``form`` selects one.

    "published" starts from the gradient at the clean image. The mask is real-valued, with a sum of at most k. A step of
    1 / (2^r sqrt(t + 1)) is accepted if the loss does not fall; otherwise r is increased. Every trial is one step of
    the search. The gradient is taken with the real-valued mask. Success is determined on its k largest entries, which
    costs one more forward pass.
    "binary" starts at random. The mask is rounded to its k largest entries after every step of 1 / sqrt(t + 1), so
    gradient and success refer to the same point; a rounded mask cannot change once the step is below 1/2 (t > 3).
    The defaults are those of the sPGD paper: untargeted and towards 9 classes, 300 steps each.
    """

    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    quick_settings: ClassVar[dict[str, Any]] = {"steps": 60, "targets": 0}

    steps: int = count(300)
    _: KW_ONLY
    form: Literal["published", "binary"] = choice("published", FORMS)
    targets: int = 9

    @property
    def name(self) -> str:
        return f"saif-{self.form}"

    @property
    def evaluations(self) -> int:
        return self.attempts * self.steps * (2 if self.form == "published" else 1)

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        p, s = torch.zeros_like(images.x, dtype=torch.float32), images.x.new_zeros(len(images.x), *threat.grid).float()
        if self.form == "binary":
            eps = self.budget.eps
            p = images.clip(eps * (2 * noise.uniform(Stream.MAGNITUDE, images.index, 0, threat.shape) - 1))
            s = threat.top_k(noise.uniform(Stream.MASK, images.index, 0, threat.grid), images.usable)
        none = torch.zeros_like(images.y)
        return State(p, s, p, s, p, s, p.new_full((len(p),), -torch.inf), none, none + 1)

    def point(self, threat: Threat, images: Images, state: State) -> Tensor:
        return images.render(state.p * state.s, state.s, self.quantize and self.form == "binary")

    def project(self, threat: Threat, images: Images, state: State) -> Tensor:
        if self.form == "binary":
            return self.point(threat, images, state)
        return images.render(state.p, threat.top_k(state.s, images.usable) * (state.s > 0), self.quantize)

    def update(self, threat: Threat, images: Images, state: State, seen: Evaluation, step: int) -> State:
        """Accept the trial or halve the step; then move from the accepted pair towards its vertices."""
        assert seen.gradient is not None
        loss, t = seen.loss.to(state.loss.dtype), state.t
        better = (loss >= state.loss) | (t < 2) | (state.r >= MOST_HALVINGS) | (self.form == "binary")

        g = seen.gradient.float()
        blank = ((t == 0) & (self.form == "published")).view(-1, 1, 1, 1)  # delta = 0: no mask, no magnitudes yet
        v = images.clip(self.budget.eps * torch.where(blank, g, g * state.s).sign())
        g_s = threat.gather(g * torch.where(blank, v, state.p))
        z = threat.top_k(g_s.clamp(min=0), images.usable) * (g_s > 0)

        p_0, s_0 = choose(better, state.p, state.p_0), choose(better, state.s, state.s_0)
        v, z = choose(better, v, state.v), choose(better, z, state.z)
        loss, t = torch.where(better, loss, state.loss), torch.where(better, t + 1, t)
        r = torch.where(better, state.r, state.r + 1)
        # after t accepted pairs; published: the first is a full step, to p_0 = eps sign(g) and its mask
        mu = torch.where(t > 1, 0.5**r * (t - 1).clamp(min=1) ** -0.5, 1.0) if self.form == "published" else t**-0.5
        mu = mu.view(-1, 1, 1, 1)
        s = s_0 + mu * (z - s_0)
        s = threat.top_k(s, images.usable) if self.form == "binary" else s
        return State(images.clip(p_0 + mu * (v - p_0)), s, p_0, s_0, v, z, loss, t, r)
