"""Models together with their images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsepgd import zoo
from sparsepgd.errors import UnsupportedError
from sparsepgd.sources import load_pairs
from support.grey_pictures import grey


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, str]:
    """A Python file of models and a folder of pictures, two of each class."""
    for number, name in enumerate(("owl", "fox", "elk") * 2):
        grey(tmp_path / "data" / name / f"{number}.png", 25 * number, (8, 8))
    (tmp_path / "m.py").write_text(
        "import torch\nfrom sparsepgd.sources import Source\n"
        "def net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3)).eval()\n"
        "def plain():\n    return Source('plain', net(), ('elk', 'fox', 'owl'))\n"
        "def shuffled():\n    return Source('shuffled', net(), ('owl', 'elk', 'fox'))\n"
        "def small():\n    return Source('small', net(), ('elk', 'fox', 'owl'), 4)\n"
    )
    return str(tmp_path / "m.py"), f"folder:{tmp_path / 'data'}"


def test_every_model_has_images_of_its_size_and_labels_as_it_numbers_them(words: tuple[str, str]) -> None:
    file, data = words
    pairs = load_pairs([f"{file}:{name}" for name in ("plain", "shuffled", "small")], data)
    found = {source.name: images for source, images in pairs}
    assert {name: images.y.tolist() for name, images in found.items()} == {
        "plain": [0, 1, 2, 0, 1, 2],
        "shuffled": [1, 2, 0, 1, 2, 0],
        "small": [0, 1, 2, 0, 1, 2],
    }
    assert {name: images.x.shape[2:] for name, images in found.items()} == {
        "plain": (8, 8),
        "shuffled": (8, 8),
        "small": (4, 4),
    }
    assert found["shuffled"].x is found["plain"].x, "what is the same is read once"


def test_a_size_that_is_asked_for_goes_before_that_of_the_model(words: tuple[str, str]) -> None:
    file, data = words
    ((_, images),) = load_pairs([f"{file}:small"], data, 2, size=6, choose="first")
    assert images.x.shape == (2, 3, 6, 6)
    assert images.y.tolist() == [0, 0]
    with pytest.raises(UnsupportedError, match="size=0"):
        load_pairs([f"{file}:small"], data, size=0)


def test_a_size_for_images_that_are_no_pictures_is_refused_unless_it_is_their_own() -> None:
    with pytest.raises(UnsupportedError, match=r"size=64, but bundled contains arrays of \(32, 32\), not picture"):
        load_pairs(["small-plain"], "bundled", 2, size=64)
    assert load_pairs(["small-plain"], "bundled", 2, size=32)


def test_images_are_those_of_load_data() -> None:
    ((source, (x, y)),) = load_pairs(["small-plain"], "bundled", 5)
    assert source.name == "small-plain"
    assert all(torch.equal(a, b) for a, b in zip((x, y), zoo.bundled_images(5), strict=True))


def test_models_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.py" for folder in ("ma", "mb")]
    for file in files:
        file.parent.mkdir()
        file.write_text("from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n")
    pairs = load_pairs([*(f"{file}:net" for file in files), "small-plain"], "bundled", 2)
    names = [source.name for source, _ in pairs]
    assert names == ["ma/mine:net", "mb/mine:net", "small-plain"]
    again = load_pairs(["small-plain", "small-plain"], "bundled", 2)
    assert [source.name for source, _ in again] == ["small-plain", "small-plain"], "it is the same one"
