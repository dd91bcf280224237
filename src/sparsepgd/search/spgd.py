"""Sparse-PGD, algorithms 1 and 2 of the paper in one: algorithm 1 is algorithm 2 with a 1x1 kernel."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sparsepgd.problem.checks import choice, count, positive
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import renewed
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.registry import registered
from sparsepgd.search.stepwise import Stepwise
from sparsepgd.threat import Threat

GRADIENTS = ("unprojected", "projected", "random")


def default_pace(steps: int, structured: bool, gradient: str) -> tuple[float, int]:
    """alpha = beta, and the tolerance (docs/deviations.md, "The pace of short runs").

    The paper's for structures are meant for 10,000 steps. Shorter runs have `faster` times their alpha and redraw
    earlier. Runs of 25 steps or fewer have those for pixels.
    """
    if not structured or steps <= 25:
        return 0.25, 3
    faster = max(min(12.5 * min(100 / steps, 1.0) ** (1 / 3), (10_000 / steps) ** 2), 1.0)
    unchanged = 125 if gradient == "projected" else 50  # the projected gradient gains from more steps on a mask
    return 0.0125 * faster, min(math.ceil(unchanged / faster), 50)


@dataclass(frozen=True, eq=False)
class State:
    """delta = p * E(v), v = TopK(sigmoid(w)); the paper writes m-tilde or v-tilde for w."""

    p: Tensor  # (B, C, H, W), magnitudes
    w: Tensor  # (B, *grid), continuous group mask
    v: Tensor  # (B, *grid), binary group mask, exactly k ones
    n: Tensor  # (B,), evaluations that found v unchanged since the last draw ("paper": and since v last changed)


@registered(name="spgd-random", compared=False, gradient="random")
@registered("sPGD_p", name="spgd-projected", gradient="projected")
@registered("spgd", "sPGD_u", name="spgd-unprojected", gradient="unprojected")
@dataclass(frozen=True, eq=False)
class SparsePGD(Stepwise[State]):
    """White box. ``gradient``: "unprojected" explores, "projected" exploits, "random" chooses one for each call.

    ``alpha`` is in units of eps, ``beta`` of sqrt(h * w), ``tolerance`` in steps. The defaults are the paper's:
    0.25, 0.25, 3 for pixels and features; 0.0125, 0.0125, 50 for structured patterns with 10,000 steps.
    Shorter runs on structured patterns take larger steps (`default_pace`). They are fixed when the attack is created:
    replace(attack, steps=...) keeps them, and so does replace(attack, gradient=...).
    """

    points_besides: ClassVar[int] = 1

    steps: int = count(10_000)
    gradient: Literal["unprojected", "projected", "random"] = choice("unprojected", GRADIENTS)
    _: KW_ONLY
    alpha: float | None = positive(None)
    beta: float | None = positive(None)
    tolerance: int | None = positive(None)
    gamma: float = 2e-8  # no step on w where its gradient is smaller
    beta_scale: Literal["image", "grid"] | None = choice(None, ("image", "grid"))  # see _beta; None: by the gradient
    redraw: Literal["official", "paper"] | None = choice(None, ("official", "paper"))  # see update; None: official

    def __post_init__(self) -> None:
        super().__post_init__()
        pace, tolerance = default_pace(self.steps, self.budget.pattern.structured, self.gradient)
        for name, value in (("alpha", pace), ("beta", pace), ("tolerance", tolerance)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        return f"spgd-{self.gradient}"

    @property
    def evaluations(self) -> int:
        return self.steps + 1  # the random start is tried too

    def for_call(self, noise: Noise) -> SparsePGD:
        if self.gradient != "random":
            return self
        return replace(self, gradient="unprojected" if noise.coin() else "projected")

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        p = self.budget.eps * (2 * noise.uniform(Stream.MAGNITUDE, images.index, 0, threat.shape) - 1)
        w = noise.normal(Stream.MASK, images.index, 0, threat.grid)
        v = threat.top_k(w.sigmoid(), images.usable)
        return State(images.clip(p), w, v, torch.zeros_like(images.y))

    def propose(self, threat: Threat, images: Images, state: State) -> Tensor:
        return images.render(state.p, threat.expand(state.v), self.quantize)

    def update(
        self, threat: Threat, images: Images, state: State, seen: Evaluation, step: Tensor, noise: Noise
    ) -> State:
        """One pass of algorithm 2 after the loss: gradients, p, v-tilde, v. After `tolerance` evaluations that found
        the mask unchanged v-tilde is redrawn; the magnitudes are kept.

        redraw="official", the rule of the authors' code: these evaluations need not be consecutive, and the new
        v-tilde is moved by the gradient of the old mask. "paper": they must be consecutive, and the new mask is
        evaluated as drawn, so its first step uses its own gradient (docs/deviations.md, f and g).
        """
        assert seen.gradient is not None and self.alpha and self.beta and self.tolerance
        p, w, v = state.p, state.w, state.v
        g = seen.gradient.to(p.dtype)  # dL / d delta
        s = w.sigmoid()
        g_p = g * (threat.expand(s) if self.gradient == "unprojected" else threat.expand(v))
        g_w = threat.gather(g * p) * s * (1 - s)

        p = images.clip(p + self.alpha * self.budget.eps * g_p.sign())
        norm = g_w.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        d = torch.where(norm >= self.gamma, g_w / norm, 0)
        move = self._beta(threat) * d
        stuck, official = state.n >= self.tolerance, self.redraw != "paper"

        def drawn(rows: Tensor | slice) -> Tensor:
            return noise.normal(Stream.MASK, images.index[rows], step[rows] + 1, threat.grid)

        w = renewed(stuck, drawn, w) + move if official else renewed(stuck, drawn, w + move)
        v_old, v = v, threat.top_k(w.sigmoid(), images.usable)
        same = (v == v_old).flatten(1).all(1)
        n = torch.where(same, state.n + 1, state.n if official else 0)
        return State(p, w, v, torch.where(stuck, 0, n))

    def _beta(self, threat: Threat) -> float:
        """The length of a step of w: beta * sqrt(h * w), of the image (the paper) or of the group grid.

        They differ for rows and columns; there each gradient has its own better one (docs/deviations.md, d).
        """
        assert self.beta
        scale = self.beta_scale or ("grid" if self.gradient == "unprojected" else "image")
        height, width = threat.shape[1:] if scale == "image" else threat.grid[1:]
        return self.beta * math.sqrt(height * width)
