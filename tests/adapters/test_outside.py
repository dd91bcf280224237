"""Attacks of other packages as members of ours: counted outside, kept to the budget, verified, giving all back."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import sparsepgd as sp
from sparsepgd import options
from sparsepgd.adapters import Outside
from sparsepgd.cli import app
from sparsepgd.errors import MissingPackageError, NoGradientError, UnsupportedError
from sparsepgd.runs import runs
from sparsepgd.runs.audit import audit
from support.packages import changed, mixed_mode, modes, package, predictions, problem, spgd

QUICK = {  # one or two attacks of each package, with a number of steps if they take one
    "foolbox:L0FMNAttack": 20,
    "foolbox:SaltAndPepperNoiseAttack": 10,
    "torchattacks:Pixle": None,
    "torchattacks:PGD": 3,
    "art:SaliencyMapMethod": None,
    "art:PixelAttack": 1,
    "adv-lib:sigma_zero": 20,
    "adv-lib:vfga": None,
}
MODULES = {"adv-lib": "adv_lib"}
pytestmark = pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning")  # adv-lib


def needs(name: str) -> None:
    word = name.partition(":")[0]
    package(MODULES.get(word, word))


def generators() -> list[Any]:
    """The state of every global generator that an attack may use."""
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # noqa: NPY002


def noise(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """An attack without regard for budget or range; it asks twice forwards and once back for each image."""
    model(x)
    point = x.clone().requires_grad_()
    model(point).sum().backward()
    return x + torch.randn(x.shape) + np.random.randn() + random.random()  # noqa: NPY002


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features()], ids=["pixels", "features"])
@pytest.mark.parametrize("name", QUICK)
def test_any_attack_keeps_the_budget_and_disturbs_nothing(name: str, pattern: sp.Pattern) -> None:
    needs(name)
    model, x, y = problem(4)
    before, states = mixed_mode(model), generators()
    attack = Outside(sp.Budget(k=8, pattern=pattern), name, steps=QUICK[name])
    result = attack(model, x, y.int())
    assert modes(model) == before
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert generators() == states
    count = changed(x, result.x_adv) if pattern == sp.Pixels() else (result.x_adv != x).flatten(1).sum(1)
    assert int(count.max()) <= 8
    assert torch.equal(result.fooled, predictions(model.eval(), result.x_adv) != y)
    assert bool((result.forwards > 0).all())
    assert {one for one in result.broken_by if one} <= {name}


def test_a_strong_attack_of_theirs_is_strong_here_too() -> None:
    needs("foolbox:L0FMNAttack")
    model, x, y = problem(12)
    result = Outside(sp.Budget(k=30), "foolbox:L0FMNAttack", steps=60)(model, x, y)
    assert int(result.fooled.sum()) >= 8
    assert result.forwards.tolist() == [61] * 12
    assert result.backwards.tolist() == [60] * 12


def test_what_they_return_is_projected_to_the_largest_changes_and_clamped() -> None:
    model, x, y = problem(3)
    x = x.clamp(0.2, 0.8)
    y = predictions(model, x)
    wild = x.clone()
    wild[:, :, 0, 0] = 7.0
    wild[:, :, 1, 1] = -3.0
    wild[:, 0, 2, 2] += 0.01
    wild[:, 0, 3, 3] = torch.nan
    x_adv = Outside(sp.Budget(k=2), lambda model, x, y: wild)(model, x, y).x_adv
    expected = x.clone()
    expected[:, :, 0, 0] = 1.0
    expected[:, :, 1, 1] = 0.0
    assert torch.equal(x_adv, expected)


def test_eps_the_allowed_mask_and_the_grid_hold_for_them() -> None:
    model, x, y = problem(3)
    allowed = torch.zeros(12, 12, dtype=torch.bool)
    allowed[:6] = True
    result = Outside(sp.Budget(k=5, eps=8 / 255, allowed=allowed), noise, quantize=True)(model, x, y)
    assert int(changed(x, result.x_adv).max()) == 5
    assert not bool((result.x_adv != x)[..., 6:, :].any())
    assert float((result.x_adv - x).abs().max()) <= 8 / 255 + 1e-6
    assert torch.equal((result.x_adv * 255).round() / 255, result.x_adv)


def test_questions_are_counted_for_a_function_without_counters() -> None:
    model, x, y = problem(5)
    result = Outside(sp.Budget(k=5), noise)(model, x, y, batch_size=2)
    assert (result.forwards.tolist(), result.backwards.tolist()) == ([2] * 5, [1] * 5)
    assert Outside(sp.Budget(k=5), noise).name == "noise"


def test_the_seed_decides() -> None:
    model, x, y = problem(4)
    attack, states = Outside(sp.Budget(k=5), noise), generators()
    first, again, other = (attack(model, x, y, seed=seed).x_adv for seed in (1, 1, 2))
    assert generators() == states
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_float64_models_are_asked_in_float64_by_a_package_that_knows_float32_only() -> None:
    needs("art:SaliencyMapMethod")
    model, x, y = problem(2, torch.float64)
    result = Outside(sp.Budget(k=6), "art:SaliencyMapMethod")(model, x, y)
    assert result.x_adv.dtype == torch.float64
    assert int(changed(x, result.x_adv).max()) <= 6


def test_a_member_of_the_cascade_attacks_the_survivors() -> None:
    needs("foolbox:L0FMNAttack")
    model, x, y = problem(12)
    budget = sp.Budget(k=20)
    theirs = Outside(budget, "foolbox:L0FMNAttack", steps=40)
    cascade = sp.SparseAutoAttack(budget, attacks=(spgd(k=20, steps=1), theirs))
    result = cascade(model, x, y)
    alone = [int(member(model, x, y).fooled.sum()) for member in cascade.members]
    assert set(result.broken_by) - {None} == {"spgd-unprojected", "foolbox:L0FMNAttack"}
    assert int(result.fooled.sum()) > alone[0]


def test_a_run_in_a_folder_is_read_again_and_told_from_another(tmp_path: Path) -> None:
    needs("foolbox:L0FMNAttack")
    model, x, y = problem(4)
    attack = Outside(sp.Budget(k=12), "foolbox:L0FMNAttack", {"gamma": 0.1}, steps=10)
    record = runs.run(tmp_path, attack, model, (x, y))
    assert record.configuration["attack"]["settings"] == {"gamma": 0.1}
    assert runs.run(tmp_path, attack, model, (x, y)).created == record.created
    assert audit(tmp_path, model).held == sum(row.fooled for row in record.rows)
    with pytest.raises(UnsupportedError, match=r"attack\.steps was 10, is 20"):
        runs.run(tmp_path, Outside(sp.Budget(k=12), attack.theirs, {"gamma": 0.1}, steps=20), model, (x, y))


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_commands_know_them_by_name(command: str) -> None:
    needs("foolbox:L0FMNAttack")
    words = [command, "--model", "zoo:small-plain", "-n", "2", "--attack", "foolbox:L0FMNAttack", "--device", "cpu"]
    words += ["--steps", "5", "--no-save"] if command == "evaluate" else ["--equal-cost", "10"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "foolbox:L0FMNAttack" in done.stdout


def test_words_to_attacks() -> None:
    needs("art:SaliencyMapMethod")
    needs("torchattacks:PGD")
    budget = sp.Budget(k=5)
    told: Any = options.attack("torchattacks:PGD", budget, 17)
    own: Any = options.attack("art:SaliencyMapMethod", budget, 17)
    paper: Any = options.preset("torchattacks:PGD", budget, "paper")
    assert (told.steps, own.steps, paper.steps) == (17, None, None)
    assert (options.length(told), options.length(own)) == ("17 steps", "its own length")
    with pytest.raises(UnsupportedError, match="cost cannot be set"):
        options.at_cost("art:SaliencyMapMethod", budget, 100)


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = sp.Budget(k=5)
    with pytest.raises(UnsupportedError, match="foolbox:NAME"):
        Outside(budget, "cleverhans:FGSM")
    with pytest.raises(UnsupportedError, match=r"supports Pixels or Features, not Rows\(\); .*SparsePGD"):
        Outside(sp.Budget(k=1, pattern=sp.Rows()), noise)
    with pytest.raises(UnsupportedError, match=r"functools\.partial"):
        Outside(budget, noise, {"eps": 1})
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sparsepgd\[torchattacks\]'"):
        Outside(budget, "torchattacks:PGD")


def test_mistakes_with_a_package_that_is_there() -> None:
    needs("foolbox:L0FMNAttack")
    model, x, y = problem(2)
    budget = sp.Budget(k=5)
    with pytest.raises(UnsupportedError, match="such as L0FMNAttack"):
        Outside(budget, "foolbox:L0FMN")
    with pytest.raises(UnsupportedError, match="no number of steps"):
        Outside(budget, "foolbox:PointwiseAttack", steps=3)
    with pytest.raises(UnsupportedError, match="LinfPGD failed with NotImplementedError"):
        Outside(budget, "foolbox:LinfPGD", steps=3)(model, x, y)
    with pytest.raises(UnsupportedError, match="does not support the goal Targeted"):
        Outside(budget, "foolbox:L0FMNAttack")(model, x, y, goal=sp.Targeted((y + 1) % 5))


def test_our_own_errors_come_through_theirs() -> None:
    model, x, y = problem(2)

    def asks_for_a_gradient(wrapped: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        raise NoGradientError("from within")

    with pytest.raises(NoGradientError, match="from within"):
        Outside(sp.Budget(k=5), asks_for_a_gradient)(model, x, y)
    with pytest.raises(UnsupportedError, match=r"returned \(2, 3\)"):
        Outside(sp.Budget(k=5), lambda model, x, y: torch.zeros(2, 3))(model, x, y)
    with pytest.raises(UnsupportedError, match=r"returned a tuple for images \(2, 3, 12, 12\); expected x_adv"):
        Outside(sp.Budget(k=5), lambda model, x, y: (x, y))(model, x, y)  # type: ignore[arg-type, return-value]
