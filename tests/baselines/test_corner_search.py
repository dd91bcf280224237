"""CornerSearch: one pixel exactly, unions of the best, the orderings and the drawing of the paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import CornerSearch
from sparsepgd.errors import UnsupportedError
from support import linear


@pytest.mark.parametrize(
    "budget", [sp.Budget(k=1), sp.Budget(k=1, pattern=sp.Features()), sp.Budget(k=1, eps=0.2)], ids=repr
)
def test_finds_the_best_single_change_of_a_linear_model(budget: sp.Budget) -> None:
    weight, x, best = linear.problem(budget)
    found = linear.reached(CornerSearch(budget, early_stop=False, loss="margin"), weight, x)
    torch.testing.assert_close(found, best)


@pytest.mark.parametrize("budget", [sp.Budget(k=3), sp.Budget(k=3, pattern=sp.Features())], ids=repr)
def test_finds_the_best_union_of_a_linear_model(budget: sp.Budget) -> None:
    """Several corners of the best pixel rank high, so the list must be longer than k."""
    weight, x, best = linear.problem(budget)
    found = linear.reached(
        CornerSearch(budget, best=16, samples=2000, levels=1, early_stop=False, loss="margin"), weight, x
    )
    assert bool((found <= best * (1 + 1e-5)).all())
    assert float((found / best).min()) > 0.9


def test_fools_a_linear_model_if_and_only_if_one_pixel_suffices() -> None:
    weight, x, best = linear.problem(sp.Budget(k=1))
    for i in range(len(x)):
        for slack in (0.01, -0.01):
            model = linear.with_slack(weight, x[i : i + 1], best[i : i + 1], slack)
            result = CornerSearch(sp.Budget(k=1))(model, x[i : i + 1], torch.tensor([0]), batch_size=100)
            assert bool(result.fooled) is (slack > 0)
            assert int(result.forwards) == 8 * 8 * 8


def test_orders_one_pixel_changes_for_each_class_and_by_the_margin() -> None:
    """The first pixel feeds class 1 only, the second class 2: each ordering leads to its own."""

    def model(x: Tensor) -> Tensor:
        one, two = x[:, 0, 0, 0], x[:, 0, 1, 1]
        return torch.stack([torch.full_like(one, 1.5), one, 2 * two - 1], 1)

    attack = CornerSearch(sp.Budget(k=2), best=1, samples=1)
    seen: list[Tensor] = []

    def watched(x: Tensor) -> Tensor:
        seen.append(x.clone())
        return model(x)

    attack(watched, torch.full((1, 1, 2, 2), 0.25), torch.tensor([0]), batch_size=100)
    unions = [(x != 0.25).nonzero()[:, 2:].tolist() for x in seen[2:-2]]  # without clean, single, final ones
    by_class = {1: [[0, 0]], 2: [[1, 1]]}
    assert unions == [unions[0], by_class[1], by_class[2]]  # in the place of the true class: the margin
    assert unions[0] in by_class.values()


def test_later_draws_prefer_the_better_ranked() -> None:
    """Of N = 2 the first has the odds (N^2 - (N - 1)^2) / N^2 = 3 / 4."""
    counts = torch.zeros(2)

    def model(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if len(x) == 100:
            counts.add_((flat[:, :2] > 0.5).sum(0))
        score = flat[:, 0] * 2 + flat[:, 1] - 9
        return torch.stack([torch.zeros_like(score), score], 1)

    x = torch.full((1, 1, 1, 3), 0.1)
    CornerSearch(sp.Budget(k=2), best=2, samples=600)(model, x, torch.tensor([0]), batch_size=100)
    first = 1 - (1 / 4) ** 2  # the better one is among two draws
    second = 1 - (3 / 4) ** 2
    torch.testing.assert_close(counts / 1200, torch.tensor([first, second]), rtol=0, atol=0.04)  # two orderings


def test_an_image_that_one_pixel_fools_is_asked_no_more() -> None:
    weight, x, best = linear.problem(sp.Budget(k=1))
    model = linear.with_slack(weight, x[:1], best[:1], 0.01)
    x = torch.cat([x[:1], (x[:1] - 0.05 * weight.sign()).clamp(0, 1)])  # the second is further from the decision
    result = CornerSearch(sp.Budget(k=3), samples=20, best=20)(model, x, torch.zeros(2, dtype=torch.int64))
    assert bool(result.fooled[0])
    assert int(result.l0[0]) == 1
    assert int(result.forwards[0]) == 8 * 8 * 8
    assert int(result.forwards[1]) > 8 * 8 * 8


def test_defaults_are_the_papers() -> None:
    attack = CornerSearch(sp.Budget(k=20))
    assert (attack.best, attack.samples, attack.candidates) == (100, 3000, None)
    assert attack.sparsities == list(range(2, 21))
    assert attack.evaluations == 8192 + 19 * 10 * 3000
    assert CornerSearch(sp.Budget(k=20), levels=3).sparsities == [7, 14, 20]


@pytest.mark.parametrize("arguments", [{"best": 0}, {"samples": 0}, {"candidates": 0}, {"levels": -1}])
def test_unusable_hyper_parameters_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="expected a number larger than 0"):
        CornerSearch(sp.Budget(k=1), **arguments)
