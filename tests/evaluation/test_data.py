"""Images by name: choice, sizes and class names of each source, on small folders of the real forms and real samples."""

from __future__ import annotations

import csv
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.errors import MissingPackageError, SourceError, UnsupportedError
from sparsepgd.evaluation.class_names import GTSRB
from sparsepgd.evaluation.pictures import Framing
from sparsepgd.evaluation.sources import Data, load_data

REAL = Path(os.environ.get("SPARSEPGD_DATA", "nowhere"))
needs_real = pytest.mark.skipif(
    not (REAL / "gtsrb-32px").is_dir(), reason="no real samples: SPARSEPGD_DATA names no folder with gtsrb-32px"
)


def levels(x: torch.Tensor) -> list[int]:
    """The grey of each image."""
    return (x[:, 0, 0, 0] * 255).round().long().tolist()


def grey(path: Path, level: int, size: tuple[int, int] = (40, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level, level, level)).save(path)


def picture_folder(path: Path) -> Path:
    """Classes ant (0) with one picture and bee (1) with two."""
    for name, level in (("ant/a", 10), ("bee/b", 20), ("bee/c", 30)):
        grey(path / f"{name}.png", level)
    (path / "bee" / "notes.txt").write_text("no picture")
    return path


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_npz_files_of_either_layout_load(tmp_path: Path, layout: str) -> None:
    x, y = zoo.bundled_images(5)
    stored = (x * 255).round().to(torch.uint8)
    np.savez(tmp_path / "d.npz", x=stored if layout == "NCHW" else stored.permute(0, 2, 3, 1), y=y)
    read, labels = load_data(f"npz:{tmp_path / 'd.npz'}", 4)
    assert torch.equal(read, x[:4])
    assert torch.equal(labels, y[:4])


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.float32])
def test_npz_images_of_any_float_type_are_float32(kind: Any, tmp_path: Path) -> None:
    x = np.linspace(0, 1, 24).reshape(2, 3, 2, 2).astype(kind)
    np.savez(tmp_path / "d.npz", x=x, y=[0, 1])
    read = load_data(f"npz:{tmp_path / 'd.npz'}").x
    assert read.dtype == torch.float32
    assert torch.equal(read, torch.from_numpy(x).float())


def test_npz_files_have_parts_and_names_of_classes(tmp_path: Path) -> None:
    x, names = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1), np.array(["ant", "bee"])
    np.savez(tmp_path / "d.npz", x_test=x[:2], y_test=[0, 1], x_train=x[2:], y_train=[1, 1, 0, 1], class_names=names)
    name = f"npz:{tmp_path / 'd.npz'}"
    assert levels(load_data(name).x) == [0, 1]
    assert levels(load_data(name, part="train").x) == [2, 3, 4, 5]
    assert levels(load_data(name, 2, part="train", choose="balanced").x) == [4, 2]
    assert load_data(name).class_names == ("ant", "bee")
    np.savez(tmp_path / "e.npz", x=x, y=[[0]] * 6)
    with pytest.raises(SourceError, match=r"images \(6, 1, 1, 1\) and labels \(6, 1\); expected one label"):
        load_data(f"npz:{tmp_path / 'e.npz'}")


def test_unreadable_data_is_refused(tmp_path: Path) -> None:
    for name in ("imagenet", "npz", "folder:", "hf"):
        with pytest.raises(SourceError, match=f"no data '{name}'; use bundled, digits, cifar10.*folder:DIR"):
            load_data(name)
    with pytest.raises(SourceError, match="cannot be read as npz"):
        load_data("npz:nowhere.npz")
    (tmp_path / "bad.npz").write_text("no zip")
    with pytest.raises(SourceError, match="cannot be read as npz"):
        load_data(f"npz:{tmp_path / 'bad.npz'}")
    np.savez(tmp_path / "odd.npz", images=np.zeros(3))
    with pytest.raises(SourceError, match="it holds images; expected arrays x and y"):
        load_data(f"npz:{tmp_path / 'odd.npz'}")


def test_npz_files_that_are_cut_short_broken_or_something_else_are_refused_in_words(tmp_path: Path) -> None:
    """And not by an EOFError, which the command line takes for the end of its input, or by a TypeError."""
    x = np.random.default_rng(0).random((4, 3, 8, 8))
    np.savez_compressed(tmp_path / "whole.npz", x=x, y=np.arange(4))
    whole = (tmp_path / "whole.npz").read_bytes()
    middle = len(whole) // 2
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(whole[:-40])
    (tmp_path / "broken.npz").write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    np.save(tmp_path / "array.npy", x)
    for name in ("empty.npz", "cut.npz", "broken.npz", "array.npy"):
        with pytest.raises(SourceError, match=rf"{name}' cannot be read as npz: .*; expected arrays x and y"):
            load_data(f"npz:{tmp_path / name}")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 3, 8, 8)), np.array(["cat", "dog"]), "labels of type <U3 that are no class numbers"),
        (np.zeros((2, 3, 8, 8)), np.array([0.5, 1.0]), "labels of type float64 that are no class numbers"),
        (np.zeros((2, 3, 8, 8)), np.array([np.nan, 1.0]), "labels of type float64 that are no class numbers"),
        (np.zeros((2, 3, 8, 8)), np.array([np.inf, 1.0]), "labels of type float64 that are no class numbers"),
        (np.array(["cat", "dog"]), np.arange(2), "images of type <U3; expected uint8, or floats"),
        (np.zeros(()), np.arange(2), r"images \(\) and labels \(2,\); expected one label"),
    ],
)
def test_npz_files_of_other_things_than_images_and_class_numbers_are_refused(
    x: np.ndarray, y: np.ndarray, message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "d.npz", x=x, y=y)
    with pytest.raises(SourceError, match=message):
        load_data(f"npz:{tmp_path / 'd.npz'}")


@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.bool_, ">i8"])
def test_npz_labels_may_be_of_any_type_that_holds_whole_numbers(kind: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 3, 8, 8), ">f4"), y=np.array([0, 1]).astype(kind))
    assert load_data(f"npz:{tmp_path / 'd.npz'}").y.tolist() == [0, 1]


def test_a_folder_of_classes_is_read_in_turn_with_its_names(tmp_path: Path) -> None:
    name = f"folder:{picture_folder(tmp_path)}"
    x, y = data = load_data(name)
    assert x.shape == (3, 3, 32, 40)
    assert (levels(x), y.tolist()) == ([10, 20, 30], [0, 1, 1])
    assert data.class_names == ("ant", "bee")
    assert data.about == "3 of 3x32x40, labels 0 to 1, 2 classes"
    assert load_data(name, 2)[1].tolist() == [0, 1]
    assert load_data(name, size=16)[0].shape == (3, 3, 16, 16)


def test_folders_to_train_and_to_test_on_are_told_apart(tmp_path: Path) -> None:
    grey(tmp_path / "train" / "ant" / "a.png", 1)
    grey(tmp_path / "val" / "ant" / "b.png", 2)
    assert levels(load_data(f"folder:{tmp_path}", part="train").x) == [1]
    assert levels(load_data(f"folder:{tmp_path}").x) == [2]


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


def test_balanced_takes_as_many_of_each_class_and_first_the_first() -> None:
    first, balanced = (load_data("bundled", 25, choose=choose) for choose in ("first", "balanced"))
    assert torch.equal(first.x, zoo.bundled_images(25)[0])
    assert torch.equal(load_data("bundled", 25).y, first.y)
    count = torch.bincount(balanced.y)
    assert count.tolist() == [3] * 5 + [2] * 5
    assert balanced.y[:20].tolist() == [*range(10)] * 2, "in turn, so that a shorter run is balanced too"
    x, y = zoo.bundled_images()
    assert torch.equal(balanced.x[0], x[y == 0][0]), "of each class the first ones"
    assert first.class_names == zoo.CIFAR10_CLASSES
    with pytest.raises(UnsupportedError, match="choose 'last'; use first or balanced"):
        load_data("bundled", 5, choose="last")  # type: ignore[arg-type]
    for n in (0, 501):
        with pytest.raises(SourceError, match=f"n={n}, but bundled holds 500 images; use 1 <= n <= 500"):
            load_data("bundled", n)


def test_digits_have_two_parts_that_share_nothing() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    assert (len(load_data("digits").x), len(load_data("digits", part="train").x)) == (397, 1400)
    assert load_data("digits").class_names[3] == "3"


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
    assert test.class_names == GTSRB
    assert len(set(GTSRB)) == 43


def test_gtsrb_and_imagenet_pictures_get_the_papers_size(gtsrb: Path, tmp_path: Path) -> None:
    assert load_data(f"gtsrb:{gtsrb}", 2).x.shape == (2, 3, 224, 224)
    grey(tmp_path / "val" / "n01" / "a.jpeg", 5, (300, 280))
    assert load_data(f"imagenet100:{tmp_path}").x.shape == (1, 3, 224, 224)
    assert load_data(f"imagenet100:{tmp_path}", size=Framing(32, 40)).x.shape == (1, 3, 32, 32)


def test_gtsrb_that_is_not_there_or_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no folders 00000 to 00042 in .*Final_Training_Images.zip.*gtsrb:DIR"):
        load_data(f"gtsrb:{tmp_path}")
    grey(tmp_path / "00000" / "a.ppm", 1)
    with pytest.raises(SourceError, match="holds 1 pictures; expected more than the 1000 to test on"):
        load_data(f"gtsrb:{tmp_path}")


def test_imagenet100_takes_the_classes_of_its_list(tmp_path: Path) -> None:
    for split, number in (("train", 1), ("val_sub", 2)):
        for label, folder in enumerate(("n03", "n01", "n02")):
            for i in range(2):
                grey(tmp_path / split / folder / f"{i}.png", 50 * number + 10 * label + i)
    every = load_data(f"imagenet100:{tmp_path}", size=8)
    assert every.class_names == ("n01", "n02", "n03")
    assert levels(every.x) == [110, 120, 100, 111, 121, 101], "of each class in turn"
    (tmp_path / "classes.txt").write_text("n03 great white shark\nn01 tench\n\n")
    some = load_data(f"imagenet100:{tmp_path}", size=8)
    assert some.class_names == ("tench", "great white shark")
    assert (levels(some.x), some.y.tolist()) == ([110, 100, 111, 101], [0, 1, 0, 1])
    assert levels(load_data(f"imagenet100:{tmp_path}", 1, 8, part="train").x) == [60]
    (tmp_path / "classes.txt").write_text("n09 none\n")
    with pytest.raises(SourceError, match="lists n09, which has no folder"):
        load_data(f"imagenet100:{tmp_path}")
    with pytest.raises(SourceError, match="no folder 'nowhere'; name it: imagenet100:DIR"):
        load_data("imagenet100:nowhere")


def test_a_list_of_pictures_and_classes(tmp_path: Path) -> None:
    for i in range(3):
        grey(tmp_path / f"{i}.png", i)
    (tmp_path / "a.csv").write_text("file,label,class_name\n2.png,4,bee\n0.png,1,ant\n1.png,4,bee\n")
    data = load_data(f"csv:{tmp_path / 'a.csv'}")
    assert (levels(data.x), data.y.tolist()) == ([2, 0, 1], [4, 1, 4])
    assert data.class_names == ("class 0", "ant", "class 2", "class 3", "bee")
    assert load_data(f"csv:{tmp_path / 'a.csv'}", 2, choose="balanced").y.tolist() == [1, 4]
    for content, message in (
        ("file,label\n", "holds no lines"),
        ("0.png,1\n1.png,cat\n", r"line 2, holds \['1.png', 'cat'\]"),
        ("0.png,-1\n1.png,1\n", r"line 1, holds \['0.png', '-1'\]"),
        ("0.png,1.0\n1.png,1\n", r"line 1, holds \['0.png', '1.0'\]"),
        ("0.png,²\n", r"line 1, holds \['0.png', '²'\]"),
        ("0.png,1\n1.png,²\n", r"line 2, holds \['1.png', '²'\]"),
        ("0.png,1\n1.png,99999999999999999999\n", r"line 2, holds \['1.png', '9+'\]"),
        ("0.png\n1.png,1\n", r"line 1, holds \['0.png'\]"),
        ("file,label,class_name\n0.png,1\n", r"line 2, holds \['0.png', '1'\]"),
    ):
        (tmp_path / "b.csv").write_text(content, encoding="utf-8")
        with pytest.raises(SourceError, match=f"{message}; expected lines of a picture file and a class number"):
            load_data(f"csv:{tmp_path / 'b.csv'}")


def test_labels_follow_the_names_of_the_models_classes() -> None:
    data = sp.Data(torch.zeros(3, 1, 1, 1), torch.tensor([0, 1, 1]), ("bee", "ant"))
    matched = data.for_classes(("cat", "ant", "dog", "bee"))
    assert matched.y.tolist() == [3, 1, 1]
    assert matched.class_names[3] == "bee"
    for names in ((), ("bee", "ant", "cat"), ("ant", "cat"), ("ant", "bee", "bee")):
        assert data.for_classes(names) is data, "the same order, another set, or not to be told apart"


def test_data_sets_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data("torchvision:FakeData", 6, size=8)
    assert (tuple(data.x.shape), data.y.dtype) == ((6, 3, 8, 8), torch.int64)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.arange(3, dtype=np.uint8).repeat(784)
    for part, name in (("t10k", "test"), ("train", "train")):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 28, 28)) + (pixels + len(name)).tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x03" + bytes([7, 7, 2]))
    mnist = load_data(f"torchvision:MNIST:{tmp_path}")
    assert (tuple(mnist.x.shape), levels(mnist.x), mnist.y.tolist()) == ((3, 1, 28, 28), [4, 5, 6], [7, 7, 2])
    assert mnist.class_names[7] == "7 - seven"
    assert levels(load_data(f"torchvision:MNIST:{tmp_path}", 1, part="train", choose="balanced").x) == [7]
    for name, message in (
        ("torchvision:Nothing", "torchvision has no data set 'Nothing'"),
        ("torchvision:DataLoader", "torchvision has no data set 'DataLoader'"),
        (f"torchvision:Flickr8k:{tmp_path}", r"no Flickr8k in .*name its folder with :DIR"),
    ):
        with pytest.raises(SourceError, match=message):
            load_data(name)


@pytest.mark.filterwarnings("ignore")  # of the library
def test_data_sets_of_hugging_face(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets", reason="needs datasets", exc_type=ImportError)
    features = library.Features({"pic": library.Image(), "kind": library.ClassLabel(names=["ant", "bee"])})
    pictures = [Image.new("RGB", (9, 7), (i, 0, 0)) for i in range(4)]
    saved = library.Dataset.from_dict({"pic": pictures, "kind": [0, 0, 1, 1]}, features=features)
    library.DatasetDict({"validation": saved}).save_to_disk(str(tmp_path / "saved"))
    data = load_data(f"hf:{tmp_path / 'saved'}", 3, choose="balanced")
    assert (levels(data.x), data.y.tolist(), data.class_names) == ([0, 2, 1], [0, 1, 0], ("ant", "bee"))
    with pytest.raises(SourceError, match="has validation; expected one of train"):
        load_data(f"hf:{tmp_path / 'saved'}", part="train")


def test_hugging_face_without_its_library_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingPackageError, match=r"hf:mnist needs datasets, which is not installed; pip install 'sparsepgd\[hf\]'"
    ):
        load_data("hf:mnist")


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
    stop = data.x[data.y == GTSRB.index("stop")].mean((0, 2, 3))
    blue = data.x[data.y == GTSRB.index("keep right")].mean((0, 2, 3))
    assert stop[0] > stop[2], "stop signs are red"
    assert blue[2] > blue[0], "keep right is blue"


@needs_real
def test_real_imagenet_pictures_by_their_list() -> None:
    file = REAL / "imagenet-100img" / "labels.csv"
    data = load_data(f"csv:{file}", 12, size=Framing(224, 256, "bicubic"))
    assert data.x.shape == (12, 3, 224, 224)
    with file.open() as lines:
        assert data.y.tolist() == [int(line["imagenet_class_0based"]) for line in csv.DictReader(lines)][:12]


def test_classes_are_called_as_the_data_call_them_unless_by_numbers() -> None:
    x, y, model = torch.zeros(3, 3, 4, 4), torch.tensor([0, 1, 2]), ("tench", "shark", "ray", "cock")
    assert Data(x, y).names_for(model) == model
    assert Data(x, y, ("0", "1", "2")).names_for(model) == model
    assert Data(x, y, ("0", "1", "2")).names_for(()) == ("0", "1", "2")
    assert Data(x, y, ("a", "b", "c")).names_for(model) == ("a", "b", "c", "cock")
    assert Data(x, y, ("Tench", "shark", "ray", "hen")).disagreement(model) is None  # hen does not occur
    assert Data(x, y, ("00", "01", "02")).disagreement(model) is None
    words = Data(x, y, ("1", "10", "2")).disagreement(model)  # folders in the order of their names
    assert "class 0 is '1' in the data and 'tench'" in str(words)
