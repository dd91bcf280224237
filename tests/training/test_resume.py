"""Training in a folder: a stopped run goes on to the same weights, another one is refused, the record tells it all."""

from __future__ import annotations

import json
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
from safetensors.torch import load_file

import sparsepgd as sp
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.training import run_folder
from support.quadrants import ENVIRONMENT, QUICK, network, quadrants, same_weights

OTHERS = (sp.Budget(k=1, pattern=sp.Rows()), sp.Budget(k=1, pattern=sp.Patches(3)))


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


@pytest.mark.parametrize("others", [(), OTHERS], ids=["one budget", "three budgets"])
@pytest.mark.parametrize("searched", [0.0, 0.6])
def test_kept_changes_and_rising_steps_are_part_of_the_checkpoint(
    searched: float, others: tuple[sp.Budget, ...], tmp_path: Path
) -> None:
    options = {**settings_of_a_long_run(None), "keep": True, "mixed": 0.4, "steps_last": 5, "augment": "crop+flip"}
    options["searched"] = searched
    options |= {"others": others, "seed": 2}  # all budgets have their turns before the stop and after it
    whole = sp.train(network(), quadrants(), "anneal-trades", sp.Budget(k=1), **options)
    options["out"] = tmp_path
    with pytest.raises(Stop):
        sp.train(network(), quadrants(), "anneal-trades", sp.Budget(k=1), progress=stopped_after(8), **options)
    resumed = sp.train(network(seed=9), quadrants(), "anneal-trades", sp.Budget(k=1), **options)
    assert same_weights(whole.model, resumed.model)


def test_a_checkpoint_from_before_a_setting_existed_goes_on(tmp_path: Path) -> None:
    options = {**QUICK, "out": tmp_path, "save_seconds": 0.0}
    with pytest.raises(Stop):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=3, progress=stopped_after(5), **options)
    kept = torch.load(tmp_path / run_folder.CHECKPOINT, weights_only=True)
    for name in ("keep", "mixed", "searched", "queries", "steps_last", "others", "multi_eps_others"):
        del kept["configuration"]["settings"][name]
    del kept["changes"]
    torch.save(kept, tmp_path / run_folder.CHECKPOINT)
    assert len(sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=3, **options).curves["loss"]) == 3


PROGRAM = """
import sys, torch
from training.test_resume import undisturbed
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
    assert 1 <= run_folder.load(killed).epochs < 6
    for folder in (killed, whole):
        undisturbed(folder)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    first, second = (run_folder.load(folder).curves for folder in (killed, whole))
    assert first["loss"] == second["loss"]
    assert first["robust"] == second["robust"]


def test_two_layers_may_share_their_weights(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), *(torch.nn.Linear(64, 64) for _ in range(2)))
    model[2].weight = model[1].weight
    sp.train(model, quadrants(), "plain", epochs=1, out=tmp_path, **QUICK)
    written = load_file(tmp_path / "model.safetensors")
    assert torch.equal(written["1.weight"], model[1].weight)
    assert torch.equal(written["2.weight"], model[1].weight)


def test_the_record_tells_the_run_and_its_curves(tmp_path: Path) -> None:
    names = {"model": "toy", "data": "quadrants"}
    trained = sp.train(network(), quadrants(), "sat+n", sp.Budget(k=2), epochs=2, out=tmp_path, names=names, **QUICK)
    record = run_folder.load(tmp_path)
    assert record.finished
    assert record.curves == trained.curves
    assert record.configuration["settings"]["method"] == "sat+n"
    assert record.configuration["settings"]["budget"]["k"] == 2
    assert (record.configuration["model"]["name"], record.configuration["data"]["name"]) == ("toy", "quadrants")
    assert record.environment["torch"] == torch.__version__
    (tmp_path / "training.json").write_text(
        (tmp_path / "training.json").read_text().replace('"finished": true', '"finished": 7')
    )
    with pytest.raises(SourceError, match=r"training.json is not a valid record"):
        run_folder.load(tmp_path)


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

    monkeypatch.setattr(run_folder, "_board", fake)
    options = {**QUICK, "epochs": 3, "watch_every": 2, "out": tmp_path, "save_seconds": 0.0, "tensorboard": True}
    with pytest.raises(Stop):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), progress=stopped_after(5), **options)
    trained = sp.train(network(), quadrants(), "sat", sp.Budget(k=1), **options)
    clean = trained.curves["clean"]
    assert [value is None for value in clean] == [True, False, False]
    assert run_folder.load(tmp_path).curves == trained.curves
    assert json.loads((tmp_path / "training.json").read_text())["curves"]["clean"] == clean
    assert {epoch for name, _, epoch in board if name == "clean"} == {2, 3}
    assert {epoch for name, _, epoch in board if name == "loss"} == {1, 2, 3}
    assert all(isinstance(value, float) for _, value, _ in board)


def test_a_run_against_other_budgets_is_refused(tmp_path: Path) -> None:
    options = {**QUICK, "out": tmp_path, "epochs": 1}
    for _ in range(2):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), others=OTHERS, **options)
    assert [one["k"] for one in run_folder.load(tmp_path).configuration["settings"]["others"]] == [1, 1]
    with pytest.raises(UnsupportedError, match=r"holds another run: settings.others was"):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), others=OTHERS[::-1], **options)


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    with pytest.raises(UnsupportedError, match=r"holds another run: settings.method was sat, is plain"):
        sp.train(network(), quadrants(), "plain", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    with pytest.raises(UnsupportedError, match=r"data.sha256 was"):
        sp.train(network(), quadrants(seed=3), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    torch.save({**kept, "version": 1}, tmp_path / "checkpoint.pt")
    with pytest.raises(SourceError, match=r"checkpoint.pt is of version 1, but this sparsepgd reads version 2"):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"checkpoint.pt is not a valid checkpoint"):
        sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, out=tmp_path, **QUICK)
