"""Cluster-RS: proposals within the budget, what is accepted, exact query counts, squares first and points later."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import clone
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search.cluster_rs import ClusterRS, State
from sparsepgd.threat.norms import group_l0
from support.linear import problem, reached
from support.models import NoLook, SmallConvNet, images, labelled

THIRD = torch.arange(144).view(12, 12) % 3 == 0
BUDGETS = [
    sp.Budget(k=1),
    sp.Budget(k=9),
    sp.Budget(k=40),
    sp.Budget(k=144),
    sp.Budget(k=3, eps=0.1),
    sp.Budget(k=20, pattern=sp.Features()),
    sp.Budget(k=432, pattern=sp.Features()),
    sp.Budget(k=3, allowed=THIRD),
    sp.Budget(k=48, allowed=THIRD),
]


def rows(budget: sp.Budget, x: Tensor) -> Images:
    """The images as the loop hands them over; row i is image i, of class i, with the loss 0."""
    threat = budget.resolve((x.shape[1], x.shape[2], x.shape[3]))
    allowed, usable = threat.masks(len(x)) or (None, None)
    y, (low, high) = torch.arange(len(x)), threat.box(x, allowed, quantize=False)
    return Images(x, y, y, torch.zeros(len(x)), y, y, usable, low, high)


@pytest.mark.parametrize(("budget", "quantize"), [(one, i % 2 > 0) for i, one in enumerate(BUDGETS)])
def test_every_proposal_is_within_the_budget(budget: sp.Budget, quantize: bool) -> None:
    model, x = SmallConvNet().eval(), images(3)
    asked: list[Tensor] = []

    def spy(points: Tensor) -> Tensor:
        asked.append(points.clone())
        return model(points)

    attack = ClusterRS(budget, 80, early_stop=False, quantize=quantize)
    result = attack(spy, x, labelled(model, x), seed=2)
    low, high = budget.resolve((3, 12, 12)).box(x, None, quantize)
    for points in asked[1:81]:
        changed = points != x
        assert bool((group_l0(changed, budget.pattern) <= budget.k).all())
        assert bool(((points >= low) & (points <= high)).all())
        assert budget.allowed is None or not bool((changed.any(1) & ~budget.allowed).any())
        assert not quantize or torch.equal((points * 255).round() / 255, points)
    assert result.forwards.tolist() == [80] * 3
    assert len({points.numpy().tobytes() for points in asked[1:81]}) > 40


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_the_budget_is_used_up_without_synchronisation_with_the_host(budget: sp.Budget) -> None:
    attack, threat, here = ClusterRS(budget, 40), budget.resolve((3, 12, 12)), rows(budget, images(4))
    noise, step = Noise(0), torch.zeros_like(here.y)
    with NoLook():
        state = attack.start(threat, here, noise)
        for i in range(40):
            attack.propose(threat, here, state)
            loss = noise.uniform(Stream.COIN, here.y, i, (1,))[:, 0] + i / 20
            seen = Evaluation(loss, here.y > 4, None)
            state = attack.update(threat, here, state, seen, step + i, noise)
    assert state.kept.mask.flatten(1).sum(1).tolist() == [budget.k] * 4
    assert not bool((state.kept.mask & ~here.usable).any() if here.usable is not None else False)
    assert not bool((state.kept.value * ~state.kept.mask).any())


def play(attack: ClusterRS, losses: list[float], fooled: list[bool]) -> list[State]:
    """The states of one image while the model gives these answers."""
    threat, here = attack.budget.resolve((3, 12, 12)), rows(attack.budget, images(1))
    states = [attack.start(threat, here, Noise(0))]
    for step, (loss, success) in enumerate(zip(losses, fooled, strict=True)):
        seen = Evaluation(torch.tensor([loss]), torch.tensor([success]), None)
        states.append(attack.update(threat, here, clone(states[-1]), seen, here.y + step, Noise(0)))
    return states


def test_what_is_not_worse_is_accepted_and_a_success_beats_a_failure() -> None:
    losses = [-1.0, 1.0, 1.0, math.nan, 0.5, -math.inf, 0.2, 2.0]
    fooled = [False] * 6 + [True, False]
    states = play(ClusterRS(sp.Budget(k=2), 50), losses, fooled)
    accepted = [torch.equal(after.kept.value, before.tried.value) for before, after in pairwise(states)]
    assert accepted == [False, True, True, False, False, False, True, False]
    assert [float(state.loss) for state in states[1:]] == pytest.approx([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.2])


def test_a_model_that_only_gets_worse_keeps_the_clean_image() -> None:
    states = play(ClusterRS(sp.Budget(k=20), 40), [-1.0] * 40, [False] * 40)
    assert not any(bool(state.kept.mask.any()) for state in states)
    assert int(states[0].tried.mask.sum()) == 20  # the random start


def test_squares_come_first_and_single_points_later() -> None:
    """From a clean image that is never left each change shows its own size; at the border squares are cut."""
    states = play(ClusterRS(sp.Budget(k=36), 200), [-1.0] * 200, [False] * 200)
    sizes = [int(state.tried.mask.sum()) for state in states]
    assert [max(sizes[1:40]), max(sizes[41:80]), max(sizes[81:])] == [9, 4, 1]
    colours = [state.tried.value.flatten(2)[:, :, state.tried.mask.flatten()].sign().unique(dim=2) for state in states]
    assert all(colour.shape[2] == 1 for colour in colours[1:])  # one a square


def test_late_points_are_beside_others_more_often_than_by_chance() -> None:
    attack = ClusterRS(sp.Budget(k=2), 2000)
    threat, here = attack.budget.resolve((3, 32, 32)), rows(attack.budget, images(1, size=32))
    state, beside = attack.start(threat, here, Noise(0)), 0
    seen = Evaluation(torch.tensor([1.0]), torch.tensor([False]), None)
    state = attack.update(threat, here, state, seen, here.y, Noise(0))
    worse = dataclasses.replace(seen, loss=torch.tensor([0.0]))
    around = torch.nn.functional.max_pool2d(state.kept.mask.float(), 3, 1, 1) > 0
    for step in range(1500, 1600):
        state = attack.update(threat, here, state, worse, here.y + step, Noise(0))
        beside += bool((state.tried.mask & ~state.kept.mask & around).any())
    assert 20 <= beside <= 60  # half of the four fifths that move; by chance 2 %


@pytest.mark.parametrize("budget", [sp.Budget(k=4), sp.Budget(k=4, pattern=sp.Features())], ids=repr)
def test_the_best_points_of_a_linear_model_are_found(budget: sp.Budget) -> None:
    weight, x, best = problem(budget)
    assert bool((reached(ClusterRS(budget, 3000), weight, x) > 0.9 * best).all())


@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(2), sp.Frame(1)], ids=repr)
def test_structured_patterns_are_refused(pattern: sp.Pattern) -> None:
    with pytest.raises(UnsupportedError, match=r"supports Pixels or Features.*or SparseRS"):
        ClusterRS(sp.Budget(k=1, pattern=pattern))


@pytest.mark.parametrize("coarse", [-0.1, 1.1, math.nan])
def test_a_share_of_the_queries_is_between_0_and_1(coarse: float) -> None:
    with pytest.raises(UnsupportedError, match="coarse="):
        ClusterRS(sp.Budget(k=1), coarse=coarse)
