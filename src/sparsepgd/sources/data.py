"""Images by name: those of the paper, folders, arrays, and the data sets of torchvision and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from sparsepgd import zoo
from sparsepgd.errors import SourceError, UnsupportedError, counted
from sparsepgd.extras import needs
from sparsepgd.sources import datasets
from sparsepgd.sources.listings import Choice, Listing, Part, of_csv, of_npz, of_tensors
from sparsepgd.sources.pictures import Size, framing

NAMES = (
    "bundled, digits, cifar10, cifar100, gtsrb, imagenet100 (the last four also as NAME:DIR), folder:DIR, "
    "csv:FILE, npz:FILE, torchvision:NAME or hf:NAME"
)


def class_name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else f"class {number}"


class Data(tuple[Tensor, Tensor]):
    """Images x and labels y, a pair, with the names of the classes, if known."""

    class_names: tuple[str, ...]

    def __new__(cls, x: Tensor, y: Tensor, class_names: tuple[str, ...] = ()) -> Data:
        pair = super().__new__(cls, (x, y))
        pair.class_names = class_names
        return pair

    def __getnewargs__(self) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        return self.x, self.y, self.class_names

    @property
    def about(self) -> str:
        """A short description, shown before a run."""
        shape = "x".join(map(str, self.x.shape[1:]))
        names = f", {counted(len(self.class_names), 'classes')}" if self.class_names else ""
        return f"{len(self.x)} of {shape}, labels {int(self.y.min())} to {int(self.y.max())}{names}"

    def for_classes(self, names: tuple[str, ...]) -> Data:
        """The data with labels in the numbering of a model, if the model has all class names of the data.

        For example, folders with some classes of ImageNet fit a model with all 1,000 classes.
        """
        ours = self.class_names
        if not ours or ours == names[: len(ours)] or any(names.count(name) != 1 for name in ours):
            return self
        number = torch.tensor([names.index(name) for name in ours], device=self.y.device)
        return Data(self.x, number[self.y], names)

    def to(self, device: torch.device | str) -> Data:
        return Data(self.x.to(device), self.y.to(device), self.class_names)

    def names_for(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Class names by number, for a model whose names are `names`: those of the data, unless these are numbers."""
        return tuple(
            theirs if ours is None or (ours.isdigit() and theirs is not None) else ours
            for ours, theirs in zip_longest(self.class_names, names)
        )

    def disagreement(self, names: tuple[str, ...]) -> str | None:
        """A message if the model has another name for a class of the data, so that the labels may be wrong."""
        pairs = list(zip(self.class_names, names, strict=False))
        for number in sorted(set(self.y.tolist()) & set(range(len(pairs)))):
            ours, theirs = pairs[number]
            if ours.casefold() != theirs.casefold() and not (ours.isdigit() and int(ours) == number):
                return (
                    f"class {number} is {ours!r} in the data and {theirs!r} for the model; labels are used as numbers"
                )
        return None

    @property
    def x(self) -> Tensor:
        return self[0]

    @property
    def y(self) -> Tensor:
        return self[1]


def load_data(
    name: str,
    n: int | None = None,
    size: Size = None,
    part: Part = "test",
    choose: Choice | None = None,
    fewer: bool = False,
) -> Data:
    """x (n, C, H, W) in [0, 1] and y (n,), with `class_names`; ``x, y = load_data(...)`` works.

    `name`: ``bundled``, CIFAR-10 test images of this package; ``digits`` of scikit-learn; ``cifar10``, ``cifar100``,
    ``gtsrb``, ``imagenet100``, read from ``NAME:DIR``, otherwise from the folder in SPARSEPGD_DATA, otherwise from
    ./data; ``folder:DIR``, one sub-folder of pictures per class, in the order of their names; ``csv:FILE``, lines of a
    picture file and a class number; ``npz:FILE``, arrays x (N, C, H, W), (N, H, W, C) or without pixels (N, F), and y
    (N,), or x_test, y_test, x_train, y_train; ``torchvision:NAME``, a class of torchvision.datasets; ``hf:NAME``, a
    data set of Hugging Face or a folder that it saved.
    `n`: number of images; default: all. `fewer`: take all images if there are fewer than `n`. `choose`: "first", or
    "balanced": equally many of each class, in turn; default: balanced for folders of classes, otherwise first.
    `size`: side, or `Framing`, to crop and resize pictures to; default: unchanged, but 224 after a resize to 256 for
    GTSRB and ImageNet-100, as in the paper. `part`: the test or the training images, if a source has both.
    """
    if part not in get_args(Part):
        raise UnsupportedError(f"part {part!r}; use {' or '.join(get_args(Part))}")
    name = str(name)
    listing = _listing(name, part)
    if fewer and n is not None:
        n = min(n, len(listing.labels))
    return _read(listing, name, n, size, part, choose)


def images_in(name: str, part: Part = "test") -> int:
    """The number of images that `load_data` finds, without reading picture files."""
    return len(_listing(name, part).labels)


def load_parts(name: str, size: Size = None) -> tuple[Data, Data | None]:
    """All training images and all test images, with labels in the numbering of the training images; None for the test
    images if the source has no such split."""
    listing = _listing(name, "train")
    train = _read(listing, name, None, size, "train", None)
    if not listing.split:
        return train, None
    test = load_data(name, size=size).for_classes(train.class_names)
    if unknown := [one for one in test.class_names if one not in train.class_names]:
        raise SourceError(
            f"{name} has test images of the class {unknown[0]!r}, but no training images; add some, or remove the class"
        )
    return train, Data(test.x, test.y, train.class_names)


def _read(listing: Listing, name: str, n: int | None, size: Size, part: Part, choose: Choice | None) -> Data:
    if not len(listing.labels):
        raise SourceError(f"{name} contains no images for the part {part}; use another source")
    rows = listing.rows(n, choose, name)
    x = listing.read(rows, listing.size if size is None else framing(size))
    if isinstance(size, int) and tuple(x.shape[2:]) != (size, size):
        raise UnsupportedError(
            f"size={size}, but {name} contains arrays of {tuple(x.shape[2:])}, not picture files; omit size"
        )
    return Data(x, torch.tensor([int(listing.labels[row]) for row in rows]), listing.class_names)


KINDS: dict[str, Callable[[str, Part], Listing]] = {
    "npz": lambda rest, part: of_npz(Path(rest), part),
    "folder": lambda rest, part: datasets.of_parts(Path(rest), part),
    "csv": lambda rest, part: of_csv(Path(rest)),
    "cifar10": partial(datasets.cifar, "cifar10"),
    "cifar100": partial(datasets.cifar, "cifar100"),
    "gtsrb": datasets.gtsrb,
    "imagenet100": datasets.imagenet100,
    "torchvision": datasets.torchvision,
    "hf": datasets.hugging_face,
}


def _listing(name: str, part: Part) -> Listing:
    kind, _, rest = name.partition(":")
    if name == "bundled":
        return of_tensors(*zoo.bundled_images(), zoo.CIFAR10_CLASSES)
    if name == "digits":
        return _digits(part)
    if kind not in KINDS or not (rest or kind in datasets.NAMES):
        raise SourceError(f"no data {name!r}; use {NAMES}")
    return KINDS[kind](rest, part)


def _digits(part: Part) -> Listing:
    """The digits of scikit-learn, 8x8 in 17 levels of grey: the first 1400 for training, the other 397 for testing."""
    with needs("digits"):
        from sklearn.datasets import load_digits
    digits, chosen = load_digits(), slice(0, 1400) if part == "train" else slice(1400, None)
    x = (torch.from_numpy(digits.images[chosen]).float() * 255 / 16).round()[:, None] / 255
    y = torch.from_numpy(digits.target[chosen]).long()
    return of_tensors(x, y, [str(digit) for digit in range(10)], split=True)
