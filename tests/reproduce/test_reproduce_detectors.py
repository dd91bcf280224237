"""The table of detectors, on a network of torchvision without weights and one drawn scene."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from sparsepgd.errors import UnsupportedError
from sparsepgd.reproduce.experiments.detectors import BUDGETS, DetectorCase
from sparsepgd.reproduce.parts import cost, identified
from sparsepgd.reproduce.recipes import recipe
from support.tiny_jobs import tiny_job

FACTORY = """
from torchvision.models.detection import fcos_resnet50_fpn
import torch

def make():
    torch.manual_seed(0)
    return fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64)
"""


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    folder = tmp_path / "scenes"
    (folder / "images").mkdir(parents=True)
    (folder / "boxes").mkdir()
    picture = Image.new("RGB", (64, 64))
    picture.paste((200, 200, 200), (10, 20, 50, 40))
    picture.save(folder / "images" / "one.png")
    (folder / "boxes" / "one.txt").write_text("1 0.47 0.47 0.63 0.32\n")
    (tmp_path / "net.py").write_text(FACTORY)
    return folder


def test_every_budget_meets_every_attack_that_takes_it_and_is_kept(scenes: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    pytest.importorskip("pycocotools")
    models = {"detection": f"{tmp_path / 'net.py'}:make"}
    job = tiny_job(tmp_path / "out", images=1, models=models, data=f"folder:{scenes}", size=64)
    _, plan = recipe("detection").prepare(job)
    parts = [part for part in plan.parts if isinstance(part, DetectorCase)]
    assert {(part.row, part.column) for part in parts} == {
        (row, column)
        for row, (_, side) in BUDGETS.items()
        for column in ("RS", "SAIF", "sPGD", "anneal")
        if column != "SAIF" or side is None  # it has no patches
    }
    assert parts[0].attack.budget.k == 16  # the paper's 1600 of 640x640, as a share
    assert cost(plan).seconds > 0
    assert next(part for part in parts if part.column == "anneal").run(job, None)["attacked"] >= 0
    kept = [part.run(job, None) for part in parts[:1]]
    assert kept == [part.run(job, None) for part in parts[:1]]
    numbers = plan.finish([kept[0]] * len(parts)).numbers
    assert (numbers[0].column, numbers[0].paper) == ("clean", 55.1)
    gaps = plan.finish([None, kept[0], *[None] * (len(parts) - 2)]).numbers
    assert [number.here for number in gaps[:3]] == [kept[0]["clean"], None, kept[0]["attacked"]]


def test_results_for_other_boxes_are_not_reused(scenes: Path, tmp_path: Path) -> None:
    models = {"detection": f"{tmp_path / 'net.py'}:make"}
    job = tiny_job(tmp_path / "out", images=1, models=models, data=f"folder:{scenes}", size=64)
    digests = set()
    for line in ("1 0.47 0.47 0.63 0.32", "1 0.47 0.47 0.5 0.32", "2 0.47 0.47 0.63 0.32"):
        (scenes / "boxes" / "one.txt").write_text(f"{line}\n")
        _, plan = recipe("detection").prepare(job)
        digests.add(identified(plan.parts[0], job)[1])
    assert len(digests) == 3


def test_without_a_detector_the_recipe_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"--model detection=yolov8m\.pt --data folder:DIR"):
        recipe("detection").prepare(tiny_job(tmp_path, models={"detection": "net.py:make"}))
