"""What npz files, folders and lists hold: images, labels, class names; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd import zoo
from sparsepgd.errors import SourceError
from sparsepgd.sources import load_data
from sparsepgd.sources.listings import stacked
from support.grey_pictures import grey, levels


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
        (np.zeros((2, 3, 8, 8)), np.array(["cat", "dog"]), "labels of type <U3; expected class numbers"),
        (np.zeros((2, 3, 8, 8)), np.array([0.5, 1.0]), "labels of type float64; expected class numbers"),
        (np.zeros((2, 3, 8, 8)), np.array([np.nan, 1.0]), "labels of type float64; expected class numbers"),
        (np.zeros((2, 3, 8, 8)), np.array([np.inf, 1.0]), "labels of type float64; expected class numbers"),
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


def test_a_file_that_is_no_npz_is_not_called_a_pickle_to_be_trusted(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("hello")
    with pytest.raises(SourceError, match=r"cannot be read as npz: it is not an npz file; expected arrays x and y"):
        load_data(f"npz:{tmp_path / 'a.npz'}")


@pytest.mark.parametrize("names", [["cat", "dog"], "cat", [["cat", "dog", "cow"]]])
def test_an_npz_file_must_name_every_class_or_none(names: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 3, 8, 8)), y=np.arange(3), class_names=names)
    with pytest.raises(SourceError, match=r"has class_names .* and labels up to 2; expected one name per class"):
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
    with pytest.raises(SourceError, match=r"no images in .*one sub-folder of pictures per class"):
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


def test_grey_pictures_among_coloured_ones_are_named() -> None:
    with pytest.raises(SourceError, match=r"^a has 3 channels, but b has 1; convert them to one mode"):
        stacked(iter([torch.zeros(3, 4, 4), torch.zeros(1, 4, 4)]), ["a", "b"])


def test_a_list_of_pictures_and_classes(tmp_path: Path) -> None:
    for i in range(3):
        grey(tmp_path / f"{i}.png", i)
    (tmp_path / "a.csv").write_text("file,label,class_name\n2.png,4,bee\n0.png,1,ant\n1.png,4,bee\n")
    data = load_data(f"csv:{tmp_path / 'a.csv'}")
    assert (levels(data.x), data.y.tolist()) == ([2, 0, 1], [4, 1, 4])
    assert data.class_names == ("class 0", "ant", "class 2", "class 3", "bee")
    assert load_data(f"csv:{tmp_path / 'a.csv'}", 2, choose="balanced").y.tolist() == [1, 4]
    for content, message in (
        ("file,label\n", "is empty"),
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
