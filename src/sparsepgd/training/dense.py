"""Adversaries of models to compare with: l_inf, l2 and l1 balls (Madry et al. 2018; Tramer and Boneh 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparsepgd.problem import Untargeted
from sparsepgd.problem.oracle import Model, Oracle, borrowed
from sparsepgd.search.noise import Noise, Stream

TOP = 0.05  # share of the entries that a step in l1 moves


@dataclass(frozen=True)
class DensePGD:
    """Projected gradient ascent on the cross-entropy in a ball; for training: unchecked, the whole batch at once."""

    norm: Literal["linf", "l2", "l1"]
    radius: float
    steps: int

    def perturb(self, model: Model, x: Tensor, y: Tensor, *, seed: int, index: Tensor) -> Tensor:
        oracle, x = Oracle(model, Untargeted()), x.detach()
        start = 2 * Noise(seed).uniform(Stream.MAGNITUDE, index, 0, tuple(x.shape[1:])) - 1
        delta = self._project(self.radius * start if self.norm == "linf" else start, x)
        with borrowed(model, x.device):
            for _ in range(self.steps):
                seen = oracle.evaluate(x + delta, y, y, gradient=True)
                assert seen.gradient is not None
                delta = self._project(delta + self._step(seen.gradient.to(delta.dtype)), x)
        return (x + delta).clamp(0, 1)

    def _step(self, g: Tensor) -> Tensor:
        """The steepest ascent of length 2.5 radius / steps in the norm; for l1 on the largest entries alone."""
        length = 2.5 * self.radius / self.steps
        if self.norm == "linf":
            return length * g.sign()
        if self.norm == "l2":
            norm: Tensor = g.flatten(1).norm(dim=1).clamp(min=1e-12)
            return length * g / norm.view(-1, 1, 1, 1)
        flat = g.flatten(1)
        largest = flat.abs().topk(max(1, round(TOP * flat.shape[1])))
        step = torch.zeros_like(flat).scatter(1, largest.indices, flat.gather(1, largest.indices).sign())
        return length * (step / largest.indices.shape[1]).view_as(g)

    def _project(self, delta: Tensor, x: Tensor) -> Tensor:
        """Into the ball, then into [0, 1]: the second moves every entry towards 0 and so stays in the ball."""
        if self.norm == "linf":
            delta = delta.clamp(-self.radius, self.radius)
        elif self.norm == "l2":
            norm = delta.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)
            delta = delta * (self.radius / norm).clamp(max=1)
        else:
            delta = _into_l1(delta.flatten(1), self.radius).view_as(delta)
        return (x + delta).clamp(0, 1) - x


def _into_l1(v: Tensor, radius: float) -> Tensor:
    """The nearest point of the l1 ball for each row (Duchi et al. 2008)."""
    size = v.abs()
    ordered = size.sort(1, descending=True).values
    excess = (ordered.cumsum(1) - radius) / torch.arange(1, v.shape[1] + 1, device=v.device)
    last = (ordered > excess).sum(1, keepdim=True).clamp(min=1) - 1
    threshold = excess.gather(1, last).clamp(min=0)
    return v.sign() * (size - threshold).clamp(min=0)
