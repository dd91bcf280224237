"""The one-pixel attack: finds the best pixel of a linear model, and evolves as differential evolution does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import OnePixel
from sparsepgd.baselines.one_pixel import _three
from sparsepgd.errors import UnsupportedError
from support import linear
from support.models import SmallConvNet, images, labelled


@pytest.mark.parametrize(
    "budget", [sp.Budget(k=1), sp.Budget(k=1, pattern=sp.Features()), sp.Budget(k=1, eps=0.2)], ids=repr
)
def test_comes_near_the_best_pixel_of_a_linear_model(budget: sp.Budget) -> None:
    """A random search of a 5-dimensional space with many local optima: a tenth short is what is asked."""
    weight, x, best = linear.problem(budget)
    found = linear.reached(OnePixel(budget, population=200, generations=40, early_stop=False, loss="margin"), weight, x)
    assert bool((found <= best * (1 + 1e-5)).all())
    assert float((found / best).min()) > 0.9


def test_several_pixels_gain_more_than_one() -> None:
    weight, x, _ = linear.problem(sp.Budget(k=1))
    one, three = (
        linear.reached(OnePixel(sp.Budget(k=k), 100, 40, early_stop=False, loss="margin"), weight, x) for k in (1, 3)
    )
    assert bool((three > 1.5 * one).all())


def test_the_loss_of_a_population_never_falls() -> None:
    """A child takes the place of its parent only if it is better, so longer runs are at least as good."""
    weight, x, _ = linear.problem(sp.Budget(k=2))
    runs = [
        linear.reached(OnePixel(sp.Budget(k=2), 20, g, early_stop=False, loss="margin"), weight, x) for g in (1, 5, 20)
    ]
    assert bool((runs[1] >= runs[0]).all())
    assert bool((runs[2] >= runs[1]).all())
    assert bool((runs[2] > runs[0]).any())


def test_the_first_population_is_tried_and_its_size_is_counted() -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    result = OnePixel(sp.Budget(k=20), 30, 5)(model, x, y)
    assert set(result.forwards.tolist()) <= {30 * g for g in range(1, 7)}
    assert int(result.forwards[~result.fooled].min()) == 180
    assert result.backwards.tolist() == [0] * 6


def test_places_and_colours_of_the_first_population_are_the_papers() -> None:
    """Places uniform, colours N(128, 127) / 255, cut at the ends of the range."""
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append(x.clone())
        return torch.tensor([[2.0, 0.0]]).repeat(len(x), 1)

    x = torch.full((1, 1, 8, 8), 0.123)
    OnePixel(sp.Budget(k=1), 4000, 1)(model, x, torch.tensor([0]), batch_size=100)
    first = torch.cat([one for one in seen if len(one) == 100][:40])
    place = (first != 0.123).flatten(1).float().sum(0) / 4000
    colour = first[first != 0.123]
    assert float((place - 1 / 64).abs().max()) < 0.01
    assert float((colour == 0).float().mean()) == pytest.approx(0.157, abs=0.02)  # Phi(-128 / 127)
    assert float(colour.median()) == pytest.approx(0.5, abs=0.02)


def test_parents_of_a_child_are_three_different_members() -> None:
    u = torch.rand(5000, 3, generator=torch.Generator().manual_seed(0))
    a, b, c = _three(u, 4)
    assert not bool(((a == b) | (b == c) | (a == c)).any())
    for one in (a, b, c):
        assert torch.bincount(one, minlength=4).tolist() == pytest.approx([1250] * 4, rel=0.1)


def test_defaults_are_the_papers() -> None:
    attack = OnePixel(sp.Budget(k=1))
    assert (attack.population, attack.generations, attack.scale) == (400, 100, 0.5)
    assert attack.evaluations == 400 * 101


@pytest.mark.parametrize(("name", "value"), [("population", 3), ("generations", 0), ("scale", 0)])
def test_unusable_hyper_parameters_are_refused(name: str, value: int) -> None:
    """They are the largest values that are too small."""
    with pytest.raises(UnsupportedError, match=f"{name}={value}; expected a number larger than {value}"):
        OnePixel(sp.Budget(k=1), **{name: value})
