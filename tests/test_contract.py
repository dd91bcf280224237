"""The contract matrix: every registered attack, on every budget that it takes, keeps its promises."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sparsepgd as sp
from sparsepgd import baselines, options
from sparsepgd.errors import UnsupportedError
from sparsepgd.runs import runs
from sparsepgd.search import registry
from sparsepgd.search.attack import Attack
from sparsepgd.search.contract import Attacker
from sparsepgd.search.standalone import Standalone
from sparsepgd.threat.norms import group_l0
from support.attacks import NAMES, short, taken, variants
from support.budgets import BUDGETS
from support.models import Counting, SmallConvNet, images, labelled
from support.promises import broken, left_behind, mixed
from support.small_runs import killed_after, outcome

CASES = [pytest.param(name, changes, id=f"{name}-{changes}") for name in NAMES for changes in variants(name)]
POINTS = (sp.Pixels, sp.Features)
PATTERNS: dict[str, tuple[type[sp.Pattern], ...]] = {  # that are taken; a new attack need not be here
    **dict.fromkeys(("anneal", "saa", "saa+", "sparse-rs"), (sp.Pattern,)),
    **dict.fromkeys(("spgd-projected", "spgd-random", "spgd-unprojected"), (sp.Pattern,)),
    "cluster-rs": POINTS,
    "corner-search": POINTS,
    "cw-l0": POINTS,
    "greedy-fool": POINTS,
    "l1-apgd": POINTS,
    "loap": (sp.Rows, sp.Columns, sp.Patches, sp.Shape, sp.Frame),
    "one-pixel": POINTS,
    "pgd0": (*POINTS, sp.Rows, sp.Columns, sp.Frame),
    "saif-binary": POINTS,
    "saif-published": POINTS,
    "sigma-zero": POINTS,
    "sparse-fool": POINTS,
}


def wide(name: str) -> sp.Budget:
    """One that fools images within a few steps."""
    return sp.Budget(k=60) if BUDGETS[0] in taken(name) else sp.Budget(k=2, pattern=sp.Patches(5))


def cascade(attack: Attacker) -> bool:
    """Whether there are several attacks, each on the images that are left."""
    return isinstance(attack, sp.SparseAutoAttack) or getattr(attack, "attempts", 1) > 1


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_results_are_within_budget_aligned_and_true(name: str, changes: dict[str, Any]) -> None:
    model, x = SmallConvNet().eval(), images(7)
    y = labelled(model, x)
    y[3] = (y[3] + 1) % 5  # wrong from the start
    for budget in taken(name) if not changes else taken(name)[::3]:
        attack = short(name, budget, **changes)
        for rows in (slice(7), slice(1)) if budget is BUDGETS[0] else (slice(7),):
            result = attack(model, x[rows], y[rows], seed=1)
            assert broken(attack, result, model, x[rows], y[rows]) == [], budget
            assert int(result.forwards.max()) <= attack.evaluations
            assert bool((result.backwards <= result.forwards).all())
            assert bool((result.steps <= attack.evaluations).all())


@pytest.mark.parametrize("name", NAMES)
def test_other_budgets_are_refused_with_a_word_on_what_can(name: str) -> None:
    assert taken(name)
    if name in PATTERNS:
        assert taken(name) == [budget for budget in BUDGETS if isinstance(budget.pattern, PATTERNS[name])]
    for budget in BUDGETS:
        if budget not in taken(name):
            words = rf"not {re.escape(repr(budget.pattern))}; use Sparse(PGD|RS)"
            with pytest.raises(UnsupportedError, match=words):
                short(name, budget)


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_model_and_random_state_are_untouched(name: str, changes: dict[str, Any]) -> None:
    assert left_behind(short(name, taken(name)[0], **changes), *mixed()) == []


@pytest.mark.parametrize("name", NAMES)
def test_empty_and_wholly_wrong_batches_give_aligned_results(name: str) -> None:
    model, x = SmallConvNet(), images(3)
    attack = short(name, taken(name)[0])
    empty = attack(model, x[:0], torch.zeros(0, dtype=torch.int64))
    assert len(empty) == 0
    assert empty.x_adv.shape == (0, 3, 12, 12)
    wrong = attack(model, x, (labelled(model, x) + 1) % 5)
    assert (wrong.clean_accuracy, wrong.robust_accuracy) == (0, 0)
    assert not bool(wrong.fooled.any())
    assert torch.equal(wrong.x_adv, x)
    assert wrong.forwards.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_passes_are_counted_as_the_model_sees_them(name: str, changes: dict[str, Any]) -> None:
    model, x = Counting(SmallConvNet()), images(5)
    y = labelled(model, x)
    model.asked = 0
    attack = short(name, taken(name)[0], **changes)
    result = attack(model, x, y, batch_size=2)
    assert int(result.backwards.sum()) == model.flowed
    assert attack.needs_gradient or model.flowed == 0
    more = model.asked - 2 * len(x) - int(result.forwards.sum())  # the clean images before, the verdict after
    fooled = int(result.fooled.sum())
    if cascade(attack):
        assert more > 0  # every stage has its own clean images and its own verdict
    elif changes.get("early_stop", True):
        assert more in (fooled, len(x))  # each success is confirmed, or the loss of every claim is measured
    else:
        assert fooled <= more <= len(x)


@pytest.mark.parametrize("name", ["sparse-rs", "cluster-rs", "spgd-projected"])
@pytest.mark.parametrize("fools", [False, True])
def test_passes_are_counted_up_to_the_success(name: str, fools: bool) -> None:
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


@pytest.mark.parametrize("name", NAMES)
def test_who_needs_no_gradient_takes_none(name: str) -> None:
    model, x = SmallConvNet().eval(), images(3)
    y, attack = labelled(model, x), short(name, taken(name)[0])
    if attack.needs_gradient:
        assert bool(attack(model, x, y).backwards.any())
    else:
        blind = attack(lambda points: model(points).detach(), x, y)
        assert not bool(blind.backwards.any())
        assert torch.equal(blind.x_adv, attack(model, x, y).x_adv)


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_batch_size_and_order_do_not_change_the_result(name: str, changes: dict[str, Any]) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(5, dtype=torch.float64)
    y, pick = labelled(model, x), torch.tensor([3, 0, 4, 1, 2])
    structured = [budget for budget in taken(name) if budget.pattern.structured]
    for budget in dict.fromkeys((taken(name)[0], *structured[-2:-1])):
        attack = short(name, budget, **changes)
        whole = attack(model, x, y, seed=3)
        parts = attack(model, x[pick], y[pick], seed=3, batch_size=2, index=pick)
        assert parts.broken_by == tuple(whole.broken_by[row] for row in pick.tolist())
        for field in ("fooled", "steps", "forwards", "backwards", "groups"):
            assert torch.equal(getattr(parts, field), getattr(whole, field)[pick]), field
        torch.testing.assert_close(parts.x_adv, whole.x_adv[pick], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_repeat(name: str) -> None:
    model, x = SmallConvNet(), images(3)
    y, attack = labelled(model, x), short(name, taken(name)[0])
    first, again = (attack(model, x, y, seed=5) for _ in range(2))
    assert torch.equal(first.x_adv, again.x_adv)
    assert torch.equal(first.forwards, again.forwards)


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_goes_on_to_the_same_result(name: str, tmp_path: Path) -> None:
    model, x = SmallConvNet().eval(), images(4)
    data, attack = (x, labelled(model, x)), short(name, taken(name)[0])
    with killed_after(1):
        runs.run(tmp_path / "part", attack, model, data, chunk=2)
    for folder in ("part", "whole"):
        runs.run(tmp_path / folder, attack, model, data, chunk=2)
    assert outcome(tmp_path / "part") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("name", [name for name in NAMES if registry.ENTRIES[name].kind.minimum_norm])
def test_a_minimum_norm_attack_in_full_length_has_no_more_groups(name: str) -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    early, full = (short(name, wide(name), early_stop=stop)(model, x, y) for stop in (True, False))
    both = early.fooled & full.fooled
    assert bool(both.any())
    assert bool((full.groups <= early.groups)[both].all())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("accept", ["target", "any"])
def test_targeted_goals_are_reached_as_stated(name: str, accept: Any) -> None:
    model, x = SmallConvNet().eval(), images(6)
    y = labelled(model, x)
    target = (y + 1) % 5
    attack = short(name, wide(name))
    if name in ("saa", "saa+", "sparse-fool"):
        with pytest.raises(UnsupportedError, match=r"goal Targeted; use Untargeted.*or SparsePGD|a target use Sparse"):
            attack(model, x, y, goal=sp.Targeted(target, accept=accept))
        return
    result = attack(model, x, y, goal=sp.Targeted(target, accept=accept))
    with torch.no_grad():
        said = model(result.x_adv).argmax(1)
    assert torch.equal(result.fooled, said == target if accept == "target" else said != y)
    assert bool((result.groups <= attack.budget.k).all())


@pytest.mark.parametrize("name", NAMES)
def test_every_attack_fools_someone(name: str) -> None:
    """Otherwise the matrix would hold for an attack that does nothing."""
    model, x = SmallConvNet(), images(7)
    attack = short(name, wide(name))
    if not attack.needs_gradient or name == "loap":
        attack = options.preset(name, wide(name), "quick")
    assert int(attack(model, x, labelled(model, x)).fooled.sum()) >= 2


@pytest.mark.parametrize("name", sorted({*NAMES} - {"saa", "saa+"}))
def test_perturb_for_training_is_within_the_budget_and_leaves_the_mode(name: str) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(5, dtype=torch.float64)
    y = labelled(model, x)
    y[3] = (y[3] + 1) % 5  # wrong from the start
    attack = short(name, wide(name))
    assert isinstance(attack, Attack)
    x_adv = attack.perturb(model.train(), x, y, seed=1)
    assert model.training
    assert bool((group_l0(x_adv != x, attack.budget.pattern) <= attack.budget.k).all())
    assert bool(((x_adv >= 0) & (x_adv <= 1)).all())
    if isinstance(attack, Standalone):  # the others keep the first success
        torch.testing.assert_close(x_adv, attack(model, x, y, seed=1, batch_size=5).x_adv, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"saa", "saa+"}))
def test_lengths_are_whole_numbers(name: str) -> None:
    attack = short(name, taken(name)[0])
    field = next(one for one in ("steps", "samples", "generations", "queries") if hasattr(attack, one))
    for value in (2.5, 0):
        with pytest.raises(UnsupportedError, match=f"{field}={value}; expected"):
            dataclasses.replace(attack, **{field: value})  # type: ignore[type-var]


@pytest.mark.parametrize("name", baselines.__all__)
def test_the_quick_preset_is_the_attack_with_other_numbers(name: str) -> None:
    budget = sp.Budget(k=1, pattern=sp.Patches(3)) if name == "LOAP" else sp.Budget(k=3)
    kind = getattr(baselines, name)
    quick = kind.quick(budget)
    assert type(quick) is kind
    assert (quick.name, quick.budget) == (kind(budget).name, budget)
    assert quick.evaluations < kind(budget).evaluations


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
