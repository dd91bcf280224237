"""LOAP: patches find the best place and colours, carry their colours, and stay where they may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import LOAP
from sparsepgd.baselines.loap import Placed, mask
from sparsepgd.errors import UnsupportedError
from sparsepgd.search.loop import Images
from sparsepgd.threat import Threat
from support.linear import problem, reached
from support.models import Linear, SmallConvNet, images, labelled

SINGLE = [
    sp.Budget(k=1, pattern=sp.Patches(3)),
    sp.Budget(k=1, pattern=sp.Rows()),
    sp.Budget(k=1, pattern=sp.Columns()),
    sp.Budget(k=1, pattern=sp.Frame(1)),
    sp.Budget(k=1, pattern=sp.Patches(2, 3), eps=0.2),
]


@pytest.mark.parametrize("budget", SINGLE, ids=repr)
def test_finds_the_best_colours_of_a_linear_model_and_with_restarts_the_best_place(budget: sp.Budget) -> None:
    weight, x, best = problem(budget, size=5)
    attack = LOAP(budget, steps=5, alpha=0.5, moves="none", restarts=40, early_stop=False, loss="margin")
    torch.testing.assert_close(reached(attack, weight, x), best, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("budget", SINGLE, ids=repr)
def test_moves_end_near_the_best_place_of_a_linear_model(budget: sp.Budget) -> None:
    """A move is judged by colours made for another place, so it may end in a local optimum."""
    weight, x, best = problem(budget, size=5)
    attack = LOAP(budget, steps=20, alpha=0.5, stride=1, restarts=4, early_stop=False, loss="margin")
    share = reached(attack, weight, x) / best
    assert bool((share <= 1 + 1e-5).all())
    assert float(share.min()) > 0.5
    assert float(share.mean()) > 0.85


def test_two_patches_do_better_than_one_on_a_linear_model() -> None:
    gains = []
    for k in (1, 2):
        budget = sp.Budget(k=k, pattern=sp.Patches(2))
        weight, x, best = problem(budget, size=5)
        gains.append(
            reached(LOAP(budget, 12, alpha=0.5, stride=1, restarts=4, early_stop=False, loss="margin"), weight, x)
        )
        assert bool((gains[-1] <= best + 1e-4).all())  # the sum of the k best is a bound also where they overlap
    assert bool((gains[1] > 1.3 * gains[0]).all())


def placed(k: int = 2, allowed: Tensor | None = None) -> tuple[Threat, Images, Placed]:
    """Two images of 6x6; 2x2 patches at (0, 0) and (3, 3), or the first alone; colours all different."""
    threat = sp.Budget(k=k, pattern=sp.Patches(2), allowed=allowed).resolve((3, 6, 6))
    x, y = images(2, size=6), torch.zeros(2, dtype=torch.int64)
    pixels, usable = threat.masks(2) or (None, None)
    low, high = threat.box(x, pixels, quantize=False)
    rows = Images(x, y, y, torch.zeros(2), torch.arange(2), torch.arange(2), usable, low, high)
    P = torch.arange(2 * 3 * 36).view(2, 3, 6, 6) / 300
    return threat, rows, Placed(P, torch.tensor([[0, 3 * 5 + 3]] * 2)[:, :k])


def test_colours_travel_with_the_patch() -> None:
    threat, rows, state = placed()
    moved = state.shifted(threat, rows, 0, torch.tensor([[2, 0], [0, 1]]))
    assert moved.q.tolist() == [[10, 18], [1, 18]]
    assert torch.equal(moved.P[0, :, 2:4, 0:2], state.P[0, :, 0:2, 0:2])
    assert torch.equal(moved.P[1, :, 0:2, 1:3], state.P[1, :, 0:2, 0:2])
    assert torch.equal(moved.P[:, :, 4:], state.P[:, :, 4:])  # the other patch keeps its own


def test_moves_that_are_not_allowed_leave_everything_as_it_is() -> None:
    threat, rows, state = placed()
    outside = state.shifted(threat, rows, 0, torch.tensor([[-1, 0], [0, -2]]))
    onto = state.shifted(threat, rows, 0, torch.tensor([[3, 3], [3, 3]]))
    allowed = torch.zeros(6, 6, dtype=torch.bool)
    allowed[:2] = True
    threat, rows, one = placed(1, allowed)
    forbidden = one.shifted(threat, rows, 0, torch.tensor([[2, 0], [3, 0]]))
    for before, after in ((state, outside), (state, onto), (one, forbidden)):
        assert torch.equal(after.q, before.q)
        assert torch.equal(after.P, before.P)


def test_mask_is_the_union_of_the_patches() -> None:
    threat, _, state = placed()
    expected = torch.zeros(6, 6)
    expected[0:2, 0:2] = expected[3:5, 3:5] = 1
    assert torch.equal(mask(threat, state.q), expected.expand(2, 1, 6, 6))


@pytest.mark.parametrize(("moves", "forwards"), [("full", 5), ("random", 2), ("none", 1)])
def test_a_step_costs_what_its_moves_cost(moves: Any, forwards: int) -> None:
    model, x = SmallConvNet(), images(3)
    y = labelled(model, x)
    attack = LOAP(sp.Budget(k=1, pattern=sp.Patches(2)), 7, moves=moves, restarts=1, early_stop=False)
    result = attack(model, x, y)
    assert result.backwards.tolist() == [7] * 3
    assert result.forwards.tolist() == [7 * forwards] * 3
    assert attack.evaluations == 7 * forwards


def test_axes_without_room_are_not_tried() -> None:
    model, x = Linear(torch.ones(1, 6, 6), -100.0), torch.full((1, 1, 6, 6), 0.5)
    for pattern, forwards in ((sp.Rows(), 3), (sp.Columns(), 3), (sp.Frame(1), 1)):
        attack = LOAP(sp.Budget(k=1, pattern=pattern), 4, restarts=1)
        assert int(attack(model, x, torch.tensor([0])).forwards) == 4 * forwards


def test_moves_help() -> None:
    model, x = SmallConvNet(), images(24)
    y = labelled(model, x)
    budget = sp.Budget(k=1, pattern=sp.Patches(3))
    fooled = {
        moves: int(LOAP(budget, 25, alpha=0.2, moves=moves, restarts=1)(model, x, y).fooled.sum())
        for moves in ("none", "full")
    }
    assert fooled["full"] > fooled["none"]


def test_perturb_equals_one_attempt_of_the_verified_attack() -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(6, dtype=torch.float64)
    y = labelled(model, x)
    y[0] = (y[0] + 1) % 5  # wrong from the start: comes back as it is
    attack = LOAP(sp.Budget(k=2, pattern=sp.Patches(3)), 6, alpha=0.1)
    model.train()
    x_adv = attack.perturb(model, x, y, seed=2)
    assert model.training
    assert torch.equal(x_adv[0], x[0])
    once = attack.once()(model, x, y, seed=2)
    torch.testing.assert_close(x_adv, once.x_adv, rtol=0, atol=1e-6)
    assert torch.equal(attack.perturb(model, x, (labelled(model, x) + 1) % 5), x)


def test_the_defaults_are_the_authors_for_evaluation() -> None:
    attack = LOAP(sp.Budget(k=1, pattern=sp.Patches(5)))
    assert (attack.steps, attack.alpha, attack.stride, attack.moves, attack.restarts, attack.targets) == (
        100,
        0.05,
        2,
        "full",
        30,
        0,
    )


def test_unusable_choices_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="moves='all'; use one of 'full', 'random', 'none'"):
        LOAP(sp.Budget(k=1, pattern=sp.Patches(5)), moves="all")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"LOAP supports Patches or .* not Pixels.*SparsePGD"):
        LOAP(sp.Budget(k=1))
