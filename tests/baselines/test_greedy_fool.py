"""GreedyFool: the fewest pixels of a linear model, the increase stopped at k, the reduction of the paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import GreedyFool
from sparsepgd.errors import UnsupportedError
from support import linear
from support.linear import EVERYTHING, grey
from support.models import Linear, SmallConvNet, images, labelled


@pytest.mark.parametrize("pattern", EVERYTHING, ids=repr)
@pytest.mark.parametrize("eps", [1.0, 0.2])
@pytest.mark.parametrize("needed", [1, 2, 5, 9])
def test_needs_the_fewest_pixels_of_a_linear_model_or_one_more(pattern: sp.Pattern, eps: float, needed: int) -> None:
    """One more, because channels of a smaller slope move more slowly than the others and are not at their end yet."""
    weight, x, gains = grey(pattern, eps)
    score = float((weight * x).sum())
    model = Linear(weight, -score - float(gains[:needed].sum()) + 0.2 * float(gains[needed]))
    native = GreedyFool(sp.Budget(k=EVERYTHING[pattern], pattern=pattern, eps=eps), early_stop=False)
    result = native(model, x, torch.tensor([0]))
    assert bool(result.fooled)
    assert needed <= int(result.groups) <= needed + 1


@pytest.mark.parametrize("slack", [0.01, -0.01])
def test_stops_the_increase_at_k_and_fools_if_and_only_if_that_suffices(slack: float) -> None:
    weight, x, gains = grey(sp.Pixels())
    model = linear.with_slack(weight, x, gains[:4].sum(), slack)
    result = GreedyFool(sp.Budget(k=4), steps=200)(model, x, torch.tensor([0]))
    assert bool(result.fooled) is (slack > 0)
    assert int(result.l0) == 4
    assert int(result.forwards) < 60  # pixels at the end of their range move no more: the rest is not asked


def test_comes_within_six_tenths_of_the_best_where_the_room_differs() -> None:
    """Greedy ranks by the slope, not by the slope times the room that the image leaves."""
    budget = sp.Budget(k=4)
    weight, x, best = linear.problem(budget)
    found = linear.reached(GreedyFool(budget, steps=100), weight, x)
    assert bool((found <= best * (1 + 1e-5)).all())
    assert float((found / best).min()) > 0.6


def test_one_pixel_joins_at_each_step_and_those_that_joined_move_on() -> None:
    seen: list[Tensor] = []
    weight, x, _ = grey(sp.Pixels())
    linear_model = Linear(weight, -1000.0)

    def model(points: Tensor) -> Tensor:
        seen.append(points.detach().clone())
        return linear_model(points)

    GreedyFool(sp.Budget(k=3), steps=6, pace=0.1)(model, x, torch.tensor([0]))
    points = torch.cat(seen[1:-2])  # without the clean pass, the loss of the claim and the verdict
    assert (points != x).any(1).flatten(1).sum(1).tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert points.diff(dim=0).abs().amax((1, 2, 3)).tolist() == pytest.approx([0.1] * 6, abs=1e-6)
    assert bool((points.diff(dim=0) != 0).any(1).flatten(1).sum(1).eq(torch.tensor([1, 2, 3, 3, 3, 3])).all())


def test_the_reduction_only_takes_pixels_away() -> None:
    model, x = SmallConvNet(), images(8)
    y = labelled(model, x)
    first = GreedyFool(sp.Budget(k=144), steps=150)(model, x, y)
    reduced = GreedyFool(sp.Budget(k=144), steps=150, early_stop=False)(model, x, y)
    assert torch.equal(first.fooled, reduced.fooled)
    assert int(first.fooled.sum()) >= 4
    assert bool((reduced.l0 <= first.l0)[first.fooled].all())
    assert int(reduced.l0.sum()) < int(first.l0.sum())
    changed = (reduced.x_adv != x).any(1) & first.fooled[:, None, None]
    assert bool(((first.x_adv != x).any(1) | ~changed).all())


@pytest.mark.parametrize(
    "arguments", [{"steps": 0}, {"pace": 0}, {"magnitudes": 0}, {"reductions": 0}, {"loss": "hinge"}]
)
def test_unusable_hyper_parameters_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        GreedyFool(sp.Budget(k=1), **arguments)
