"""The contract matrix: every attack, pattern and batch size keeps its promises on an ordinary network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import sparsepgd as sp
from conftest import SmallConvNet, images, labelled
from sparsepgd.threat.norms import group_l0

BUDGETS = [
    sp.Budget(k=3),
    sp.Budget(k=5, pattern=sp.Features()),
    sp.Budget(k=1, pattern=sp.Rows()),
    sp.Budget(k=2, pattern=sp.Columns()),
    sp.Budget(k=2, pattern=sp.Patches(3)),
    sp.Budget(k=1, pattern=sp.Patches(2, 5)),
    sp.Budget(k=1, pattern=sp.Shape.heart(5)),
    sp.Budget(k=1, pattern=sp.Shape.circle(6), eps=16 / 255),
    sp.Budget(k=1, pattern=sp.Frame(2)),
    sp.Budget(k=3, allowed=torch.arange(144).view(12, 12) % 3 == 0),
    sp.Budget(k=1, pattern=sp.Patches(4), allowed=torch.arange(144).view(12, 12) < 60),
]
ATTACKS: dict[str, Callable[[sp.Budget], sp.Attack]] = {
    "spgd-unprojected": lambda budget: sp.SparsePGD(budget, steps=12, alpha=0.25, beta=0.25),
    "spgd-projected": lambda budget: sp.SparsePGD(budget, steps=12, gradient="projected", alpha=0.25, beta=0.25),
    "spgd-random": lambda budget: sp.SparsePGD(budget, steps=12, gradient="random"),
    "spgd-full-length": lambda budget: sp.SparsePGD(budget, steps=12, early_stop=False, alpha=0.25, beta=0.25),
    "spgd-margin": lambda budget: sp.SparsePGD(budget, steps=12, loss="margin", alpha=0.25),
    "sparse-rs": lambda budget: sp.SparseRS(budget, queries=13),
    "sparse-rs-original": lambda budget: sp.SparseRS.original(budget, queries=13),
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

    assert result.x_adv.shape == x.shape
    assert result.x_adv.dtype == x.dtype
    changed = result.x_adv != x
    assert bool((group_l0(changed, budget.pattern) <= budget.k).all())
    assert torch.equal(group_l0(changed, budget.pattern), result.groups)
    assert torch.equal(changed.any(1).flatten(1).sum(1), result.l0)
    assert float(result.x_adv.min()) >= 0
    assert float(result.x_adv.max()) <= 1
    assert float((result.x_adv.double() - x.double()).abs().max()) <= budget.eps + 1e-7 * attack.quantize
    if budget.allowed is not None:
        assert not bool((changed.any(1) & ~budget.allowed).any())

    with torch.no_grad():
        said = model(result.x_adv).argmax(1)
    right = labelled(model, x) == y
    assert torch.equal(result.clean_correct, right)
    assert torch.equal(result.fooled, right & (said != y))
    assert torch.equal(result.prediction, said)
    assert torch.equal(result.x_adv[~right], x[~right])
    assert result.robust_accuracy == pytest.approx(float((right & ~result.fooled).float().mean()))
    assert [b is not None for b in result.broken_by] == result.fooled.tolist()
    assert bool((result.steps <= 12).all())
    assert bool((result.forwards[~right] == 0).all())


@pytest.mark.parametrize("name", ATTACKS)
def test_model_and_random_state_are_untouched(name: str) -> None:
    model, x = SmallConvNet(), images(4)
    y = labelled(model, x)
    model.train()
    model.net[1].eval()  # one layer in another mode than the rest
    model.net[0].weight.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    ATTACKS[name](sp.Budget(k=3))(model, x, y)
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == [False] + [True] * (len(list(model.parameters())) - 1)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random[0])
    assert (np.random.get_state()[1] == random[1]).all()  # noqa: NPY002


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
