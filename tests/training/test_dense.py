"""Dense adversaries: within the ball, and at the best point of a linear model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import Linear
from sparsepgd.training.dense import DensePGD, _into_l1


@pytest.mark.parametrize(("norm", "radius", "order"), [("linf", 0.05, torch.inf), ("l2", 0.3, 2), ("l1", 0.4, 1)])
def test_finds_the_best_point_of_a_linear_model_within_the_ball(norm: Any, radius: float, order: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 6, 6, generator=generator)
    x = 0.4 + 0.2 * torch.rand(5, 3, 6, 6, generator=generator)  # far from 0 and 1: the ball alone binds
    model = Linear(weight, 0.0).train()
    attack = DensePGD(norm, radius, 60)
    x_adv = attack.perturb(model, x, torch.zeros(5, dtype=torch.int64), seed=0, index=torch.arange(5))
    delta = (x_adv - x).flatten(1)
    assert bool((delta.norm(order, dim=1) <= radius * (1 + 1e-4)).all())
    size = weight.flatten().abs()
    best = radius * {torch.inf: size.sum(), 2: size.norm(), 1: size.topk(5).values.mean()}[order]  # l1: on 5 % of them
    gain = (delta * weight.flatten()).sum(1)
    assert bool((gain > 0.98 * best).all())
    assert model.training
    assert model.weight.requires_grad


def test_images_stay_in_the_range() -> None:
    x = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    model, y = Linear(torch.ones(3, 6, 6), 0.0), torch.zeros(4, dtype=torch.int64)
    for norm, radius in (("linf", 0.9), ("l2", 20.0), ("l1", 200.0)):
        x_adv = DensePGD(norm, radius, 5).perturb(model, x, y, seed=0, index=torch.arange(4))  # type: ignore[arg-type]
        assert x_adv.min() >= 0
        assert x_adv.max() <= 1


def test_the_projection_on_the_l1_ball_is_the_nearest_point() -> None:
    v = torch.tensor([[3.0, -1.0, 0.5], [0.2, 0.1, 0.0]])
    expected = torch.tensor([[2.0, 0.0, 0.0], [0.2, 0.1, 0.0]])
    torch.testing.assert_close(_into_l1(v, 2.0), expected)
    random = torch.randn(1, 40, generator=torch.Generator().manual_seed(0)) * 3
    inside = _into_l1(random, 5.0)
    assert inside.abs().sum().item() == pytest.approx(5.0, rel=1e-5)
    rest = random - inside  # of the nearest point no corner of the ball, 5 or -5 in one entry, lies further that way
    assert 5.0 * rest.abs().max().item() == pytest.approx((rest * inside).sum().item(), rel=1e-4)
