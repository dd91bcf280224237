"""The contract matrix for baselines with a loop of their own: within budget, aligned, true, counted, refusing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.baselines import CWL0, CornerSearch, GreedyFool, OnePixel, SparseFool
from sparsepgd.errors import UnsupportedError
from support.models import Counting, SmallConvNet, images, labelled
from support.promises import broken, left_behind

POINTS = [
    sp.Budget(k=3),
    sp.Budget(k=5, pattern=sp.Features()),
    sp.Budget(k=8, eps=64 / 255),
    sp.Budget(k=3, allowed=torch.arange(144).view(12, 12) % 3 == 0),
]
CW = {"lr": 0.2, "c_first": 1, "c_last": 100, "c_factor": 10, "small": torch.inf, "power": 1, "rounds": 8}
ATTACKS: dict[str, tuple[Callable[..., Any], list[sp.Budget]]] = {
    "corner-search": (lambda b, **o: CornerSearch(b, 8, 2, candidates=40, levels=2, **o), POINTS),
    "one-pixel": (lambda b, **o: OnePixel(b, 12, 4, **o), POINTS),
    "greedy-fool": (lambda b, **o: GreedyFool(b, 20, reductions=10, **o), POINTS),
    "sparse-fool": (lambda b, **o: SparseFool(b, 3, deepfool_steps=4, classes=3, **o), POINTS),
    "cw-l0": (lambda b, **o: CWL0(b, 6, **CW, **o), POINTS),
}
CASES = [pytest.param(name, b, id=f"{name}-{b!r}") for name, (_, budgets) in ATTACKS.items() for b in budgets]


@pytest.mark.parametrize(("name", "budget"), CASES)
@pytest.mark.parametrize("options", [{}, {"early_stop": False}, {"quantize": True}], ids=str)
def test_results_are_within_budget_aligned_and_true(name: str, budget: sp.Budget, options: dict[str, Any]) -> None:
    model, x = SmallConvNet().eval(), images(7)
    y = labelled(model, x)
    y[3] = (y[3] + 1) % 5  # wrong from the start
    attack = ATTACKS[name][0](budget, **options)
    result = attack(model, x, y, seed=1)
    assert broken(attack, result, model, x, y) == []
    assert int(result.forwards.max()) <= attack.evaluations


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_fools_someone_in_the_matrix(name: str) -> None:
    """Otherwise the matrix would hold for an attack that does nothing."""
    model, x = SmallConvNet(), images(7)
    make, budgets = ATTACKS[name]
    fooled = [int(make(dataclasses.replace(b, k=8 * b.k))(model, x, labelled(model, x)).fooled.sum()) for b in budgets]
    assert sum(fooled) >= 2


@pytest.mark.parametrize("name", ATTACKS)
def test_questions_are_counted_as_the_model_sees_them(name: str) -> None:
    model, x = Counting(SmallConvNet()), images(5)
    y = labelled(model, x)
    model.asked = 0
    result = ATTACKS[name][0](sp.Budget(k=3))(model, x, y, batch_size=2)
    assert int(result.forwards.sum()) == model.asked - 3 * 5  # clean, the loss of what was claimed, the verdict
    assert int(result.backwards.sum()) == model.flowed


@pytest.mark.parametrize("name", ATTACKS)
def test_who_needs_no_gradient_takes_none(name: str) -> None:
    model, x = SmallConvNet().eval(), images(3)
    attack = ATTACKS[name][0](sp.Budget(k=3))
    assert attack.needs_gradient is (name not in ("corner-search", "one-pixel"))
    if attack.needs_gradient:
        assert bool(attack(model, x, labelled(model, x)).backwards.any())
    else:
        assert not bool(attack(lambda x: model(x).detach(), x, labelled(model, x)).backwards.any())


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("value", [2.5, 0])
def test_lengths_are_whole_numbers(name: str, value: float) -> None:
    attack = ATTACKS[name][0](sp.Budget(k=3))
    field = next(one for one in ("steps", "samples", "generations") if hasattr(attack, one))
    with pytest.raises(UnsupportedError, match=f"{field}={value}; expected"):
        dataclasses.replace(attack, **{field: value})


@pytest.mark.parametrize("name", ATTACKS)
def test_batch_size_and_order_do_not_change_the_result(name: str) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(7, dtype=torch.float64)
    y = labelled(model, x)
    attack = ATTACKS[name][0](sp.Budget(k=4))
    whole, pick = attack(model, x, y, seed=3), torch.tensor([4, 2, 6, 0, 1, 5, 3])
    parts = attack(model, x[pick], y[pick], seed=3, batch_size=3, index=pick)
    assert torch.equal(parts.fooled, whole.fooled[pick])
    assert torch.equal(parts.forwards, whole.forwards[pick])
    torch.testing.assert_close(parts.x_adv, whole.x_adv[pick], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ATTACKS)
def test_model_and_random_state_are_untouched(name: str) -> None:
    model, x = SmallConvNet().train(), images(3)
    y = labelled(model, x)
    assert left_behind(ATTACKS[name][0](sp.Budget(k=3)), model, x, y) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_empty_and_wholly_wrong_batches_give_aligned_results(name: str) -> None:
    model, x = SmallConvNet(), images(3)
    attack = ATTACKS[name][0](sp.Budget(k=3))
    assert len(attack(model, x[:0], torch.zeros(0, dtype=torch.int64))) == 0
    wrong = attack(model, x, (labelled(model, x) + 1) % 5)
    assert not bool(wrong.fooled.any())
    assert torch.equal(wrong.x_adv, x)
    assert wrong.forwards.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"sparse-fool"}))
@pytest.mark.parametrize("accept", ["target", "any"])
def test_targeted_goals_are_reached_as_stated(name: str, accept: Any) -> None:
    model, x = SmallConvNet().eval(), images(6)
    y = labelled(model, x)
    target = (y + 1) % 5
    result = ATTACKS[name][0](sp.Budget(k=60))(model, x, y, goal=sp.Targeted(target, accept=accept))
    with torch.no_grad():
        said = model(result.x_adv).argmax(1)
    assert torch.equal(result.fooled, said == target if accept == "target" else said != y)
    assert bool(result.fooled.any())


@pytest.mark.parametrize("name", ATTACKS)
def test_perturb_for_training_is_the_verified_attack_on_the_whole_batch(name: str) -> None:
    model, x = SmallConvNet(dtype=torch.float64).train(), images(5, dtype=torch.float64)
    y = labelled(model.eval(), x)
    y[3] = (y[3] + 1) % 5  # wrong from the start: comes back as it is
    attack = ATTACKS[name][0](sp.Budget(k=8))
    x_adv = attack.perturb(model.train(), x, y, seed=1)
    assert model.training
    torch.testing.assert_close(x_adv, attack(model, x, y, seed=1, batch_size=5).x_adv, rtol=0, atol=1e-6)


def test_sparse_fool_refuses_targets_with_a_word_on_what_can() -> None:
    model, x = SmallConvNet(), images(2)
    y = labelled(model, x)
    with pytest.raises(UnsupportedError, match=r"no way to the goal Targeted; use Untargeted.*or SparsePGD"):
        SparseFool(sp.Budget(k=3))(model, x, y, goal=sp.Targeted((y + 1) % 5))


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(3), sp.Shape.heart(5)], ids=repr)
def test_structured_budgets_are_refused_with_a_word_on_what_can(name: str, pattern: sp.Pattern) -> None:
    words = re.escape(f"takes a budget of Pixels or Features, not {pattern!r}; for this one use SparsePGD(budget)")
    with pytest.raises(UnsupportedError, match=words):
        ATTACKS[name][0](sp.Budget(k=1, pattern=pattern))


@pytest.mark.parametrize("attack", [CWL0, CornerSearch, GreedyFool, OnePixel, SparseFool])
def test_the_quick_preset_is_the_attack_with_other_numbers(attack: Any) -> None:
    quick, budget = attack.quick(sp.Budget(k=2)), sp.Budget(k=2)
    assert type(quick) is attack
    assert quick.name == attack(budget).name
    assert quick.evaluations < attack(budget).evaluations
