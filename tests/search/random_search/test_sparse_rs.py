"""Sparse-RS: candidates within the budget, what is accepted, exact query counts, every pattern."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import clone
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search.cluster_rs import ClusterRS
from sparsepgd.search.random_search.sparse_rs import SparseRS, State
from sparsepgd.threat import Frame
from sparsepgd.threat.norms import group_l0
from support.models import NoLook, SmallConvNet, images, labelled

BUDGETS = [
    sp.Budget(k=1),
    sp.Budget(k=9),
    sp.Budget(k=144),
    sp.Budget(k=3, eps=0.1),
    sp.Budget(k=5, pattern=sp.Features()),
    sp.Budget(k=1, pattern=sp.Rows()),
    sp.Budget(k=12, pattern=sp.Rows()),
    sp.Budget(k=7, pattern=sp.Columns()),
    sp.Budget(k=6, pattern=sp.Patches(3)),
    sp.Budget(k=1, pattern=sp.Patches(2, 5)),
    sp.Budget(k=2, pattern=sp.Shape.heart(5)),
    sp.Budget(k=1, pattern=sp.Shape.circle(6), eps=16 / 255),
    sp.Budget(k=1, pattern=Frame(2)),
    sp.Budget(k=3, allowed=torch.arange(144).view(12, 12) % 3 == 0),
    sp.Budget(k=48, allowed=torch.arange(144).view(12, 12) % 3 == 0),
    sp.Budget(k=2, pattern=sp.Patches(4), allowed=torch.arange(144).view(12, 12) < 40),
]


@pytest.mark.parametrize(("budget", "quantize"), [(one, i % 2 > 0) for i, one in enumerate(BUDGETS)])
def test_every_proposal_is_within_the_budget_and_shows_only_the_ends_of_the_box(
    budget: sp.Budget, quantize: bool
) -> None:
    model, x = SmallConvNet().eval(), images(3)
    asked: list[Tensor] = []

    def spy(points: Tensor) -> Tensor:
        asked.append(points.clone())
        return model(points)

    result = SparseRS(budget, 80, early_stop=False, quantize=quantize)(spy, x, labelled(model, x), seed=2)
    low, high = budget.resolve((3, 12, 12)).box(x, None, quantize)
    for points in asked[1:81]:
        changed = points != x
        assert bool((group_l0(changed, budget.pattern) <= budget.k).all())
        assert bool(((points == low) | (points == high) | ~changed).all())
        assert budget.allowed is None or not bool((changed.any(1) & ~budget.allowed).any())
    assert result.forwards.tolist() == [80] * 3
    assert len({points.numpy().tobytes() for points in asked[1:81]}) > 40


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_groups_stay_different_and_usable_without_synchronisation_with_the_host(budget: sp.Budget) -> None:
    attack, threat, x = SparseRS(budget, 40), budget.resolve((3, 12, 12)), images(4)
    allowed, usable = threat.masks(4) or (None, None)
    y, (low, high) = torch.arange(4), threat.box(x, allowed, quantize=False)
    rows = Images(x, y, y, torch.zeros(4), y, y, usable, low, high)
    attack.moves_of(threat)  # the tables are made once
    noise, step, seen = Noise(0), torch.zeros_like(y), []
    with NoLook():
        state = attack.start(threat, rows, noise)
        for i in range(40):
            attack.propose(threat, rows, state)
            loss = noise.uniform(Stream.COIN, y, i, (1,))[:, 0] + i / 20
            state = attack.update(threat, rows, state, Evaluation(loss, y > 4, None), step + i, noise)
            seen.append(state.tried.groups)
    for groups in seen:
        assert all(len(set(row)) == budget.k for row in groups.tolist())
        assert usable is None or bool(usable.flatten(1).gather(1, groups).all())
    full = budget.k == (math.prod(threat.grid) if usable is None else int(usable[0].sum()))
    assert len({str(groups.tolist()) for groups in seen}) > 3 or full


def test_queries_of_many_images_are_counted_exactly() -> None:
    model, x = SmallConvNet().eval(), images(9)
    y, calls = labelled(model, x), 0

    def counting(points: Tensor) -> Tensor:
        nonlocal calls
        calls += len(points)
        return model(points)

    result = SparseRS(sp.Budget(k=9), 40)(counting, x, y, batch_size=1)
    assert 0 < int(result.fooled.sum()) < 9
    assert calls == 9 + int(result.forwards.sum()) + int(result.fooled.sum()) + 9
    assert bool((result.forwards[~result.fooled] == 40).all())
    assert torch.equal(result.forwards, result.steps + 1)


def play(attack: SparseRS, losses: list[float], fooled: list[bool]) -> list[State]:
    """The states of one image while the model gives these answers."""
    threat, x = attack.budget.resolve((3, 6, 6)), images(1, size=6)
    y, (low, high) = torch.zeros(1, dtype=torch.int64), threat.box(x, None, quantize=False)
    rows = Images(x, y, y, torch.zeros(1), y, y, None, low, high)
    states = [attack.start(threat, rows, Noise(0))]
    for step, (loss, success) in enumerate(zip(losses, fooled, strict=True)):
        seen = Evaluation(torch.tensor([loss]), torch.tensor([success]), None)
        states.append(attack.update(threat, rows, clone(states[-1]), seen, y + step, Noise(0)))
    return states


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(2)], ids=repr)
def test_only_strict_improvement_or_success_is_accepted(pattern: sp.Pattern) -> None:
    losses = [1.0, 1.0, math.nan, 0.5, 1.5, 1.2, 2.0]
    fooled = [False] * 5 + [True, False]
    states = play(SparseRS(sp.Budget(k=2, pattern=pattern), 50), losses, fooled)
    accepted = [
        torch.equal(after.kept.groups, before.tried.groups) and torch.equal(after.kept.bits, before.tried.bits)
        for before, after in pairwise(states)
    ]
    assert accepted == [True, False, False, False, True, True, False]
    assert [float(state.loss) for state in states[1:]] == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.5, 1.2, 1.2])


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features(), sp.Rows(), sp.Patches(2)], ids=repr)
def test_a_model_that_never_improves_keeps_the_random_start(pattern: sp.Pattern) -> None:
    states = play(SparseRS(sp.Budget(k=2, pattern=pattern), 30), [0.0] * 30, [False] * 30)
    assert all(torch.equal(state.kept.groups, states[0].tried.groups) for state in states)
    assert all(torch.equal(state.kept.bits, states[0].tried.bits) for state in states)


def test_a_kernel_of_one_cell_is_the_attack_on_pixels() -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    pixels = SparseRS(sp.Budget(k=3), 40, p_init=0.5)(model, x, y)
    cells = SparseRS(sp.Budget(k=3, pattern=sp.Patches(1)), 40, p_init=0.5)(model, x, y)
    assert torch.equal(pixels.x_adv, cells.x_adv)


@pytest.mark.parametrize("kind", [SparseRS, ClusterRS])
def test_a_function_without_gradients_is_attacked(kind: type[SparseRS] | type[ClusterRS]) -> None:
    model, x = SmallConvNet().eval(), images(4)
    y = labelled(model, x)

    def black_box(points: Tensor) -> Tensor:
        return torch.from_numpy(model(points).detach().numpy())

    attack = kind(sp.Budget(k=9), 40)
    assert torch.equal(attack(black_box, x, y).x_adv, attack(model, x, y).x_adv)


@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(5)], ids=repr)
def test_targeted_goals_are_reached(pattern: sp.Pattern, loss: Any) -> None:
    model, x = SmallConvNet().eval(), images(6)
    y = labelled(model, x)
    target = (y + 1) % 5
    attack = SparseRS(sp.Budget(k=30 if pattern == sp.Pixels() else 3, pattern=pattern), 150, loss=loss)
    result = attack(model, x, y, goal=sp.Targeted(target))
    assert torch.equal(result.fooled, result.prediction == target)
    assert int(result.fooled.sum()) >= 2


def test_defaults_are_the_papers_and_the_originals_have_a_name() -> None:
    attack = SparseRS(sp.Budget(k=20))
    assert (attack.queries, attack.p_init, attack.loss, attack.rescale) == (10_000, 0.8, "ce", True)
    assert (attack.name, attack.evaluations, attack.needs_gradient) == ("sparse-rs", 10_000, False)
    assert SparseRS(sp.Budget(k=1, pattern=sp.Patches(5))).p_init == 0.4
    assert SparseRS(sp.Budget(k=1, pattern=Frame(2))).p_init == 0.5
    original = SparseRS.original(sp.Budget(k=20), 500)
    assert (original.queries, original.p_init, original.loss) == (500, 0.3, "margin")
    patch = SparseRS.original(sp.Budget(k=1, pattern=sp.Patches(5)))
    assert (patch.p_init, patch.loss) == (0.4, "margin")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": 0}, "queries=0; expected a number larger than 0"),
        ({"p_init": 0.0}, "p_init=0.0"),
        ({"p_init": 1.5}, "p_init=1.5; expected a share of the budget, 0 < p_init <= 1"),
        ({"location_period": 0}, "location_period=0"),
        ({"loss": "hinge"}, "loss='hinge'; use one of 'ce', 'margin', 'dlr'"),
    ],
)
def test_unusable_hyper_parameters_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        SparseRS(sp.Budget(k=1), **arguments)
