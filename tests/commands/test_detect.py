"""`spgd detect`: table, records and pictures of a small detector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from sparsepgd.commands.common import out
from sparsepgd.commands.detect import detect
from sparsepgd.errors import BudgetError, UnsupportedError
from sparsepgd.runs.identity import hardware

DETECTOR = """
import torch
from torch import nn
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD

def make():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        backbone.out_channels = [8]
        return SSD(backbone, DefaultBoxGenerator([[2]], scales=[0.3, 0.6]), (64, 64), 4, score_thresh=0.0)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "detector.py").write_text(DETECTOR)
    for name in ("images", "boxes"):
        (tmp_path / "data" / name).mkdir(parents=True)
    levels = torch.randint(0, 256, (32, 64, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for name in "ab":
        Image.fromarray(levels.numpy()).save(tmp_path / "data" / "images" / f"{name}.png")
        (tmp_path / "data" / "boxes" / f"{name}.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    return tmp_path


@pytest.fixture
def _torchmetrics() -> None:
    pytest.importorskip("torchmetrics", reason="not installed; pip install 'sparsepgd[detection]'")
    pytest.importorskip("pycocotools", reason="not installed; pip install 'sparsepgd[detection]'")


@pytest.mark.usefixtures("_torchmetrics")
def test_table_records_and_pictures(place: Path) -> None:
    with out.capture() as shown:
        detect(
            place / "data",
            model=f"{place / 'detector.py'}:make",
            attack="spgd,saif,rs",
            budget=["pixel@20", "patch:4@2"],
            size=64,
            steps=3,
            queries=3,
            pictures=1,
            out_dir=place / "out",
            device="cpu",
        )
    words = shown.get()
    assert "not supported: saif-published patch:4@2" in " ".join(words.split())
    record = json.loads((place / "out" / "detect.json").read_text())
    assert record["command"].startswith("spgd")
    assert record["hardware"] == hardware(torch.device("cpu"))
    assert (record["images"], record["size"], record["device"]) == (2, 64, "cpu")
    done = [(line["attack"], line["words"]) for line in record["lines"]]
    assert done == [
        ("spgd-unprojected", "pixel@20"),
        ("saif-published", "pixel@20"),
        ("sparse-rs", "pixel@20"),
        ("spgd-unprojected", "patch:4@2"),
        ("sparse-rs", "patch:4@2"),
    ]
    assert all(line["l0"] <= 32 and line["loss"] >= line["clean_loss"] - 1e-4 for line in record["lines"])
    assert all([row["name"] for row in line["rows"]] == ["a", "b"] for line in record["lines"])
    assert all(0 <= line["boxes"]["map50_95"] <= line["boxes"]["map50"] <= 1 for line in record["lines"])
    assert sorted(file.name for file in (place / "out" / "pictures").iterdir()) == [
        "saif-published-pixel-20-a.png",
        "sparse-rs-patch4-2-a.png",
        "sparse-rs-pixel-20-a.png",
        "spgd-unprojected-patch4-2-a.png",
        "spgd-unprojected-pixel-20-a.png",
    ]
    assert "mAP50-95" in words
    assert str(place / "out") in words.replace("\n", "")


def test_wrong_words_are_named(place: Path) -> None:
    model = f"{place / 'detector.py'}:make"
    with pytest.raises(BudgetError, match="budget 'pixel'; use PATTERN@K"):
        detect(place / "data", model=model, budget=["pixel"])
    with pytest.raises(BudgetError, match="budget 'pixel@²'; use PATTERN@K"):
        detect(place / "data", model=model, budget=["pixel@²"])
    with pytest.raises(UnsupportedError, match="attack 'nothing'"):
        detect(place / "data", model=model, attack="spgd,nothing")
    with pytest.raises(UnsupportedError, match="saa needs successes"):
        detect(place / "data", model=model, attack="saa", budget=["pixel@5"])
    with pytest.raises(UnsupportedError, match="SAIF supports Pixels or Features, not Patches"):
        detect(place / "data", model=model, attack="saif", budget=["patch:4@5"])
