"""AutoAttack's method names: same results as the ensemble, whatever the batch size, and after a resume."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.errors import BudgetError, RangeError, SourceError, UnsupportedError, UnusableDeviceError
from sparsepgd.runs.autoattack import AutoAttack
from sparsepgd.search.ensemble import SparseAutoAttack
from support.models import SmallConvNet, images, labelled

THREE = ["spgd-unprojected", "spgd-projected", "sparse-rs"]
STANDARD = ["anneal", "spgd-unprojected", "spgd-projected", "cluster-rs"]
SHORT: dict[str, Any] = {"steps": 3, "queries": 100, "verbose": False}
PAPER: dict[str, Any] = {"version": "paper", **SHORT}


def problem(count: int = 24, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    model, x = SmallConvNet(dtype=dtype).eval(), images(count, dtype=dtype)
    y = labelled(model, x)
    y[-1] = (y[-1] + 1) % 5  # wrong from the start
    return model, x, y


def answers(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        said: Tensor = model(x).argmax(1)
    return said


def test_it_returns_what_the_ensemble_finds_and_clean_images_elsewhere() -> None:
    model, x, y = problem()
    adversary = AutoAttack(model, k=12, seed=0, **PAPER)
    assert adversary.attacks_to_run == THREE
    x_adv, said = adversary.run_standard_evaluation(x, y, return_labels=True)
    result = SparseAutoAttack(sp.Budget(k=12), 3, 100)(model, x, y)
    assert set(result.broken_by) == {*THREE, None}
    torch.testing.assert_close(x_adv[result.fooled], result.x_adv[result.fooled], rtol=0, atol=1e-9)
    assert torch.equal(x_adv[~result.fooled], x[~result.fooled])
    assert torch.equal(said, answers(model, x_adv))
    assert adversary.result is not None
    assert adversary.result.broken_by == result.broken_by
    assert torch.equal(adversary.result.forwards, result.forwards)
    assert adversary.clean_accuracy(x_adv, y) == result.robust_accuracy
    assert adversary.clean_accuracy(x, y) == 23 / 24


@pytest.mark.parametrize("bs", [1, 2, 250])
def test_results_do_not_depend_on_the_batch_size(bs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = problem(10)
    whole = AutoAttack(model, k=12, seed=1, **SHORT).run_standard_evaluation(x, y)
    monkeypatch.setattr("sparsepgd.runs.autoattack.CHUNK", 2)
    parts = AutoAttack(model, k=12, seed=1, **SHORT).run_standard_evaluation(x, y, bs=bs)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-9)


def test_a_loader_is_as_good_as_a_tensor() -> None:
    model, x, y = problem(7)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    adversary = AutoAttack(model, k=12, **SHORT)
    assert torch.equal(adversary.run_standard_evaluation(loader), adversary.run_standard_evaluation(x, y))
    with pytest.raises(UnsupportedError, match="y_orig is missing"):
        adversary.run_standard_evaluation(x)


@pytest.mark.parametrize("version", ["standard", "paper"])
def test_individual_runs_are_those_of_the_attacks_alone(version: str) -> None:
    model, x, y = problem(10)
    adversary = AutoAttack(model, k=12, version=version, **SHORT)
    names = THREE if version == "paper" else STANDARD
    found = adversary.run_standard_evaluation_individual(x, y, return_labels=True)
    assert list(found) == names
    for member in adversary.ensemble.members:
        alone = member(model, x, y)
        x_adv, said = found[member.name]
        assert torch.equal(said != y, alone.fooled | ~alone.clean_correct)
        torch.testing.assert_close(x_adv[alone.fooled], alone.x_adv[alone.fooled], rtol=0, atol=1e-9)
    plain = adversary.run_standard_evaluation_individual(x, y)
    assert all(torch.equal(plain[name], found[name][0]) for name in names)


def test_the_standard_version_is_the_default_and_finds_what_its_ensemble_finds() -> None:
    model, x, y = problem()
    options = SHORT | {"steps": 30}
    adversary = AutoAttack(model, k=4, **options)
    assert (adversary.version, adversary.attacks_to_run) == ("standard", STANDARD)
    adversary.run_standard_evaluation(x, y)
    result = SparseAutoAttack(sp.Budget(k=4), 30, 100, version="standard")(model, x, y)
    assert adversary.result is not None
    assert adversary.result.broken_by == result.broken_by
    assert "anneal" in result.broken_by
    assert torch.equal(adversary.result.forwards, result.forwards)


def test_the_version_may_be_changed_and_with_it_the_length_of_spgd() -> None:
    adversary = AutoAttack(problem(1)[0], **SHORT | {"steps": 500})
    assert [member.evaluations for member in adversary._chosen().members] == [500, 101, 101, 100]  # type: ignore[attr-defined]
    adversary.set_version("paper")
    assert [member.evaluations for member in adversary._chosen().members] == [501, 501, 100]  # type: ignore[attr-defined]
    adversary.set_version("standard")
    assert adversary.attacks_to_run == STANDARD
    adversary.set_version("custom")
    adversary.attacks_to_run = ["spgd-projected", "anneal"]
    assert [member.evaluations for member in adversary._chosen().members] == [501, 500]  # type: ignore[attr-defined]


def test_custom_attacks_are_names_or_attacks() -> None:
    model, x, y = problem(6)
    custom = AutoAttack(model, k=12, version="custom", **SHORT)
    known = ", ".join([*STANDARD, "spgd-unprojected-targeted", "spgd-projected-targeted", "sparse-rs"])
    with pytest.raises(UnsupportedError, match=f"attacks_to_run=\\[\\]; use {known}, or attacks"):
        custom.run_standard_evaluation(x, y)
    custom.attacks_to_run = ["sparse-rs", sp.SparsePGD(sp.Budget(k=12), steps=5), "spgd-projected-targeted"]
    custom.run_standard_evaluation(x, y)
    assert custom.result is not None
    assert set(custom.result.broken_by) <= {"sparse-rs", "spgd-unprojected", "spgd-projected-targeted", None}
    custom.attacks_to_run = ["apgd-ce"]
    with pytest.raises(UnsupportedError, match="'apgd-ce'"):
        custom.run_standard_evaluation(x, y)


def test_norm_and_eps_are_read_as_in_autoattack_scripts() -> None:
    model, _, _ = problem(1)
    assert AutoAttack(model, **SHORT).ensemble.budget.k == 20
    for eps in (24, 24.0):
        budget = AutoAttack(model, norm="L0", eps=eps, **SHORT).ensemble.budget
        assert (budget.k, budget.eps) == (24, 1.0)
    for one in (1, np.int64(1)):
        assert AutoAttack(model, eps=one, **SHORT).ensemble.budget.k == 1  # type: ignore[arg-type]
    free = AutoAttack(model, k=5, eps=1, **SHORT).ensemble.budget
    assert (free.k, free.eps) == (5, 1.0)
    marked = AutoAttack(model, k=1, pattern=sp.Patches(3), eps=8 / 255, **SHORT).ensemble.budget
    assert (marked.k, marked.pattern, marked.eps) == (1, sp.Patches(3), 8 / 255)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"norm": "Linf"}, UnsupportedError, "norm='Linf'; this is the sparse ensemble.*for Linf use the autoattack"),
        ({"norm": 2}, UnsupportedError, "norm=2; this is the sparse ensemble"),
        ({"device": "tpu9"}, UnusableDeviceError, "device 'tpu9' cannot be used: .*; try cpu"),
        ({"k": 5, "eps": 24}, UnsupportedError, "k=5 and eps=24"),
        ({"eps": 2.5}, UnsupportedError, "eps=2.5"),
        ({"eps": "8/255"}, BudgetError, "eps='8/255'; use 0 < eps <= 1"),
        ({"eps": 0.0}, BudgetError, "eps=0.0"),
        ({"version": "rand"}, UnsupportedError, "version='rand'; use 'standard', 'paper' or 'custom'"),
        ({"version": "plus"}, UnsupportedError, "version='plus' was removed; use 'standard'"),
        ({"attacks_to_run": ["sparse-rs"]}, UnsupportedError, "use version='custom'"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AutoAttack(problem(1)[0], **options, **SHORT)


def test_images_out_of_range_are_refused() -> None:
    model, x, y = problem(2)
    with pytest.raises(RangeError):
        AutoAttack(model, **SHORT).run_standard_evaluation(x * 255, y)


def test_lines_go_to_the_screen_and_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x, y = problem()
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    adversary = AutoAttack(model, k=12, log_path=log, **PAPER | {"verbose": True})
    adversary.run_standard_evaluation(x, y)
    shown = capsys.readouterr().out
    assert log.read_text() == "before\n" + shown
    assert "initial accuracy: 95.83%" in shown
    assert adversary.result is not None
    after = [float(value) for value in re.findall(r"robust accuracy after [A-Z-]+: ([\d.]+)% \(total time", shown)]
    expected = adversary.ensemble.history(adversary.result)
    assert after == [round(100 * expected[name], 2) for name in THREE]
    assert "warning: sparse-rs needs no gradient, but broke" in shown
    assert "max pixels changed: 12 of 12" in shown
    adversary.verbose = False
    adversary.run_standard_evaluation(x[:0], y[:0])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", [baselines.CornerSearch, baselines.OnePixel])
def test_every_black_box_that_beats_the_gradient_is_pointed_out(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model, x, y = problem()
    attacks = [sp.SparsePGD(sp.Budget(k=12), steps=1), kind.at_cost(sp.Budget(k=12), 400)]
    adversary = AutoAttack(model, k=12, version="custom", attacks_to_run=attacks, **SHORT | {"verbose": True})
    adversary.run_standard_evaluation(x, y)
    assert f"warning: {attacks[1].name} needs no gradient, but broke" in capsys.readouterr().out


def test_a_seed_of_none_is_taken_from_the_time(tmp_path: Path) -> None:
    model, x, y = problem(12)
    found = []
    for _ in range(2):
        adversary = AutoAttack(model, k=3, seed=None, **SHORT)
        adversary.run_standard_evaluation(x, y)
        assert adversary.result is not None
        found.append(adversary.result.x_adv)
    assert not torch.equal(*found)
    state = tmp_path / "state.json"
    first, again = (
        AutoAttack(model, k=3, seed=None, **SHORT).run_standard_evaluation(x, y, state_path=state) for _ in range(2)
    )
    assert isinstance(first, Tensor)
    assert isinstance(again, Tensor)
    assert torch.equal(first, again)  # only read


def test_seeds_of_numpy_are_kept_like_others(tmp_path: Path) -> None:
    model, x, y = problem(3)
    for seed in (np.int64(2), 2):
        AutoAttack(model, k=12, seed=seed, **SHORT).run_standard_evaluation(x, y, state_path=tmp_path / "state.json")
    with pytest.raises(UnsupportedError, match=r"seed=0.5; expected an integer"):
        AutoAttack(model, seed=0.5, **SHORT)  # type: ignore[arg-type]


@pytest.mark.parametrize("bs", [0, -1, 2.5])
def test_batch_sizes_that_are_none_are_refused(bs: Any) -> None:
    model, x, y = problem(2)
    adversary = AutoAttack(model, k=12, **SHORT)
    for call in (adversary.run_standard_evaluation, adversary.clean_accuracy):
        with pytest.raises(UnsupportedError, match=f"bs={bs}; expected"):
            call(x, y, bs=bs)


def test_a_custom_ensemble_member_keeps_its_masks_image_by_image() -> None:
    model, x, y = problem(6)
    allowed = torch.rand(6, 12, 12, generator=torch.Generator().manual_seed(2)) < 0.5
    member = sp.SparsePGD(replace(sp.Budget(k=12), allowed=allowed), steps=5)
    adversary = AutoAttack(model, k=12, version="custom", attacks_to_run=[member], **SHORT)
    x_adv = adversary.run_standard_evaluation(x, y, bs=1)
    assert isinstance(x_adv, Tensor)
    assert not bool(((x_adv != x).any(1) & ~allowed).any())
    assert bool((x_adv != x).any())


def test_a_loader_without_batches_is_refused() -> None:
    model, _, _ = problem(1)
    with pytest.raises(SourceError, match="the DataLoader is empty"):
        AutoAttack(model, **SHORT).run_standard_evaluation([])


def test_a_batch_size_of_numpy_is_taken() -> None:
    model, x, y = problem(4)
    found = [AutoAttack(model, **SHORT).run_standard_evaluation(x, y, bs=bs) for bs in (2, np.int64(2))]  # type: ignore[arg-type]
    assert torch.equal(found[0], found[1])  # type: ignore[arg-type]
