"""Records: what they hold, that older ones are still read, and that the curves of a run can be had from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.analysis.curves import (
    Smallest,
    accuracy_over_k,
    accuracy_over_queries,
    accuracy_over_steps,
    smallest_k,
)
from sparsepgd.runs.folders import load, load_adversarial
from sparsepgd.runs.records import About
from sparsepgd.runs.runs import run

X, Y = zoo.bundled_images(16)
ATTACK = sp.SparsePGD(sp.Budget(k=12), steps=10)
NAMES = {"model": "small-plain", "data": "bundled"}
ABOUT = About(class_names=zoo.CIFAR10_CLASSES, command="spgd evaluate --k 12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("records") / "run"
    run(place, ATTACK, zoo.load("small-plain"), (X, Y), NAMES, seed=0, chunk=6, about=ABOUT)
    return place


def test_confidences_are_the_probabilities_of_the_predictions(folder: Path) -> None:
    rows, x_adv = load(folder).rows, load_adversarial(folder)["x_adv"]
    with torch.no_grad():
        before, after = (zoo.load("small-plain")(images).softmax(1).max(1) for images in (X, x_adv))
    assert [row.clean_prediction for row in rows] == before.indices.tolist()
    assert [row.clean_confidence for row in rows] == pytest.approx(before.values.tolist(), abs=1e-4)
    assert [row.prediction for row in rows] == after.indices.tolist()
    assert [row.confidence for row in rows] == pytest.approx(after.values.tolist(), abs=1e-4)


def test_class_names_and_command_are_kept_but_do_not_tell_runs_apart(folder: Path) -> None:
    assert load(folder).about == ABOUT
    again = run(folder, ATTACK, zoo.load("small-plain"), (X, Y), NAMES, seed=0, about=About(command="another"))
    assert again.about == ABOUT  # only read: the run was finished


def test_records_from_before_confidences_and_names_are_read(folder: Path, tmp_path: Path) -> None:
    written = json.loads((folder / "run.json").read_text())
    del written["about"]
    for row in written["rows"]:
        del row["clean_confidence"], row["confidence"]
    (tmp_path / "run.json").write_text(json.dumps(written))
    record = load(tmp_path)
    assert (record.about, record.rows[0].confidence) == (About(), None)
    assert record.robust_accuracy == load(folder).robust_accuracy


def test_the_summary_counts_what_the_rows_hold(folder: Path) -> None:
    record, result = load(folder), ATTACK(zoo.load("small-plain"), X, Y, seed=0)
    row = record.summary()
    assert (row.images, row.seconds, row.interval) == (16, record.seconds, record.robust_interval)
    assert (row.clean_accuracy, row.robust_accuracy) == (result.clean_accuracy, result.robust_accuracy)
    assert (row.forwards, row.backwards) == (int(result.forwards.sum()), int(result.backwards.sum()))
    assert row.median_l0 == float(result.l0[result.fooled].float().median())
    assert row.median_steps == float(result.steps[result.fooled].float().median())


def test_the_summary_of_an_attack_that_fools_nobody_has_no_medians() -> None:
    weak = sp.SparsePGD(sp.Budget(k=1, eps=1e-6), steps=1)
    row = run(None, weak, zoo.load("small-plain"), (X[:2], Y[:2])).summary()
    assert math.isnan(row.median_l0)
    assert math.isnan(row.median_steps)


def test_a_record_gives_the_curves_of_its_result(folder: Path) -> None:
    record, result = load(folder), ATTACK(zoo.load("small-plain"), X, Y, seed=0)
    for curve in (accuracy_over_steps, accuracy_over_queries):
        for ours, expected in zip(curve(record), curve(result), strict=True):
            assert torch.equal(ours, expected)


def test_accuracy_over_queries_counts_forward_passes(folder: Path) -> None:
    record = load(folder)
    queries, accuracy = accuracy_over_queries(record)
    assert int(queries[-1]) == max(row.forwards for row in record.rows) == 11
    for count, value in zip(queries.tolist(), accuracy.tolist(), strict=True):
        left = sum(row.clean_correct and not (row.fooled and row.forwards <= count) for row in record.rows)
        assert value == pytest.approx(left / 16)


def test_smallest_k_runs_like_any_attack_and_its_record_is_the_curve(tmp_path: Path) -> None:
    model = zoo.load("small-plain").double()
    search = Smallest(ATTACK, ATTACK.budget)
    record = run(tmp_path / "run", search, model, (X[:8].double(), Y[:8]), NAMES, seed=0, chunk=5)
    found = smallest_k(ATTACK, model, X[:8].double(), Y[:8], 12, seed=0)
    k, accuracy = accuracy_over_k(record, 12)
    assert k.tolist() == list(range(13))
    torch.testing.assert_close(accuracy, found.curve()[1])
    assert accuracy[-1] == record.robust_accuracy
    assert [row.groups for row in record.rows if row.fooled] == found.k[found.result.fooled].tolist()
    assert {row.broken_by for row in record.rows if row.fooled} == {"spgd-unprojected-smallest-k"}
