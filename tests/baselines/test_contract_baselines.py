"""The contract matrix for the baselines: each on the budgets it takes; the others are refused with a way out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.errors import UnsupportedError
from support.budgets import BUDGETS
from support.models import Counting, SmallConvNet, images, labelled
from support.promises import broken, left_behind, mixed

POINTS = (sp.Pixels, sp.Features)
DISJOINT = (sp.Pixels, sp.Features, sp.Rows, sp.Columns, sp.Frame)
GROUPS = (sp.Rows, sp.Columns, sp.Patches, sp.Shape, sp.Frame)

# name -> (an attack of at most 12 steps, the patterns it takes)
ATTACKS: dict[str, tuple[Callable[[sp.Budget], Any], tuple[type[sp.Pattern], ...]]] = {
    "pgd0": (lambda budget: baselines.PGD0(budget, 12, restarts=1, targets=0), DISJOINT),
    "pgd0-restarts": (lambda budget: baselines.PGD0(budget, 2, restarts=2, targets=2), DISJOINT),
    "pgd0-quantized": (lambda budget: baselines.PGD0(budget, 12, restarts=1, targets=0, quantize=True), DISJOINT),
    "saif-published": (lambda budget: baselines.SAIF(budget, 6, targets=0), POINTS),
    "saif-binary": (lambda budget: baselines.SAIF(budget, 12, form="binary", targets=0), POINTS),
    "saif-targets": (lambda budget: baselines.SAIF(budget, 2, targets=2), POINTS),
    "sigma-zero": (lambda budget: baselines.SigmaZero(budget, 6), POINTS),
    "sigma-zero-minimum": (lambda budget: baselines.SigmaZero(budget, 6, early_stop=False), POINTS),
    "l1-apgd": (lambda budget: baselines.L1APGD(budget, 6, targets=0), POINTS),
    "l1-apgd-quantized": (lambda budget: baselines.L1APGD(budget, 6, targets=0, quantize=True), POINTS),
    "loap": (lambda budget: baselines.LOAP(budget, 2, restarts=1), GROUPS),
    "loap-random": (lambda budget: baselines.LOAP(budget, 3, moves="random", restarts=2), GROUPS),
    "loap-quantized": (lambda budget: baselines.LOAP(budget, 2, restarts=1, quantize=True), GROUPS),
}


def taken(name: str) -> list[sp.Budget]:
    return [budget for budget in BUDGETS if isinstance(budget.pattern, ATTACKS[name][1])]


def refused(name: str) -> list[sp.Budget]:
    return [budget for budget in BUDGETS if not isinstance(budget.pattern, ATTACKS[name][1])]


def cases(of: Callable[[str], list[sp.Budget]]) -> list[Any]:
    return [pytest.param(name, budget, id=f"{name}-{budget!r}") for name in ATTACKS for budget in of(name)]


@pytest.mark.parametrize(("name", "budget"), cases(taken))
@pytest.mark.parametrize("batch", [1, 7])
def test_results_are_within_budget_aligned_and_true(name: str, budget: sp.Budget, batch: int) -> None:
    model, x = SmallConvNet().eval(), images(batch)
    y = labelled(model, x)
    y[batch // 2] = (y[batch // 2] + batch // 7) % 5  # in the batch of seven one is wrong from the start
    attack = ATTACKS[name][0](budget)
    result = attack(model, x, y, seed=1)
    assert broken(attack, result, model, x, y) == []
    assert bool((result.steps <= 12).all())


@pytest.mark.parametrize(("name", "budget"), cases(refused))
def test_other_patterns_are_refused_with_a_word_on_what_can(name: str, budget: sp.Budget) -> None:
    with pytest.raises(UnsupportedError, match="SparsePGD"):
        ATTACKS[name][0](budget)


@pytest.mark.parametrize("name", ATTACKS)
def test_model_and_random_state_are_untouched(name: str) -> None:
    assert left_behind(ATTACKS[name][0](taken(name)[0]), *mixed()) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_empty_and_wholly_wrong_batches_give_aligned_results(name: str) -> None:
    model, x = SmallConvNet(), images(3)
    attack = ATTACKS[name][0](taken(name)[0])
    empty = attack(model, x[:0], torch.zeros(0, dtype=torch.int64))
    assert len(empty) == 0
    assert empty.x_adv.shape == (0, 3, 12, 12)
    wrong = attack(model, x, (labelled(model, x) + 1) % 5)
    assert (wrong.clean_accuracy, wrong.robust_accuracy) == (0, 0)
    assert not bool(wrong.fooled.any())
    assert torch.equal(wrong.x_adv, x)
    assert wrong.forwards.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("accept", ["target", "any"])
def test_targeted_goals_are_reached_as_stated(name: str, accept: Any) -> None:
    model, x = SmallConvNet().eval(), images(6)
    y = labelled(model, x)
    target = (y + 1) % 5
    wide = sp.Budget(k=40) if sp.Pixels in ATTACKS[name][1] else sp.Budget(k=2, pattern=sp.Patches(5))
    attack = dataclasses.replace(ATTACKS[name][0](wide), steps=40)
    result = attack(model, x, y, goal=sp.Targeted(target, accept=accept))
    with torch.no_grad():
        said = model(result.x_adv).argmax(1)
    assert torch.equal(result.fooled, said == target if accept == "target" else said != y)
    assert bool(result.fooled.any())


@pytest.mark.parametrize("name", ATTACKS)
def test_batch_size_and_order_do_not_change_the_result(name: str) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(5, dtype=torch.float64)
    y = labelled(model, x)
    attack = ATTACKS[name][0](taken(name)[0])
    if attack.quantize:
        x = (x * 255).round() / 255
    whole = attack(model, x, y, seed=3)
    pick = torch.tensor([3, 0, 4, 1, 2])
    parts = attack(model, x[pick], y[pick], seed=3, batch_size=2, index=pick)
    assert torch.equal(parts.fooled, whole.fooled[pick])
    assert torch.equal(parts.forwards, whole.forwards[pick])
    assert torch.equal(parts.backwards, whole.backwards[pick])
    torch.testing.assert_close(parts.x_adv, whole.x_adv[pick], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("pgd0-restarts", "saif-targets")])
def test_forwards_and_backwards_are_those_that_the_model_sees(name: str) -> None:
    model, x = Counting(SmallConvNet()), images(4)
    y = labelled(model, x)
    model.asked = 0
    attack = (
        dataclasses.replace(ATTACKS[name][0](taken(name)[0]), restarts=1)
        if "loap" in name
        else (ATTACKS[name][0](taken(name)[0]))
    )
    result = attack(model, x, y)
    assert model.flowed == int(result.backwards.sum())
    own = model.asked - 2 * len(x)  # the clean images before, the verdict after
    spare = own - int(result.forwards.sum())
    assert 0 <= spare <= len(x)  # a claim is confirmed, or its loss measured, once more for each image


@pytest.mark.parametrize("name", ["PGD0", "SAIF", "SigmaZero", "L1APGD", "LOAP"])
def test_quick_presets_are_single_short_attempts(name: str) -> None:
    budget = sp.Budget(k=1, pattern=sp.Patches(3)) if name == "LOAP" else sp.Budget(k=3)
    attack = getattr(baselines, name).quick(budget)
    assert attack.budget is budget
    assert attack.evaluations <= 250
