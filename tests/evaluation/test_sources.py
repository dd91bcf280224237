"""Models and images by name, and what is said when they are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from sparsepgd import zoo
from sparsepgd.errors import SourceError
from sparsepgd.evaluation.sources import as_tensors, load_data, load_image, load_model, save_image

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
    with pytest.raises(SourceError, match="no data 'imagenet'; use bundled, npz:FILE or folder:DIR"):
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


def picture_folder(path: Path) -> Path:
    """Classes ant (0) with one picture and bee (1) with two."""
    for name, grey in (("ant/a", 10), ("bee/b", 20), ("bee/c", 30)):
        (path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 32), (grey, grey, grey)).save(path / f"{name}.png")
    (path / "bee" / "notes.txt").write_text("no picture")
    return path


def test_a_folder_of_classes_is_read_in_turn(tmp_path: Path) -> None:
    name = f"folder:{picture_folder(tmp_path)}"
    x, y = load_data(name)
    assert x.shape == (3, 3, 32, 40)
    assert (x[:, 0, 0, 0] * 255).round().tolist() == [10, 20, 30]
    assert y.tolist() == [0, 1, 1]
    assert load_data(name, 2)[1].tolist() == [0, 1]
    assert load_data(name, size=16)[0].shape == (3, 3, 16, 16)


def test_folders_that_are_no_data_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no images in .*one sub-folder of pictures a class"):
        load_data(f"folder:{tmp_path}")
    with pytest.raises(SourceError, match="no images in 'nowhere'"):
        load_data("folder:nowhere")
    folder = picture_folder(tmp_path)
    with pytest.raises(SourceError, match=r"n=4, but .* holds 3 images"):
        load_data(f"folder:{folder}", 4)
    Image.new("RGB", (9, 9)).save(folder / "bee" / "d.png")
    with pytest.raises(SourceError, match=r"a.png is 40x32, .*d.png is 9x9; use --size"):
        load_data(f"folder:{folder}")
    (folder / "ant" / "a.png").write_text("broken")
    with pytest.raises(SourceError, match="cannot be read as a picture"):
        load_data(f"folder:{folder}")


class Stream(IterableDataset):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.pairs = list(zip(x, y, strict=True))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(self.pairs)


@pytest.mark.parametrize("kind", ["pair", "uint8", "numpy", "dataset", "list", "loader", "stream"])
def test_all_kinds_of_data_become_tensors(kind: str) -> None:
    x, y = zoo.bundled_images(7)
    levels = (x * 255).round().to(torch.uint8)
    data = {
        "pair": (x, y),
        "uint8": (levels, y),
        "numpy": (x.numpy(), y.numpy()),
        "dataset": TensorDataset(x, y),
        "list": [(image, int(label)) for image, label in zip(x, y, strict=True)],
        "loader": DataLoader(TensorDataset(x, y), batch_size=3),
        "stream": Stream(x, y),
    }[kind]
    for n in (None, 5):
        read, labels = as_tensors(data, n)
        assert torch.equal(read, x[:n])
        assert torch.equal(labels, y[:n])


def test_a_torchvision_data_set_becomes_tensors() -> None:
    from torchvision.datasets import FakeData
    from torchvision.transforms import ToTensor

    x, y = as_tensors(FakeData(6, (3, 8, 8), 4, transform=ToTensor()), 4)
    assert (tuple(x.shape), tuple(y.shape), x.dtype) == ((4, 3, 8, 8), (4,), torch.float32)
    with pytest.raises(SourceError, match=r"image 0 is a Image; expected a tensor.*transform=torchvision"):
        as_tensors(FakeData(6, (3, 8, 8), 4))


def test_other_data_is_refused_with_the_reason() -> None:
    x, y = zoo.bundled_images(4)
    shuffled = DataLoader(TensorDataset(x, y), shuffle=True)
    for data, n, message in (
        (3, None, "data of type int; expected a pair"),
        ((x, y[:3]), None, "4 images, but 3 labels"),
        ((x, y), 5, "n=5, but the data holds 4 images"),
        (TensorDataset(x, y), 5, "n=5, but the data holds 4 images"),
        ((x, y), 0, "n=0; use at least 1"),
        (shuffled, None, "the DataLoader shuffles"),
        (DataLoader(TensorDataset(x)), None, "the DataLoader gives a list; expected batches"),
        (TensorDataset(x), None, "item 0 is a tuple; expected"),
        ([(x[0], 1), (x[0, :, 1:], 1)], None, r"image 1 is of shape \(3, 31, 32\), image 0 of"),
        ([(x[0], "cat")], None, "label 0 is a str; expected a class number"),
        ([(x[0], torch.ones(3))], None, r"label 0 is a tensor of shape \(3,\)"),
        ([], None, "the data holds no images"),
    ):
        with pytest.raises(SourceError, match=message):
            as_tensors(data, n)
