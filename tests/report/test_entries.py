"""Runs as they are shown: found, named and told apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import sparsepgd as sp
from sparsepgd.errors import SourceError
from sparsepgd.report.entries import collect, notices
from sparsepgd.report.page import _flat, _table, _together
from support.reported_runs import make, make_ensemble, make_over_k, make_watermark, spgd


def test_runs_are_found_in_folders_within_and_named_by_what_differs(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "a", model_name="one")
    make(tmp_path / "runs" / "b" / "c", spgd(k=2), model_name="one")
    entries = collect([tmp_path / "runs", tmp_path / "runs" / "a"])  # named twice, shown once
    assert [entry.letter for entry in entries] == ["A", "B"]
    assert [entry.label for entry in entries] == [
        "one · spgd-unprojected · k = 6 pixels",
        "one · spgd-unprojected · k = 2 pixels",
    ]
    (alone,) = collect([tmp_path / "runs" / "a"])
    assert alone.label == "one · spgd-unprojected"


def test_a_folder_without_a_run_and_one_without_clean_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no run in"):
        collect([tmp_path])
    folder = make(tmp_path / "run")
    (folder / "adversarial.safetensors").unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        collect([folder])


def test_groups_of_the_same_sizes_are_no_rivals_and_are_told_apart_on_the_page(tmp_path: Path) -> None:
    sets = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    attacks = (
        sp.SparsePGD(sp.Budget(1, sp.Groups(sets[0])), 1, "projected"),
        sp.SparseRS(sp.Budget(1, sp.Groups(sets[1])), 5),
    )
    folders = [make(tmp_path / attack.name, attack, model_name="one") for attack in attacks]
    first, second = entries = collect(folders)
    assert first.budget == second.budget == "k = 1 group (2 of 2 places)"
    assert first.comparison_key != second.comparison_key
    assert list(_together(entries)) == []
    rows = {name: values for name, values, _ in _table([_flat(entry.record.configuration) for entry in entries])}
    one, other = rows["attack.budget.pattern.sets"]
    assert one != other
    assert one.startswith("2, sha256 ")


def test_kinds_of_runs_are_told_apart(tmp_path: Path) -> None:
    (plain, over_k, mark) = (
        collect([made(tmp_path / made.__name__)])[0] for made in (make_ensemble, make_over_k, make_watermark)
    )
    assert (plain.over_k, plain.k, plain.length, plain.structured) == (False, 5, "3 steps, 40 queries", False)
    assert (over_k.over_k, over_k.k, over_k.length) == (True, 6, "8 steps")
    assert (mark.structured, mark.k) == (True, 1)
    assert int(mark.changed.sum(dim=(1, 2)).max()) <= 16


def test_notices_come_from_the_records_and_from_laying_runs_side_by_side(tmp_path: Path) -> None:
    weak = make(tmp_path / "weak", spgd(k=6, steps=1), model_name="one")
    strong = make(tmp_path / "strong", sp.SparseRS(sp.Budget(k=6), queries=200), model_name="one")
    other = make(tmp_path / "other", count=12, model_name="one")
    found = notices(collect([weak, strong]))
    assert [(letters, notice.code) for letters, notice in found] == [("A, B", "black-box-wins")]
    assert ("", "other-images") in {(letters, notice.code) for letters, notice in notices(collect([weak, other]))}
    warned = shutil.copytree(weak, tmp_path / "warned")
    record = json.loads((warned / "run.json").read_text())
    record["warnings"] = [{"code": "range", "message": "too dark"}]
    (warned / "run.json").write_text(json.dumps(record))
    assert [(letters, notice.message) for letters, notice in notices(collect([warned]))] == [("A", "too dark")]
