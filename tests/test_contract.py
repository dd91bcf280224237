"""The contract matrix: every attack, pattern and batch size keeps its promises on an ordinary network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import sparsepgd as sp
from sparsepgd import options
from support.budgets import BUDGETS
from support.models import SmallConvNet, images, labelled
from support.promises import broken, left_behind, mixed

ATTACKS: dict[str, Callable[[sp.Budget], sp.Attack]] = {
    "spgd-unprojected": lambda budget: sp.SparsePGD(budget, steps=12, alpha=0.25, beta=0.25),
    "spgd-projected": lambda budget: sp.SparsePGD(budget, steps=12, gradient="projected", alpha=0.25, beta=0.25),
    "spgd-random": lambda budget: sp.SparsePGD(budget, steps=12, gradient="random"),
    "spgd-full-length": lambda budget: sp.SparsePGD(budget, steps=12, early_stop=False, alpha=0.25, beta=0.25),
    "spgd-margin": lambda budget: sp.SparsePGD(budget, steps=12, loss="margin", alpha=0.25),
    "sparse-rs": lambda budget: sp.SparseRS(budget, queries=13),
    "sparse-rs-original": lambda budget: sp.SparseRS.original(budget, queries=13),
    "anneal": lambda budget: sp.SparseAnneal(budget, 13),
    "anneal-fewest": lambda budget: sp.SparseAnneal(budget, 13, early_stop=False, quantize=True),
    "spgd-quantized": lambda budget: sp.SparsePGD(budget, steps=12, quantize=True, alpha=0.25, beta=0.25),
}


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_results_are_within_budget_aligned_and_true(name: str, budget: sp.Budget, batch: int) -> None:
    model, x = SmallConvNet().eval(), images(batch)
    y = labelled(model, x)
    y[batch // 2] = (y[batch // 2] + batch // 7) % 5  # in the batch of seven one is wrong from the start
    attack = ATTACKS[name](budget)
    result = attack(model, x, y, seed=1)
    assert broken(attack, result, model, x, y) == []
    assert bool((result.steps <= 12).all())


@pytest.mark.parametrize("name", ATTACKS)
def test_model_and_random_state_are_untouched(name: str) -> None:
    assert left_behind(ATTACKS[name](sp.Budget(k=3)), *mixed()) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_empty_and_wholly_wrong_batches_give_aligned_results(name: str) -> None:
    model, x = SmallConvNet(), images(3)
    attack = ATTACKS[name](sp.Budget(k=3))
    empty = attack(model, x[:0], torch.zeros(0, dtype=torch.int64))
    assert len(empty) == 0
    assert empty.x_adv.shape == (0, 3, 12, 12)
    wrong = attack(model, x, (labelled(model, x) + 1) % 5)
    assert wrong.robust_accuracy == 0
    assert wrong.clean_accuracy == 0
    assert not bool(wrong.fooled.any())
    assert torch.equal(wrong.x_adv, x)
    assert wrong.forwards.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["sparse-rs", "cluster-rs", "spgd-projected"])
@pytest.mark.parametrize("fools", [False, True])
def test_passes_are_counted_exactly(name: str, fools: bool) -> None:
    weight, calls = torch.zeros(3 * 12 * 12, 2), []

    def model(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        success = fools and len(calls) > 8  # the clean pass, then seven points in vain
        return torch.tensor([[0.0, 3.0]] if success else [[3.0, 0.0]]) + x.flatten(1) @ weight

    attack = options.attack(name, sp.Budget(k=3), 20, queries=20)
    result = attack(model, images(1), torch.tensor([0]), batch_size=1)
    confirmed = 2 if fools else 1  # a success is confirmed when it is found, all are verified at the end
    assert int(result.forwards) == (8 if fools else attack.evaluations)
    assert int(result.backwards) == int(result.forwards) * attack.needs_gradient
    assert sum(calls) == 1 + int(result.forwards) + confirmed
    assert bool(result.fooled) is fools


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("accept", ["target", "any"])
def test_targeted_goals_are_reached_as_stated(name: str, accept: str) -> None:
    model, x = SmallConvNet().eval(), images(6)
    y = labelled(model, x)
    target = (y + 1) % 5
    attack = ATTACKS[name](sp.Budget(k=40))
    result = attack(model, x, y, goal=sp.Targeted(target, accept=accept))  # type: ignore[arg-type]
    with torch.no_grad():
        said = model(result.x_adv).argmax(1)
    assert torch.equal(result.fooled, said == target if accept == "target" else said != y)
    assert bool(result.fooled.any()) or not attack.needs_gradient  # a few queries of a black box need not do


@pytest.mark.parametrize(
    ("lie", "promise"),
    [
        (lambda result, x: {"x_adv": 1 - x}, "at most k groups change"),
        (lambda result, x: {"x_adv": 1 - x}, "no value changes by more than eps"),
        (lambda result, x: {"x_adv": 1 - x}, "only allowed pixels change"),
        (lambda result, x: {"x_adv": 1 - x}, "what is wrong from the start stays as it is"),
        (lambda result, x: {"x_adv": result.x_adv.double()}, "x_adv has the shape and the type of x"),
        (lambda result, x: {"x_adv": result.x_adv + 2 * (result.x_adv != x)}, "x_adv lies in [0, 1]"),
        (lambda result, x: {"x_adv": (result.x_adv + x) / 2}, "quantized values are on the 8-bit grid"),
        (lambda result, x: {"groups": result.groups - 1}, "groups are the fewest that cover the change"),
        (lambda result, x: {"l0": result.l0 + 1}, "l0 counts the changed pixels"),
        (lambda result, x: {"fooled": ~result.fooled}, "fooled is right before and wrong after"),
        (lambda result, x: {"clean_correct": ~result.clean_correct}, "clean_correct is what the model says of x"),
        (lambda result, x: {"prediction": result.prediction + 1}, "prediction is what the model says of x_adv"),
        (lambda result, x: {"forwards": result.forwards + 1}, "what is wrong from the start is not searched"),
        (lambda result, x: {"broken_by": ("another",) * len(x)}, "broken_by names the attack of the fooled"),
    ],
)
def test_a_result_that_breaks_a_promise_is_told_so(lie: Callable[..., dict[str, Any]], promise: str) -> None:
    """Otherwise the matrix would hold for whatever comes."""
    model, x = SmallConvNet().eval(), images(7)
    y = labelled(model, x)
    y[3] = (y[3] + 1) % 5
    budget = sp.Budget(k=3, eps=0.5, allowed=torch.arange(144).view(12, 12) % 3 == 0)
    attack = sp.SparsePGD(budget, steps=12, quantize=True)
    result = attack(model, x, y)
    assert broken(attack, result, model, x, y) == []
    assert promise in broken(attack, dataclasses.replace(result, **lie(result, x)), model, x, y)


def test_a_call_that_leaves_something_behind_is_told_so() -> None:
    def careless(model: SmallConvNet, x: torch.Tensor, y: torch.Tensor) -> None:
        model(x + torch.rand_like(x)).sum().backward()
        np.random.rand()  # noqa: NPY002
        model.eval().net[0].requires_grad_(False)

    everything = ["modes", "requires_grad", "gradients", "weights and statistics"]
    everything += ["random state of torch", "random state of numpy"]
    assert left_behind(careless, SmallConvNet().train(), images(2), torch.zeros(2)) == everything
