"""The paper's data sets, on small folders of the real forms and on real samples."""

from __future__ import annotations

import csv
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd.errors import SourceError
from sparsepgd.sources import load_data
from sparsepgd.sources.datasets import GTSRB_CLASSES
from sparsepgd.sources.pictures import Framing
from support.grey_pictures import grey, levels

REAL = Path(os.environ.get("SPARSEPGD_DATA", "nowhere"))
needs_real = pytest.mark.skipif(
    not (REAL / "gtsrb-32px").is_dir(), reason="no real samples: SPARSEPGD_DATA names no folder with gtsrb-32px"
)


def cifar_batches(root: Path, kind: str) -> None:
    """Files as the CIFAR python archives have them, two images a batch; image i is of level i."""
    folder = root / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[kind]
    folder.mkdir(parents=True)
    key, meta = ("labels", "batches.meta") if kind == "cifar10" else ("fine_labels", "meta")
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if kind == "cifar10" else ["train", "test"]
    for number, name in enumerate(names):
        data = np.repeat(np.arange(2, dtype=np.uint8) + 2 * number, 3072).reshape(2, 3072)
        (folder / name).write_bytes(pickle.dumps({"data": data, key: [number, 1]}))
    classes = {"label_names" if kind == "cifar10" else "fine_label_names": [f"name {i}" for i in range(10)]}
    (folder / meta).write_bytes(pickle.dumps(classes))


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_cifar_archives_are_read_by_torchvision(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    cifar_batches(tmp_path, kind)
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)  # these are not the real files
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: Path(path).is_file())
    data = load_data(f"{kind}:{tmp_path}")
    last = 10 if kind == "cifar10" else 2
    assert levels(data.x) == [last, last + 1]
    assert data.x.shape == (2, 3, 32, 32)
    assert data.class_names[1] == "name 1"
    assert len(load_data(f"{kind}:{tmp_path}", part="train").x) == last
    monkeypatch.setenv("SPARSEPGD_DATA", str(tmp_path))
    assert torch.equal(load_data(kind).x, data.x)


def test_cifar_as_one_npz_file_has_its_class_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((2, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_test=x, y_test=np.array([3, 8], np.uint8), x_train=x, y_train=[0, 1])
    monkeypatch.setenv("SPARSEPGD_DATA", str(tmp_path))
    data = load_data("cifar10")
    assert [data.class_names[i] for i in data.y] == ["cat", "ship"]
    assert data.y.dtype == torch.int64


def test_cifar_that_is_neither_there_nor_to_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", offline)
    with pytest.raises(SourceError, match=r"no cifar-10-batches-py in .*no route.*put cifar10.npz there.*cifar10:DIR"):
        load_data(f"cifar10:{tmp_path}")


@pytest.fixture(scope="module")
def gtsrb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The form of GTSRB_Final_Training_Images.zip: 43 folders of ppm files and a table, here 1,075 pictures."""
    root = tmp_path_factory.mktemp("gtsrb")
    for label in range(43):
        folder = root / "GTSRB" / "Final_Training" / "Images" / f"{label:05d}"
        folder.mkdir(parents=True)
        (folder / f"GT-{label:05d}.csv").write_text("Filename;Width")
        for i in range(25):
            pixel = bytes([label, i, 0])
            (folder / f"{i // 5:05d}_{i % 5:05d}.ppm").write_bytes(b"P6 6 5 255\n" + pixel * 30)
    return root


def test_gtsrb_is_split_as_in_the_paper(gtsrb: Path) -> None:
    test, train = (load_data(f"gtsrb:{gtsrb}", size=4, part=part) for part in ("test", "train"))
    assert (len(test.x), len(train.x)) == (1000, 75)
    seen = [{(int(a), int(b)) for a, b in (data.x[:, :2, 0, 0] * 255).round()} for data in (test, train)]
    assert len(seen[0] | seen[1]) == 1075, "no picture is in both"
    assert (test.x[:, 0, 0, 0] * 255).round().long().tolist() == test.y.tolist()
    order = np.arange(1075)
    np.random.RandomState(0).shuffle(order)
    assert test.y.tolist() == (order[:1000] // 25).tolist(), "the split of the official code"
    assert test.class_names == GTSRB_CLASSES
    assert len(set(GTSRB_CLASSES)) == 43


def test_gtsrb_and_imagenet_pictures_get_the_papers_size(gtsrb: Path, tmp_path: Path) -> None:
    assert load_data(f"gtsrb:{gtsrb}", 2).x.shape == (2, 3, 224, 224)
    grey(tmp_path / "val" / "n01" / "a.jpeg", 5, (300, 280))
    assert load_data(f"imagenet100:{tmp_path}").x.shape == (1, 3, 224, 224)
    assert load_data(f"imagenet100:{tmp_path}", size=Framing(32, 40)).x.shape == (1, 3, 32, 32)


def test_gtsrb_that_is_not_there_or_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no folders 00000 to 00042 in .*Final_Training_Images.zip.*gtsrb:DIR"):
        load_data(f"gtsrb:{tmp_path}")
    grey(tmp_path / "00000" / "a.ppm", 1)
    with pytest.raises(SourceError, match="holds 1 picture; expected more than 1000"):
        load_data(f"gtsrb:{tmp_path}")


def test_imagenet100_takes_the_classes_of_its_list(tmp_path: Path) -> None:
    for split, number in (("train", 1), ("val_sub", 2)):
        for label, folder in enumerate(("n03", "n01", "n02")):
            for i in range(2):
                grey(tmp_path / split / folder / f"{i}.png", 50 * number + 10 * label + i)
    every = load_data(f"imagenet100:{tmp_path}", size=8)
    assert every.class_names == ("n01", "n02", "n03")
    assert levels(every.x) == [110, 120, 100, 111, 121, 101], "of each class in turn"
    (tmp_path / "classes.txt").write_text("# two of them\nn03 great white shark\nn01 tench\n\n")
    some = load_data(f"imagenet100:{tmp_path}", size=8)
    assert some.class_names == ("tench", "great white shark")
    assert (levels(some.x), some.y.tolist()) == ([110, 100, 111, 101], [0, 1, 0, 1])
    assert levels(load_data(f"imagenet100:{tmp_path}", 1, 8, part="train").x) == [60]
    (tmp_path / "classes.txt").write_text("n09 none\n")
    with pytest.raises(SourceError, match="lists n09, which has no folder"):
        load_data(f"imagenet100:{tmp_path}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"no folders of pictures in '.*empty'; .* as imagenet100:DIR"):
        load_data(f"imagenet100:{tmp_path / 'empty'}")
    with pytest.raises(SourceError, match=r"no folder 'nowhere'; .* as imagenet100:DIR"):
        load_data("imagenet100:nowhere")


@needs_real
def test_real_traffic_signs_in_the_form_of_gtsrb(tmp_path: Path) -> None:
    """30 real pictures of each class, written as the archive has them, and read by the paper's split."""
    with np.load(REAL / "gtsrb-32px" / "labels.npz") as file:
        labels = file["train"]
    sheet = np.asarray(Image.open(REAL / "gtsrb-32px" / "train.webp").convert("RGB"))
    pictures = sheet.reshape(-1, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)[: len(labels)]
    for label in range(43):
        (tmp_path / f"{label:05d}").mkdir()
        for i, row in enumerate(np.flatnonzero(labels == label)[:30]):
            Image.fromarray(pictures[row]).save(tmp_path / f"{label:05d}" / f"{i:05d}.ppm")
    data = load_data(f"gtsrb:{tmp_path}", 86, size=32, choose="balanced")
    assert torch.bincount(data.y).tolist() == [2] * 43
    stop = data.x[data.y == GTSRB_CLASSES.index("stop")].mean((0, 2, 3))
    blue = data.x[data.y == GTSRB_CLASSES.index("keep right")].mean((0, 2, 3))
    assert stop[0] > stop[2], "stop signs are red"
    assert blue[2] > blue[0], "keep right is blue"


@needs_real
def test_real_imagenet_pictures_by_their_list() -> None:
    file = REAL / "imagenet-100img" / "labels.csv"
    data = load_data(f"csv:{file}", 12, size=Framing(224, 256, "bicubic"))
    assert data.x.shape == (12, 3, 224, 224)
    with file.open() as lines:
        assert data.y.tolist() == [int(line["imagenet_class_0based"]) for line in csv.DictReader(lines)][:12]
