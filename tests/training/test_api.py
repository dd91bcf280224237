"""`sp.train`: robust models come out, nothing else is touched, and a stopped run goes on to the same weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsepgd as sp
from sparsepgd.errors import (
    DTypeError,
    LabelError,
    MissingPackageError,
    ModelError,
    RangeError,
    SourceError,
    UnsupportedError,
)
from sparsepgd.threat.norms import group_l0
from sparsepgd.training import METHODS, api, records
from sparsepgd.training.adversaries import Adversary, adversary
from sparsepgd.training.data import Batch
from training.toys import network, quadrants, same_weights, search_path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path()}
QUICK: dict[str, Any] = {"batch": 16, "steps": 3, "multi_eps": 2, "watch_steps": 3}


def test_training_makes_a_model_robust_and_the_plain_one_is_not() -> None:
    data, (x, y) = quadrants(256, size=6), quadrants(100, seed=1, size=6)
    budget, robust = sp.Budget(k=2), {}
    for method in ("plain", "strades"):
        options: dict[str, Any] = {"batch": 32, "schedule": "one-cycle", "lr": 0.2, "multi_eps": 2, "clip": 1.0}
        trained = sp.train(network(norm=False), data, method, budget, epochs=12, steps=10, watch_steps=0, **options)
        result = sp.SparseAutoAttack(budget, steps=60, queries=100)(trained.model, x, y)
        assert result.clean_accuracy > 0.8
        robust[method] = result.robust_accuracy
    assert robust["strades"] > robust["plain"] + 0.2


@pytest.mark.parametrize("method", [*METHODS, "sat+sn", "pgd0-t+s"])
def test_every_method_runs_and_lowers_its_loss(method: str) -> None:
    pattern = sp.Patches(2) if method.startswith("loap") else sp.Pixels()
    model, before = network(), network()
    options = {**QUICK, "steps": 1 if method == "fast-ls" else 3, "lam": 1.0, "schedule": "constant"}
    trained = sp.train(model, quadrants(), method, sp.Budget(k=1, pattern=pattern), epochs=4, **options)
    assert trained.model is model
    assert not model.training
    assert not same_weights(model, before)
    assert set(trained.curves) == {"loss", "attacked", "lr", "clean", "robust", "seconds"}
    assert trained.curves["loss"][-1] < trained.curves["loss"][0]


@pytest.mark.parametrize("gradient", ["random", "alternating", "unprojected", "projected"])
@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(3), sp.Shape.heart(5)], ids=["rows", "patches", "shape"])
def test_structured_budgets_are_trained_against(
    pattern: sp.Pattern, gradient: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = []

    def observed(*about: Any) -> Adversary:
        real = adversary(*about)

        def attack(model: nn.Module, batch: Batch, iteration: int) -> Tensor:
            x_adv = real(model, batch, iteration)
            groups.append(group_l0(x_adv - batch.x, pattern))
            return x_adv

        return attack

    monkeypatch.setattr(api, "adversary", observed)
    model, options = network(), {**QUICK, "steps": 2, "gradient": gradient}
    sp.train(model, quadrants(32), "strades+n", sp.Budget(k=1, pattern=pattern), epochs=2, **options)
    assert not same_weights(model, network())
    assert len(groups) == 2
    assert torch.cat(groups).min() >= 0  # -1: outside the pattern
    assert 0 < torch.cat(groups).max() <= 2


def test_the_same_seed_gives_the_same_weights_and_random_numbers_are_left_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    models = []
    for seed in (0, 0, 1):
        model = network(dropout=0.5)
        sp.train(model, quadrants(), "sat+sn", sp.Budget(k=1), epochs=2, seed=seed, ema=0.9, **QUICK)
        models.append(model)
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, seed=seed, **QUICK).settings.seed == seed


def test_a_dataset_a_loader_and_tensors_train_alike() -> None:
    x, y = quadrants()
    forms: list[Any] = [(x, y), ((x * 255).byte(), y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), 4)]
    models = [sp.train(network(), form, "sat", sp.Budget(k=1), epochs=1, **QUICK).model for form in forms]
    assert all(same_weights(models[0], model) for model in models[1:])


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor) -> tuple[str, Tensor]:
        return "logits", self.network(x)


def test_logits_are_picked_out_of_what_the_model_returns() -> None:
    trained = sp.train(Tuple(), quadrants(), "sat", sp.Budget(k=1), epochs=1, logits=lambda out: out[1], **QUICK)
    assert trained.curves["clean"]


def test_a_validation_set_is_watched_instead_of_held_out_images() -> None:
    x, y = quadrants()
    wrong = (y + 1) % 4
    trained = sp.train(network(), (x, y), "plain", epochs=8, validation=(x, wrong), lr=0.2, **QUICK)
    assert trained.curves["clean"][-1] < 0.3 < trained.curves["attacked"][-1]


def test_the_average_is_what_is_returned(tmp_path: Path) -> None:
    trained = sp.train(network(), quadrants(), "plain", epochs=2, ema=0.99, out=tmp_path, **QUICK)
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    first = next(trained.model.parameters())
    assert torch.equal(first, kept["average"][0])
    assert not torch.equal(first, kept["network"]["0.weight"])


class Stop(Exception):  # noqa: N818
    pass


def stopped_after(iterations: int) -> Any:
    def report(done: int, total: int, last: Any) -> None:
        if done == iterations:
            raise Stop

    return report


def settings_of_a_long_run(folder: Path | None) -> dict[str, Any]:
    return {**QUICK, "epochs": 4, "ema": 0.9, "soft_from": 0.25, "out": folder, "save_seconds": 0.0, "clip": 1.0}


@pytest.mark.parametrize("iterations", [1, 4, 8, 11])
def test_a_stopped_run_goes_on_to_the_same_weights_bit_for_bit(iterations: int, tmp_path: Path) -> None:
    """Soft targets, average, momentum and dropout included."""
    budget = sp.Budget(k=1)
    whole = sp.train(network(dropout=0.3), quadrants(), "strades+sn", budget, **settings_of_a_long_run(None))
    options = settings_of_a_long_run(tmp_path)
    with pytest.raises(Stop):
        sp.train(network(dropout=0.3), quadrants(), "strades+sn", budget, progress=stopped_after(iterations), **options)
    resumed = sp.train(network(dropout=0.3, seed=9), quadrants(), "strades+sn", budget, **options)
    if iterations > 3:
        assert same_weights(whole.model, resumed.model)
        assert whole.curves["loss"] == resumed.curves["loss"]
    finished = sp.train(network(dropout=0.3), quadrants(), "strades+sn", budget, progress=stopped_after(1), **options)
    assert same_weights(finished.model, resumed.model)  # nothing was left to do


PROGRAM = """
import sys, torch
from training.test_api import undisturbed
torch.set_num_threads(1)
undisturbed(sys.argv[1])
"""


def undisturbed(folder: str | Path) -> None:
    options = {"batch": 16, "steps": 4, "multi_eps": 2, "watch_steps": 2, "save_seconds": 0.0}
    sp.train(network(), quadrants(256), "strades+sn", sp.Budget(k=1), epochs=6, out=folder, **options)


def test_kill_9_and_resume_gives_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(killed)], env=ENVIRONMENT) as process:
        while not (killed / "training.json").exists() and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert 1 <= records.load(killed).epochs < 6
    for folder in (killed, whole):
        undisturbed(folder)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    first, second = (records.load(folder).curves for folder in (killed, whole))
    assert first["loss"] == second["loss"]
    assert first["robust"] == second["robust"]


def test_the_record_tells_the_run_and_its_curves(tmp_path: Path) -> None:
    names = {"model": "toy", "data": "quadrants"}
    trained = sp.train(network(), quadrants(), "sat+n", sp.Budget(k=2), epochs=2, out=tmp_path, names=names, **QUICK)
    record = records.load(tmp_path)
    assert record.finished
    assert record.curves == trained.curves
    assert record.configuration["settings"]["method"] == "sat+n"
    assert record.configuration["settings"]["budget"]["k"] == 2
    assert (record.configuration["model"]["name"], record.configuration["data"]["name"]) == ("toy", "quadrants")
    assert record.environment["torch"] == torch.__version__
    (tmp_path / "training.json").write_text(
        (tmp_path / "training.json").read_text().replace('"finished": true', '"finished": 7')
    )
    with pytest.raises(SourceError, match=r"training.json is no record"):
        records.load(tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (sp.Groups([[0, 1], [2, 3]]), sp.Groups([[0, 2], [1, 3]])),
        (sp.Shape([[1, 0], [1, 1]]), sp.Shape([[1, 1], [1, 0]])),
    ],
    ids=["groups", "shapes"],
)
def test_a_run_against_another_pattern_that_prints_alike_is_refused(
    first: sp.Pattern, second: sp.Pattern, tmp_path: Path
) -> None:
    assert repr(first) == repr(second)
    for pattern in (first, first):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1, pattern=pattern), epochs=1, out=tmp_path, **QUICK)
    with pytest.raises(UnsupportedError, match=r"holds another run: settings.budget.pattern.(sets|kernel) was"):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1, pattern=second), epochs=1, out=tmp_path, **QUICK)


def test_curves_without_a_value_in_the_first_epochs_are_recorded_resumed_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = []

    @contextmanager
    def fake(folder: Path) -> Iterator[Any]:
        yield lambda name, value, epoch: board.append((name, value, epoch))

    monkeypatch.setattr(api, "_board", fake)
    options = {**QUICK, "epochs": 3, "watch_every": 2, "out": tmp_path, "save_seconds": 0.0, "tensorboard": True}
    with pytest.raises(Stop):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), progress=stopped_after(5), **options)
    trained = sp.train(network(), quadrants(), "sat", sp.Budget(k=1), **options)
    clean = trained.curves["clean"]
    assert [value is None for value in clean] == [True, False, False]
    assert records.load(tmp_path).curves == trained.curves
    assert json.loads((tmp_path / "training.json").read_text())["curves"]["clean"] == clean
    assert {epoch for name, _, epoch in board if name == "clean"} == {2, 3}
    assert {epoch for name, _, epoch in board if name == "loss"} == {1, 2, 3}
    assert all(isinstance(value, float) for _, value, _ in board)


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    with pytest.raises(UnsupportedError, match=r"holds another run: settings.method was sat, is plain"):
        sp.train(network(), quadrants(), "plain", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    with pytest.raises(UnsupportedError, match=r"data.sha256 was"):
        sp.train(network(), quadrants(seed=3), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    torch.save({**kept, "version": 1}, tmp_path / "checkpoint.pt")
    with pytest.raises(SourceError, match=r"checkpoint.pt is of version 1, this sparsepgd reads 2; choose another"):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"checkpoint.pt is no checkpoint"):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)


def test_training_without_a_folder_needs_no_pydantic() -> None:
    program = (
        "import sys, sparsepgd as sp\n"
        "from training.toys import network, quadrants\n"
        "sp.train(network(), quadrants(), 'sat', sp.Budget(k=1), epochs=1, batch=16, steps=1)\n"
        "print({'pydantic', 'typer', 'rich', 'sklearn'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_what_cannot_be_trained_is_refused_before_anything_runs() -> None:
    x, y = quadrants(8)
    with pytest.raises(ModelError, match="no parameter that can be trained"):
        sp.train(nn.Flatten(), (x, y), "plain")
    with pytest.raises(RangeError, match="divide by 255"):
        sp.train(network(), (x * 255, y), "plain")
    with pytest.raises(LabelError, match="label 9 of image 0"):
        sp.train(network(), (x, y + 9 - y), "plain")
    with pytest.raises(LabelError, match="label 9 of image 0"):
        sp.train(network(), (x, y), "plain", validation=(x, y + 9 - y))
    with pytest.raises(DTypeError, match=r"labels of type torch.float32; expected integers"):
        sp.train(network(), (x, y + 0.5), "plain")
    with pytest.raises(ModelError, match=r"the model is a function; expected a torch.nn.Module"):
        sp.train(lambda x: x, (x, y), "plain")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="tensorboard=True without a folder"):
        sp.train(network(), (x, y), "plain", tensorboard=True)
    with pytest.raises(sp.errors.BudgetError, match="k=99 pixels, but a 8x8 image has 64"):
        sp.train(network(), (x, y), "sat", sp.Budget(k=99))
    with torch.inference_mode():
        model = network()
    with pytest.raises(ModelError, match=r"Sequential was built under torch.inference_mode; build it outside"):
        sp.train(model, (x, y), "plain")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data of type NoneType; expected a pair"),
        ("cifar10", r"item 0 is a str; expected \(image, label\)"),
        ((torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.int64)), "the data holds no images"),
    ],
    ids=["none", "name", "empty"],
)
def test_what_holds_no_images_is_refused(data: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        sp.train(network(), data, "plain")


def test_a_budget_that_is_not_trained_against_is_not_asked_to_fit() -> None:
    data: Any = quadrants(40, size=4)
    for method in ("plain", "linf", "plain+n"):
        trained = sp.train(network(), data, method, epochs=1, **QUICK)
        assert trained.settings.budget.k == 16  # 20 pixels, or all there are
    sp.train(network(), data, "plain", sp.Budget(k=20), epochs=1, **{**QUICK, "watch_steps": 0})


@pytest.mark.parametrize(("method", "budget"), [("sat", None), ("plain", sp.Budget(k=20)), ("l2+n", sp.Budget(k=20))])
def test_a_budget_that_is_used_must_fit_and_is_refused_before_anything_runs(
    method: str, budget: sp.Budget | None
) -> None:
    model = network()
    with pytest.raises(sp.errors.BudgetError, match="k=20 pixels, but a 4x4 image has 16"):
        sp.train(model, quadrants(40, size=4), method, budget, epochs=1, **QUICK)
    assert same_weights(model, network())


def test_tensorboard_that_is_missing_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'sparsepgd\[tensorboard\]'"):
        sp.train(network(), quadrants(), "plain", out=tmp_path, tensorboard=True)
