"""l1-APGD: the projection on ball and box is exact, the radius and the sparsity follow their schedules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import L1APGD
from sparsepgd.baselines.l1_apgd import _largest, project_on_ball
from sparsepgd.search.loop import Images
from support.linear import problem, reached
from support.models import SmallConvNet, images, labelled


def rows(x: Tensor, eps: float = 1.0) -> Images:
    threat = sp.Budget(k=1, eps=eps).resolve((x.shape[1], x.shape[2], x.shape[3]))
    y = torch.zeros(len(x), dtype=torch.int64)
    low, high = threat.box(x, None, quantize=False)
    return Images(x, y, y, torch.zeros(len(x)), y, y, None, low, high)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 30), st.floats(0.01, 3), st.sampled_from([1.0, 0.2]), st.integers(0, 1000))
def test_projection_is_the_nearest_point_of_ball_and_box(radius: float, scale: float, eps: float, seed: int) -> None:
    """Inside both; and the distance is no larger than that found by bisection on the threshold in float64."""
    some = rows(images(3, size=4), eps)
    d = scale * torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    u = project_on_ball(d, some, radius)
    low, high = some.low - some.x, some.high - some.x
    assert bool((u >= low - 1e-6).all())
    assert bool((u <= high + 1e-6).all())
    norm = u.abs().flatten(1).sum(1)
    assert bool((norm <= radius * (1 + 1e-4)).all())
    least, most = torch.zeros(3, 1, 1, 1, dtype=torch.float64), torch.full((3, 1, 1, 1), 20.0, dtype=torch.float64)
    for _ in range(60):
        middle = (least + most) / 2
        trial = (d.double().sign() * (d.double().abs() - middle).clamp(min=0)).clamp(low.double(), high.double())
        over = trial.abs().flatten(1).sum(1).view(-1, 1, 1, 1) > radius
        least, most = torch.where(over, middle, least), torch.where(over, most, middle)
    exact = (d.double().sign() * (d.double().abs() - most).clamp(min=0)).clamp(low.double(), high.double())
    torch.testing.assert_close(u.double(), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "budget", [sp.Budget(k=1), sp.Budget(k=4), sp.Budget(k=3, pattern=sp.Features()), sp.Budget(k=3, eps=0.1)], ids=repr
)
def test_comes_near_the_best_groups_of_a_linear_model(budget: sp.Budget) -> None:
    """It ranks pixels by what the l1 ball gives them: within a factor of two of the best, and closer on average."""
    weight, x, best = problem(budget)
    radius = 2 * budget.k * budget.eps * (1 if budget.pattern.per_channel else 3)  # wide enough to fill k groups
    attack = L1APGD(budget, steps=100, radius=radius, targets=0, early_stop=False, loss="margin")
    share = reached(attack, weight, x) / best
    assert bool((share <= 1 + 1e-5).all())
    assert float(share.min()) > 0.5
    assert float(share.mean()) > 0.75


def test_with_k_as_large_as_the_image_it_finds_the_optimum_of_the_l1_ball() -> None:
    """A linear model: all of the radius on the entries with the largest weights, as far as the box goes."""
    weight, x, _ = problem(sp.Budget(k=1))
    radius = 2.0
    order = weight.flatten().abs().argsort(descending=True)
    room = torch.where(weight > 0, 1 - x, x).flatten(1)[:, order]
    spent = (radius - (room.cumsum(1) - room)).clamp(min=0).minimum(room)
    best = (spent * weight.flatten().abs()[order]).sum(1)
    attack = L1APGD(sp.Budget(k=64), 300, radius=radius, targets=0, early_stop=False, loss="margin")
    result_gain = reached(attack, weight, x)  # that of the best point of all phases, so of the largest ball
    assert bool((result_gain >= best * 0.99).all())


def test_largest_keeps_as_many_entries_as_each_image_asks_for() -> None:
    g = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    kept = _largest(g, torch.tensor([5.0, 0.3, 48.0]))
    assert (kept != 0).flatten(1).sum(1).tolist() == [5, 1, 48]
    assert float(kept[0].abs().sort().values.flatten()[-5:].min()) >= 0
    assert float(g[0].abs().flatten().topk(5).values.sum()) == pytest.approx(float(kept[0].abs().sum()))


def test_the_radius_shrinks_in_three_phases() -> None:
    attack = L1APGD(sp.Budget(k=4), 100, radius=2.0)
    threat = attack.budget.resolve((3, 8, 8))
    assert [attack._phase(threat, step) for step in (0, 29, 30, 59, 60, 99)] == [
        (6.0, 0, 30),
        (6.0, 0, 30),
        (4.0, 30, 30),
        (4.0, 30, 30),
        (2.0, 60, 40),
        (2.0, 60, 40),
    ]


def test_the_radius_left_out_follows_the_budget() -> None:
    for budget, radius in ((sp.Budget(k=16), 6.0), (sp.Budget(k=16, pattern=sp.Features(), eps=0.5), 1.0)):
        threat = budget.resolve((3, 8, 8))
        assert L1APGD(budget)._phase(threat, 99)[0] == pytest.approx(radius)


def test_every_step_costs_one_gradient_and_at_most_one_verdict() -> None:
    model, x = SmallConvNet(), images(5)
    y = labelled(model, x)
    result = L1APGD(sp.Budget(k=2), 20, targets=0, early_stop=False)(model, x, y)
    assert result.backwards.tolist() == [20] * 5
    assert bool((result.forwards > 20).all())
    assert bool((result.forwards <= 40).all())
