"""Losses: values computed by hand, and the choice of a loss for each image."""

from __future__ import annotations

import pytest
import torch

import sparsepgd as sp
from sparsepgd.problem.goals import LOSSES, Goal, cross_entropy, dlr, margin

LOGITS = torch.tensor([[1.0, 4.0, 2.0, 3.0, -1.0], [5.0, 0.0, 1.0, 2.0, 4.0]])


def test_dlr_is_the_margin_over_the_spread_of_the_largest_logits() -> None:
    label = torch.tensor([1, 1])
    expected = torch.tensor([(3 - 4) / (4 - (2 + 1) / 2), (5 - 0) / (5 - (2 + 1) / 2)])
    torch.testing.assert_close(dlr(LOGITS, label), expected)
    torch.testing.assert_close(sp.Targeted(1).loss(LOGITS, label, "dlr"), -expected)


def test_dlr_of_three_classes_is_relative_to_the_last_of_them() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0]])
    torch.testing.assert_close(dlr(logits, torch.tensor([1])), torch.tensor([(2 - 4) / (4 - 1)]))


@pytest.mark.parametrize("classes", [3, 4, 5, 10])
def test_dlr_does_not_depend_on_the_scale_and_offset_of_the_logits(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, classes, dtype=torch.float64, generator=generator)
    label = torch.randint(0, classes, (20,), generator=generator)
    torch.testing.assert_close(dlr(1000 * logits - 7, label), dlr(logits, label))
    assert torch.equal(dlr(logits, label) > 0, margin(logits, label) > 0)


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_increases_towards_success_for_any_number_of_classes(name: str, classes: int) -> None:
    logits = torch.linspace(1, -1, classes)[None].repeat(2, 1).requires_grad_()
    (g,) = torch.autograd.grad(LOSSES[name](logits, torch.zeros(2, dtype=torch.int64)).sum(), logits)
    assert bool((g[:, 0] < -0.01).all())
    assert bool((g[:, 1] > 0.01).all())


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("goal", [sp.Untargeted(), sp.Targeted(1)], ids=repr)
def test_equal_logits_give_finite_losses_and_no_nan_gradients(goal: Goal, classes: int) -> None:
    logits = torch.full((3, classes), 0.5, requires_grad=True)
    chosen = goal.chosen_loss(logits, torch.ones(3, dtype=torch.int64), torch.arange(3))
    (g,) = torch.autograd.grad(chosen.sum(), logits)
    assert bool(chosen.isfinite().all())
    assert not bool(g.isnan().any())
    assert bool(g[0].isfinite().all())


@pytest.mark.parametrize("goal", [sp.Untargeted(), sp.Targeted(2)], ids=["untargeted", "targeted"])
def test_the_loss_is_chosen_row_by_row(goal: Goal) -> None:
    label = torch.tensor([2, 2, 2, 2, 2, 2])
    logits = torch.cat([LOGITS] * 3)
    which = torch.tensor([0, 1, 2, 2, 1, 0])
    names = list(LOSSES)
    expected = [goal.loss(logits, label, names[place])[row] for row, place in enumerate(which.tolist())]  # type: ignore
    assert torch.equal(goal.chosen_loss(logits, label, which), torch.stack(expected))


def test_the_gradient_of_a_chosen_loss_is_that_of_the_loss_alone() -> None:
    """Four equal largest logits make the DLR of the first row infinite, which must not affect the chosen losses."""
    ties = torch.tensor([[3.0, 3.0, 3.0, 3.0, 0.0], [1.0, 4.0, 2.0, 3.0, -1.0]])
    label = torch.tensor([4, 1])
    for place, loss in enumerate([cross_entropy, margin]):
        alone, logits = ties.clone().requires_grad_(), ties.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(alone, label).sum(), alone)
        chosen = sp.Untargeted().chosen_loss(logits, label, torch.tensor([place, place]))
        (g,) = torch.autograd.grad(chosen.sum(), logits)
        torch.testing.assert_close(g, expected)
