"""Cluster-RS in training: it goes on from what is kept, within the budget, and loses nothing of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.problem.goals import Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.search.noise import Noise
from sparsepgd.threat.norms import group_l0
from sparsepgd.training.adversaries import SparseAdversary, adversary, entered
from sparsepgd.training.annealing import short_search
from sparsepgd.training.data import Batch
from sparsepgd.training.settings import Settings, make_settings
from support.linear import EVERYTHING, problem
from support.models import Counting, Linear, NoLook, SmallConvNet, images, labelled
from support.quadrants import network, quadrants

SHAPE = (3, 12, 12)
ALLOWED = torch.arange(12) < 6  # the left half of the image


def wanted(budget: sp.Budget, **options: Any) -> Settings:
    return make_settings("anneal-at", budget, {"keep": True, "searched": 1.0, **options})


def attacked(budget: sp.Budget) -> tuple[SmallConvNet, Batch]:
    """A batch with the changes that one cycle leaves."""
    model, x = SmallConvNet(), images(32)
    clean = Batch(torch.arange(32), x, labelled(model, x))
    cycle = adversary(make_settings("anneal-at", budget, {"steps": 3}), SHAPE)
    return model.eval(), replace(clean, kept=cycle(model, clean, 0) - x)


def margin(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return Oracle(model, Untargeted(), "margin").evaluate(x, y, y, gradient=False).loss


@pytest.mark.parametrize(
    "budget",
    [
        sp.Budget(k=4),
        sp.Budget(k=16),
        sp.Budget(k=3, eps=0.1),
        sp.Budget(k=5, pattern=sp.Features()),
        sp.Budget(k=3, allowed=ALLOWED.expand(12, 12)),
    ],
    ids=repr,
)
def test_the_search_keeps_to_the_budget_and_its_loss_is_never_less_than_that_of_what_was_kept(
    budget: sp.Budget,
) -> None:
    model, given = attacked(budget)
    assert given.kept is not None
    before = margin(model, given.x + given.kept, given.y)
    points = group_l0(given.kept, budget.pattern)
    for iteration in range(3):
        x_adv = adversary(wanted(budget, queries=12), SHAPE)(model, given, iteration)
        after = margin(model, x_adv, given.y)
        assert bool((after >= before - 1e-6).all())
        assert int((after > before + 1e-6).sum()) > 4
        whole = budget.k * -(-points // budget.k)  # of the budget, as many times as the cycle had left to the image
        assert set(whole.tolist()) == {budget.k, 2 * budget.k, 3 * budget.k}
        assert bool((group_l0(x_adv - given.x, budget.pattern) <= whole).all())
        assert 0 <= float(x_adv.min()) <= float(x_adv.max()) <= 1
        assert float((x_adv - given.x).abs().max()) <= budget.eps + 1e-6
        if budget.allowed is not None:
            assert torch.equal(x_adv[..., 6:], given.x[..., 6:])
        before, given = after, replace(given, kept=x_adv - given.x)


def test_one_query_is_what_was_kept() -> None:
    model, given = attacked(sp.Budget(k=4))
    x_adv = adversary(wanted(sp.Budget(k=4), queries=1), SHAPE)(model, given, 0)
    torch.testing.assert_close(x_adv, given.x + given.kept)


@pytest.mark.parametrize("pattern", EVERYTHING, ids=repr)
def test_the_best_points_of_a_linear_model_are_found_from_a_poor_change(pattern: sp.Pattern) -> None:
    budget = sp.Budget(k=2, pattern=pattern)
    weight, x, best = problem(budget, size=4)
    model, y = Linear(weight, -1000.0), torch.zeros(4, dtype=torch.int64)
    threat, entering = entered(sp.ClusterRS(budget), x, y, torch.arange(4))
    kept = torch.zeros_like(x)
    kept[:, 0, 0, 0] = 0.01
    with borrowed(model, x.device):
        oracle = Oracle(model, Untargeted(), "margin")
        found = short_search(3000, 2, oracle, threat, entering, kept, Noise(0)) - x
    assert bool((group_l0(found, pattern) <= 2).all())
    assert bool(((found * weight).flatten(1).sum(1) >= 0.9 * best).all())


def test_with_nothing_kept_the_search_begins_with_squares() -> None:
    model, given = attacked(sp.Budget(k=16))
    given = replace(given, kept=torch.zeros_like(given.x))
    x_adv = adversary(wanted(sp.Budget(k=16), queries=2, multi_eps=1), SHAPE)(model, given, 0)
    changed = (x_adv != given.x).any(1)
    counts = changed.flatten(1).sum(1).tolist()
    assert set(counts) <= {0, 1, 2, 4}  # the square is not kept, or the border of the image cuts it
    assert counts.count(4) > 8


@pytest.mark.parametrize(("options", "queries"), [({}, 6), ({"steps_last": 7}, 14), ({"queries": 5}, 5)])
def test_a_search_costs_as_many_passes_as_a_cycle_unless_told(options: dict[str, Any], queries: int) -> None:
    model, given = attacked(sp.Budget(k=4))
    counting = Counting(model)
    adversary(wanted(sp.Budget(k=4), steps=3, **options), SHAPE)(counting, given, 0, 1.0)
    assert (counting.asked, counting.flowed) == (32 * queries, 0)
    cycle = make_settings("anneal-at", sp.Budget(k=4), {"keep": True, "steps": 3})
    counting.asked = 0
    adversary(cycle, SHAPE)(counting, given, 0)
    assert counting.asked + counting.flowed == 32 * 6


def test_a_search_never_looks_at_the_device() -> None:
    model, given = attacked(sp.Budget(k=4))
    made = adversary(wanted(sp.Budget(k=4)), SHAPE)
    with NoLook():
        x_adv = made(model, given, 0)
    assert not torch.equal(x_adv, given.x)


def test_shares_of_the_batches_are_searched_and_mixed_and_the_rest_is_as_without() -> None:
    budget = sp.Budget(k=2)
    options = {"keep": True, "mixed": 0.2, "searched": 0.3, "steps": 2}
    made = adversary(make_settings("anneal-at", budget, options), SHAPE)
    before = adversary(make_settings("anneal-at", budget, {**options, "searched": 0.0}), SHAPE)
    assert isinstance(made, SparseAdversary)
    kinds = [made.attack(i).name for i in range(600)]
    assert len(set(kinds)) == 3
    assert 140 <= kinds.count("cluster-rs") <= 220
    assert 240 <= kinds.count("anneal") <= 360
    model, given = attacked(budget)
    for iteration in range(20):
        same = torch.equal(made(model, given, iteration), before(model, given, iteration))
        assert same == (kinds[iteration] != "cluster-rs")
    assert {"cluster-rs", "anneal"} <= {*kinds[:20]}


def test_of_several_budgets_those_of_points_are_searched() -> None:
    others = (sp.Budget(k=1, pattern=sp.Rows()), sp.Budget(k=1, pattern=sp.Patches(3)))
    made = adversary(wanted(sp.Budget(k=2), others=others, multi_eps_others=1), SHAPE)
    assert isinstance(made, SparseAdversary)
    kinds = {(attack.name, attack.budget.pattern, attack.budget.k) for attack in map(made.attack, range(60))}
    assert kinds == {("cluster-rs", sp.Pixels(), 6), ("anneal", sp.Rows(), 1), ("anneal", sp.Patches(3), 1)}


def test_what_is_found_is_kept_for_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a model that does not change, and without crops, the loss of every image rises from epoch to epoch."""
    model, data, seen = network(norm=False), quadrants(64), []
    called = SparseAdversary.__call__

    def spy(self: SparseAdversary, asked: Any, given: Batch, iteration: int, done: float = 0.0) -> Tensor:
        x_adv = called(self, asked, given, iteration, done)
        with borrowed(asked, x_adv.device):
            seen.append(torch.empty(64).index_copy(0, given.rows, margin(asked, x_adv, given.y)))
        return x_adv

    monkeypatch.setattr(SparseAdversary, "__call__", spy)
    options = {"batch": 64, "momentum": 0.0, "weight_decay": 0.0, "lr": 1e-12, "augment": "none", "held_out": 0}
    sp.train(model, data, "anneal-at", sp.Budget(k=3), epochs=4, keep=True, searched=1.0, steps=3, **options)
    assert len(seen) == 4
    for before, after in pairwise(seen):
        assert bool((after >= before - 1e-3).all())  # what is kept is rounded to half precision
    assert float((seen[3] > seen[0] + 1e-3).float().mean()) > 0.5
