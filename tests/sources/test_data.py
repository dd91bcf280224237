"""Images by name: which are chosen, and how their classes and those of a model go together."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.sources import Data, load_data
from sparsepgd.sources.data import load_parts
from support.grey_pictures import grey


def test_unreadable_data_is_refused(tmp_path: Path) -> None:
    for name in ("imagenet", "npz", "folder:", "hf"):
        with pytest.raises(SourceError, match=f"no data '{name}'; use bundled, digits, cifar10.*folder:DIR"):
            load_data(name)
    with pytest.raises(SourceError, match=r"no file 'nowhere\.npz'; give an npz file with arrays x and y"):
        load_data("npz:nowhere.npz")
    (tmp_path / "bad.npz").write_text("no zip")
    with pytest.raises(SourceError, match="cannot be read as npz"):
        load_data(f"npz:{tmp_path / 'bad.npz'}")
    np.savez(tmp_path / "odd.npz", images=np.zeros(3))
    with pytest.raises(SourceError, match="it holds images; expected arrays x and y"):
        load_data(f"npz:{tmp_path / 'odd.npz'}")


def test_fewer_images_than_asked_for_are_taken_only_if_that_is_allowed() -> None:
    assert len(load_data("bundled", 501, fewer=True).x) == 500
    assert len(load_data("bundled", 3, fewer=True).x) == 3


def test_numbers_and_sizes_that_do_not_fit_are_refused() -> None:
    for n in (0, 501, 2.5, "3"):
        with pytest.raises(SourceError, match=f"n={n}, but bundled holds 500 images; use 1 <= n <= 500"):
            load_data("bundled", n)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="size=-3"):
        load_data("bundled", 2, size=-3)
    with pytest.raises(UnsupportedError, match=r"size=16, but bundled contains arrays of \(32, 32\), not picture"):
        load_data("bundled", 2, size=16)
    assert load_data("bundled", 2, size=32).x.shape == (2, 3, 32, 32)


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


def test_labels_follow_the_names_of_the_models_classes() -> None:
    data = sp.Data(torch.zeros(3, 1, 1, 1), torch.tensor([0, 1, 1]), ("bee", "ant"))
    matched = data.for_classes(("cat", "ant", "dog", "bee"))
    assert matched.y.tolist() == [3, 1, 1]
    assert matched.class_names[3] == "bee"
    for names in ((), ("bee", "ant", "cat"), ("ant", "cat"), ("ant", "bee", "bee")):
        assert data.for_classes(names) is data, "the same order, another set, or not to be told apart"


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


@pytest.mark.parametrize("copy", [lambda data: pickle.loads(pickle.dumps(data)), deepcopy], ids=["pickle", "deepcopy"])
def test_data_can_be_copied_and_sent_to_other_processes(copy: Callable[[Data], Data]) -> None:
    data = load_data("bundled", 3)
    again = copy(data)
    assert isinstance(again, Data)
    assert torch.equal(again.x, data.x)
    assert torch.equal(again.y, data.y)
    assert again.class_names == data.class_names


def test_a_path_without_its_kind_is_refused_with_the_kinds() -> None:
    with pytest.raises(SourceError, match=r"no data 'test.npz'; use bundled, .*npz:FILE"):
        load_data(Path("test.npz"))  # type: ignore[arg-type]


def test_a_part_that_no_source_has_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="part 'validation'; use test or train"):
        load_data("digits", part="validation")  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [None, 5])
def test_a_source_without_images_is_refused(n: int | None, tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 1, 4, 4), np.uint8), y=np.arange(0))
    with pytest.raises(SourceError, match="contains no images for the part test"):
        load_data(f"npz:{tmp_path / 'none.npz'}", n)


def test_a_source_says_whether_it_has_images_of_their_own_to_test_on(tmp_path: Path) -> None:
    x, y = np.zeros((2, 1, 4, 4), np.uint8), np.arange(2)
    np.savez(tmp_path / "one.npz", x=x, y=y)
    np.savez(tmp_path / "two.npz", x=x, y=y, x_test=x, y_test=y)  # the same images, but told apart
    train, test = load_parts(f"npz:{tmp_path / 'one.npz'}")
    assert (len(train.x), test) == (2, None)
    train, test = load_parts(f"npz:{tmp_path / 'two.npz'}")
    assert test is not None
    assert torch.equal(train.x, test.x)
    np.savez(tmp_path / "three.npz", x_train=x, y_train=y)
    train, test = load_parts(f"npz:{tmp_path / 'three.npz'}")
    assert (len(train.x), test) == (2, None)
    assert load_parts("bundled")[1] is None


@pytest.mark.parametrize(("classes", "labels"), [(("ant", "cow"), [0, 2]), (("ant", "bee"), [0, 1])])
def test_a_class_may_have_no_test_images(classes: tuple[str, ...], labels: list[int], tmp_path: Path) -> None:
    for part, names in (("train", ("ant", "bee", "cow")), ("test", classes)):
        for name in names:
            grey(tmp_path / part / name / "1.png", 50)
    train, test = load_parts(f"folder:{tmp_path}")
    assert test is not None
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 2], labels)
    assert train.class_names == test.class_names == ("ant", "bee", "cow")


def test_a_class_without_training_images_is_refused(tmp_path: Path) -> None:
    for name in ("train/ant", "train/bee", "test/ant", "test/owl"):
        grey(tmp_path / name / "1.png", 50)
    with pytest.raises(SourceError, match="has test images of the class 'owl', but no training images; add some"):
        load_parts(f"folder:{tmp_path}")
