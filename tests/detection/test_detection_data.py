"""Folders in YOLO's text format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from sparsepgd.detection import read_folder
from sparsepgd.errors import SourceError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """b: 64x32, one box in its right half, outlined as a triangle. a: square, with nothing on it."""
    for name in ("images", "boxes", "polygons"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (64, 32), (255, 0, 0)).save(tmp_path / "images" / "b.png")
    Image.new("RGB", (32, 32), (0, 0, 255)).save(tmp_path / "images" / "a.png")
    (tmp_path / "boxes" / "b.txt").write_text("7 0.75 0.5 0.5 1\n\n")
    (tmp_path / "polygons" / "b.txt").write_text("7 0.5 0 1 0 0.5 1\n")
    return tmp_path


def test_pictures_come_by_name_letterboxed_with_their_boxes(folder: Path) -> None:
    scenes = read_folder(folder, 64)
    assert scenes.names == ("a", "b")
    assert scenes.x.shape == (2, 3, 64, 64)
    assert [len(target) for target in scenes.targets] == [0, 1]
    assert scenes.targets[0].boxes.shape == (0, 4)
    assert scenes.targets[1].boxes.tolist() == [[32, 16, 64, 48]]
    assert scenes.targets[1].labels.tolist() == [7]
    assert scenes.content.flatten(1).sum(1).tolist() == [64 * 64, 64 * 32]
    assert scenes.x[1, :, 32, 10].tolist() == [1, 0, 0]


def test_outlines_become_masks_and_boxes(folder: Path) -> None:
    empty, triangle = read_folder(folder, 64, masks=True).targets
    assert empty.masks is not None
    assert empty.masks.shape == (0, 64, 64)
    assert triangle.masks is not None
    assert triangle.boxes.tolist() == [[32, 16, 64, 48]]
    mask = triangle.masks[0]
    assert not bool(mask[:, :32].any() or mask[:16].any())
    assert bool(mask[18, 36])
    assert not bool(mask[46, 60])
    assert abs(int(mask.sum()) - 32 * 32 / 2) < 64


def test_n_takes_the_first(folder: Path) -> None:
    assert read_folder(folder, 64, 1).names == ("a",)
    with pytest.raises(SourceError, match=r"n=3, but .* holds 2 pictures"):
        read_folder(folder, 64, 3)


def test_what_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no pictures in"):
        read_folder(tmp_path / "nowhere", 64)
    with pytest.raises(SourceError, match="multiple of 32"):
        read_folder(folder, 100)
    (folder / "boxes" / "b.txt").write_text("7 0.75 0.5 0.5 1\nseven 0 0 1 1\n")
    with pytest.raises(SourceError, match="line 2: 'seven 0 0 1 1'"):
        read_folder(folder, 64)
    (folder / "boxes" / "b.txt").write_text("7 0.75 0.5 0.5\n")
    with pytest.raises(SourceError, match="line 1: 3 coordinates for class 7"):
        read_folder(folder, 64)
    (folder / "images" / "a.png").write_text("no picture")
    with pytest.raises(SourceError, match="cannot be read as a picture"):
        read_folder(folder, 64)
    (folder / "images" / "a.png").unlink()
    (folder / "polygons" / "b.txt").write_text("7 0.75 0.5 0.5 1\n")
    with pytest.raises(SourceError, match=r"line 1: 4 coordinates for class 7; .* at least 3 pairs"):
        read_folder(folder, 64, masks=True)
    (folder / "polygons" / "b.txt").unlink()
    (folder / "polygons").rmdir()
    with pytest.raises(SourceError, match="no polygons or segments in"):
        read_folder(folder, 64, masks=True)


def test_coco_is_read_with_every_box_inside_its_image() -> None:
    place = Path(os.environ.get("SPARSEPGD_DATA", "")) / "coco-val48"
    if "SPARSEPGD_DATA" not in os.environ or not place.is_dir():
        pytest.skip("needs 48 images of COCO: SPARSEPGD_DATA=FOLDER with coco-val48 in it")
    scenes = read_folder(place, 320, 12, masks=True)
    assert all(len(target) > 0 for target in scenes.targets)
    for target, content in zip(scenes.targets, scenes.content, strict=True):
        rows, columns = content.any(1).nonzero()[:, 0], content.any(0).nonzero()[:, 0]
        low = torch.tensor([columns[0], rows[0]] * 2) - 1e-3
        high = torch.tensor([columns[-1], rows[-1]] * 2) + 1 + 1e-3
        assert bool(((target.boxes >= low) & (target.boxes <= high)).all())
        assert target.masks is not None
        assert bool(target.masks.flatten(1).any(1).all())
