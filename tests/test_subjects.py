"""benchmarks/subjects.py: trained by recipe in processes, then weights, card and record; measured once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.report import leaderboard as board
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.runs import identity
from support.scripts import ROOT, output, script


@pytest.fixture
def subjects(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("subjects", monkeypatch)


def test_every_recipe_has_its_turn_and_every_place_its_recipe(subjects: Any) -> None:
    files = {file.stem for file in (ROOT / "recipes" / "subjects").glob("*.toml")}
    assert len(subjects.NAMES) == len(files)
    assert set(subjects.NAMES) == files
    wanted = {source for one in RECIPES.values() for source in one.roles.values() if source is not None}
    assert {source.removeprefix("zoo:") for source in wanted} == files


def test_a_model_is_measured_under_all_budgets_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    measure, records = script("measure", monkeypatch), script("records", monkeypatch)
    assert list(measure.budgets("subject-row", [])) == ["k = 1 row"]
    found = measure.budgets("subject-anneal-union", [])
    wanted = [(20, sp.Pixels()), (1, sp.Rows()), (1, sp.Patches(5))]
    assert [(one.k, one.pattern) for one in found.values()] == wanted
    assert list(measure.budgets("subject-row", ["20 pixel", "1 patch:5"])) == ["k = 20 pixels", "k = 1 patch 5x5"]
    assert [records.pattern_of(identity.plain(one.pattern)) for one in found.values()] == ["pixel", "row", "patch:5"]


def test_a_subject_is_trained_written_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMIT", "abc")
    x, y = zoo.bundled_images(24)
    np.savez(tmp_path / "c.npz", x_test=x[:4], y_test=y[:4], x_train=x[4:], y_train=y[4:])
    words = ("--data", f"npz:{tmp_path / 'c.npz'}", "--out", str(tmp_path / "runs"), "--jobs", "1")
    words += ("--records", str(tmp_path))
    small = ("--set", "epochs=1", "--set", "batch=10", "--set", "held_out=4", "--only", "subject-plain")
    weights = ("--weights", str(tmp_path / "subjects"))
    said = output(ROOT / "benchmarks" / "subjects.py", *words, *small, *weights, cwd=ROOT)
    assert "subject-plain: clean" in said
    assert "left: none" in said
    monkeypatch.setenv("SPARSEPGD_WEIGHTS", str(tmp_path))
    few = ("-n", "2", "--steps", "2", "--queries", "4", "--seeds", "2", "--leaderboard", str(tmp_path / "board"))
    said, again = (
        output(ROOT / "benchmarks" / "measure.py", "subject-plain", *words, *few, cwd=ROOT) for _ in range(2)
    )
    assert "4 of 4 measured" in said
    assert "0 of 0 measured" in again, "the leaderboard has them"
    card, record = (
        zoo.card("subject-plain", tmp_path / "subjects"),
        json.loads((tmp_path / "subject-plain.json").read_text()),
    )
    *single, together = card.robust
    assert [(one.attack, one.seed) for one in single] == [("saa+", 0), ("saa", 0), ("saa+", 1), ("saa", 1)]
    assert (together.attack, together.runs, together.images, together.k) == (zoo.ALL_RUNS, 4, 2, 20)
    (entered,) = board.contenders(tmp_path / "board")
    assert together.robust_accuracy == entered.robust_accuracy <= min(one.robust_accuracy for one in single)
    assert len(record["robust"]) == 5
    assert str(tmp_path) not in json.dumps([record, card.command])
    assert script("provenance", monkeypatch).missing(record) == []


def test_a_subject_waits_for_the_one_it_starts_from(tmp_path: Path, subjects: Any, capsys: Any) -> None:
    words = ("--weights", str(tmp_path / "subjects"), "--out", str(tmp_path), "--only", "subject-sat", "subject-linf")
    with pytest.raises(AssertionError, match="1"):
        output(ROOT / "benchmarks" / "subjects.py", "--data", "bundled", *words, cwd=ROOT)
    assert subjects.start("subject-sat") == "subject-plain"
