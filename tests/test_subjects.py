"""benchmarks/subjects.py: trained by recipe in processes, then weights, card and record; measured once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.runs import identity
from support.scripts import output
from test_results_page import ROOT, script


@pytest.fixture
def subjects(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("subjects", monkeypatch)


def test_every_recipe_has_its_turn_and_every_place_its_recipe(subjects: Any) -> None:
    files = {file.stem for file in (ROOT / "recipes" / "subjects").glob("*.toml")}
    assert len(subjects.NAMES) == len(files)
    assert set(subjects.NAMES) == files
    wanted = {source for one in RECIPES.values() for source in one.roles.values() if source is not None}
    assert {source.removeprefix("zoo:") for source in wanted} == files


def test_a_subject_is_measured_under_all_its_budgets(subjects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(subjects.budgets("subject-row")) == ["1 row"]
    found = subjects.budgets("subject-anneal-union")
    assert [(words, one.k, one.pattern) for words, one in found.items()] == [
        ("20 pixel", 20, sp.Pixels()), ("1 row", 1, sp.Rows()), ("1 patch:5", 1, sp.Patches(5))
    ]  # fmt: skip
    assert list(subjects.budgets("subject-row", ["20 pixel", "1 patch:5"])) == ["20 pixel", "1 patch:5"]
    records = script("records", monkeypatch)
    assert [records._words(identity.plain(one.pattern)) for one in found.values()] == ["pixel", "row", "patch:5"]


def test_a_subject_is_trained_written_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subjects: Any
) -> None:
    monkeypatch.setenv("SPARSEPGD_WEIGHTS", "")  # set by the script; as before afterwards
    monkeypatch.setenv("COMMIT", "abc")
    x, y = zoo.bundled_images(24)
    np.savez(tmp_path / "c.npz", x_test=x[:4], y_test=y[:4], x_train=x[4:], y_train=y[4:])
    words = ("--data", f"npz:{tmp_path / 'c.npz'}", "--out", str(tmp_path / "runs"), "--jobs", "1")
    words += ("--weights", str(tmp_path / "subjects"), "--records", str(tmp_path), "--only", "subject-plain")
    few = ("-n", "2", "--steps", "2", "--queries", "4")
    small = ("--set", "epochs=1", "--set", "batch=10", "--set", "held_out=4")
    said = output(ROOT / "benchmarks" / "subjects.py", "train", *words, *small, cwd=ROOT)
    assert "subject-plain: clean" in said
    assert "left: none" in said
    for _ in range(2):
        output(ROOT / "benchmarks" / "subjects.py", "measure", *words, *few, cwd=ROOT)
    card, record = (
        zoo.card("subject-plain", tmp_path / "subjects"),
        json.loads((tmp_path / "subject-plain.json").read_text()),
    )
    assert [(one.attack, one.images, one.steps) for one in card.robust] == [("saa+", 2, 2), ("saa", 2, 2)]
    assert len(record["robust"]) == 2
    assert str(tmp_path) not in json.dumps([record, card.command])
    records = script("records", monkeypatch)
    assert records.missing(record) == []


def test_a_subject_waits_for_the_one_it_starts_from(tmp_path: Path, subjects: Any, capsys: Any) -> None:
    words = ("--weights", str(tmp_path / "subjects"), "--out", str(tmp_path), "--only", "subject-sat", "subject-linf")
    with pytest.raises(AssertionError, match="1"):
        output(ROOT / "benchmarks" / "subjects.py", "train", "--data", "bundled", *words, cwd=ROOT)
    assert subjects.start("subject-sat") == "subject-plain"
