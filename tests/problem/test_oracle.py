"""What the model said, as the attacks see it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.problem.oracle import Oracle


class _BadSlope(torch.autograd.Function):
    """The image itself; its gradient is spoilt at the first pixel of the first image."""

    @staticmethod
    def forward(ctx: object, x: Tensor, bad: float) -> Tensor:
        ctx.bad = bad  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        g = g.clone()
        g[0, :, 0, 0] = ctx.bad  # type: ignore[attr-defined]
        return g, None


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_gradients_that_are_not_finite_reach_no_attack(bad: float, scale: float) -> None:
    w = torch.linspace(-1, 1, 12)

    def model(x: Tensor) -> Tensor:
        score = (_BadSlope.apply(x, bad).flatten(1) * w).sum(1)
        return torch.stack([score, -score], 1)

    x, y = torch.full((2, 3, 2, 2), 0.5), torch.zeros(2, dtype=torch.int64)
    g = Oracle(model, sp.Untargeted(), scale=scale).evaluate(x, y, y, gradient=True).gradient
    assert g is not None
    assert not g[0, :, 0, 0].any()
    assert torch.equal(g[0, :, 1], g[1, :, 1])  # all else is as it was
    assert g[1].all()
