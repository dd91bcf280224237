"""The picture of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.evaluation.curves import Smallest, accuracy_over_k, accuracy_over_steps, smallest_k
from sparsepgd.evaluation.figures import draw
from sparsepgd.evaluation.runs import run

X, Y = zoo.bundled_images(16)
ATTACK = sp.SparsePGD(sp.Budget(k=12), steps=10)
NAMES = {"model": "small-plain", "data": "bundled"}


@pytest.mark.parametrize("k_max", [None, 12])
def test_curves_are_drawn_into_the_folder(tmp_path: Path, k_max: int | None) -> None:
    attack = ATTACK if k_max is None else Smallest(ATTACK, ATTACK.budget)
    record = run(tmp_path / "run", attack, zoo.load("small-plain"), (X, Y), NAMES, seed=0)
    file = draw(record, tmp_path / "run", "small-plain", k_max)
    with Image.open(file) as picture:
        assert (picture.size[0] > picture.size[1] * 2) == (k_max is None)  # two panels, or one
        assert len(set(picture.convert("L").get_flattened_data())) > 20  # something is drawn


def test_a_record_gives_the_curve_of_its_result(tmp_path: Path) -> None:
    model = zoo.load("small-plain")
    record = run(tmp_path / "run", ATTACK, model, (X, Y), NAMES, seed=0)
    result = ATTACK(model, X, Y, seed=0)
    for ours, expected in zip(accuracy_over_steps(record), accuracy_over_steps(result), strict=True):
        assert torch.equal(ours, expected)


def test_smallest_k_runs_like_any_attack_and_its_record_is_the_curve(tmp_path: Path) -> None:
    model = zoo.load("small-plain").double()
    search = Smallest(ATTACK, ATTACK.budget)
    record = run(tmp_path / "run", search, model, (X.double(), Y), NAMES, seed=0, chunk=5)
    found = smallest_k(ATTACK, model, X.double(), Y, 12, seed=0)
    k, accuracy = accuracy_over_k(record, 12)
    assert k.tolist() == list(range(13))
    torch.testing.assert_close(accuracy, found.curve()[1])
    assert accuracy[-1] == record.robust_accuracy
    assert [row.groups for row in record.rows if row.fooled] == found.k[found.result.fooled].tolist()
    assert {row.broken_by for row in record.rows if row.fooled} == {"spgd-unprojected-smallest-k"}
