"""Models and images by name, and what is said when they are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd import zoo
from sparsepgd.errors import SourceError
from sparsepgd.evaluation.sources import load_data, load_image, load_model, save_image

FACTORY = """
import torch
def tiny():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
def number():
    return 3
"""


def test_zoo_models_come_with_class_names() -> None:
    source = load_model("zoo:small-plain")
    assert source.class_name(3) == "cat"
    assert source.class_name(12) == "class 12"


def test_a_factory_in_a_file_makes_the_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)
    source = load_model(f"{file}:tiny")
    assert source.model(torch.rand(2, 3, 2, 2)).shape == (2, 3)
    with pytest.raises(SourceError, match=r"has no function 'huge'; it has number, tiny"):
        load_model(f"{file}:huge")
    with pytest.raises(SourceError, match="returned a int; expected a torch"):
        load_model(f"{file}:number")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("small-plain", "use zoo:NAME"),
        ("zoo:nothing", "no model 'nothing'; use one of: small-plain"),
        ("nowhere.py:f", "no file 'nowhere.py'"),
    ],
)
def test_unknown_models_are_refused(name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        load_model(name)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_npz_files_of_either_layout_load(tmp_path: Path, layout: str) -> None:
    x, y = zoo.bundled_images(5)
    levels = (x * 255).round().to(torch.uint8)
    np.savez(tmp_path / "d.npz", x=levels if layout == "NCHW" else levels.permute(0, 2, 3, 1), y=y)
    read, labels = load_data(f"npz:{tmp_path / 'd.npz'}", 4)
    assert torch.equal(read, x[:4])
    assert torch.equal(labels, y[:4])


def test_unreadable_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no data 'imagenet'; use bundled or npz:FILE"):
        load_data("imagenet")
    with pytest.raises(SourceError, match="cannot be read as npz"):
        load_data("npz:nowhere.npz")
    (tmp_path / "bad.npz").write_text("no zip")
    with pytest.raises(SourceError, match="cannot be read as npz"):
        load_data(f"npz:{tmp_path / 'bad.npz'}")
    np.savez(tmp_path / "odd.npz", images=np.zeros(3))
    with pytest.raises(SourceError, match="holds images; expected arrays x and y"):
        load_data(f"npz:{tmp_path / 'odd.npz'}")


def test_pictures_are_cut_and_resized_only_if_need_be(tmp_path: Path) -> None:
    x, _ = zoo.bundled_images(1)
    save_image(x[0], tmp_path / "a.png")
    read, own = load_image(str(tmp_path / "a.png"), 32)
    assert torch.equal(read, x)
    assert own == (32, 32)
    Image.new("RGB", (100, 50), (10, 20, 30)).save(tmp_path / "b.png")
    read, own = load_image(str(tmp_path / "b.png"), 32)
    assert (tuple(read.shape), own) == ((1, 3, 32, 32), (100, 50))
    assert load_image(str(tmp_path / "b.png"), None)[0].shape == (1, 3, 50, 100)


def test_unreadable_pictures_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(SourceError, match="cannot be read as a picture"):
        load_image(str(tmp_path / "text.png"), None)
    with pytest.raises(SourceError, match="no file"):
        load_image("nowhere.png", None)
    with pytest.raises(SourceError, match="use bundled:0 to bundled:499"):
        load_image("bundled:500", 32)
    with pytest.raises(SourceError, match="choose another --out"):
        save_image(torch.zeros(3, 4, 4), tmp_path / "no" / "folder.png")
