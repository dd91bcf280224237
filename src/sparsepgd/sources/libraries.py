"""Data sets of torchvision and of Hugging Face, by their names there."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsepgd.errors import SourceError, first_line
from sparsepgd.extras import needs
from sparsepgd.sources.listings import Listing, Part, stacked
from sparsepgd.sources.paper_data import DATA_FOLDER
from sparsepgd.sources.pictures import Size, as_tensor

if TYPE_CHECKING:
    from PIL import Image

LABELS = ("targets", "labels", "_labels")  # where data sets of torchvision keep them
SPLITS = {"test": ("test", "validation", "valid", "val"), "train": ("train",)}


def torchvision(name: str, part: Part) -> Listing:
    """``MNIST`` or ``MNIST:DIR``: a class of torchvision.datasets, fetched if it is not there."""
    from torchvision import datasets

    kind, _, folder = name.partition(":")
    make = getattr(datasets, kind, None)
    if not isinstance(make, type) or not issubclass(make, datasets.VisionDataset):
        raise SourceError(f"torchvision has no data set {kind!r}; e.g. torchvision:FashionMNIST")
    found = _made(make, folder or os.environ.get(DATA_FOLDER, "data"), part)
    first = found[0]
    if not isinstance(first, tuple) or not hasattr(first[0], "convert") or not isinstance(first[1], int):
        raise SourceError(f"torchvision:{kind} does not give a picture and a class number; use it in Python")
    kept = next((getattr(found, key) for key in LABELS if hasattr(found, key)), None)
    labels: Sequence[int] = _Labels(found) if kept is None else [int(label) for label in kept]
    classes = tuple(map(str, getattr(found, "classes", ())))
    split = not {"train", "split"}.isdisjoint(inspect.signature(make).parameters)
    return Listing(labels, partial(_read, lambda i: found[i][0], kind), classes, split=split)


def hugging_face(name: str, part: Part) -> Listing:
    """``ylecun/mnist``, ``NAME@CONFIG``, or a folder that `save_to_disk` has written."""
    with needs(f"hf:{name}"):
        import datasets as library
    try:
        if any((Path(name) / file).is_file() for file in ("dataset_info.json", "dataset_dict.json")):
            found = library.load_from_disk(name)
        else:
            found = library.load_dataset(*name.split("@", 1))
    except Exception as error:
        reason = first_line(error)
        raise SourceError(f"hf:{name} cannot be loaded: {reason}; give a name of the Hub or a saved folder") from None
    parts = isinstance(found, dict)
    if parts:
        split = next((one for one in SPLITS[part] if one in found), None)
        if split is None:
            raise SourceError(f"hf:{name} has {', '.join(found)}; expected one of {', '.join(SPLITS[part])}")
        found = found[split]
    picture, label, names = _columns(library, found, name)
    return Listing(found[label][:], partial(_read, lambda i: found[i][picture], name), names, split=parts)


@dataclass(frozen=True, eq=False)
class _Labels(Sequence[int]):
    """The labels of a data set that keeps them beside the pictures: looked up when they are asked for."""

    found: Any

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return int(self.found[index][1])


def _made(make: type, root: str, part: Part) -> Any:
    """With the arguments that its constructor has; it is fetched only if it is not there."""
    takes = inspect.signature(make).parameters
    options: dict[str, Any] = {"root": root} if "root" in takes else {}
    options |= {"train": part == "train"} if "train" in takes else {"split": part} if "split" in takes else {}
    attempts = [options, {**options, "download": True}] if "download" in takes else [options]
    reason = ""
    for attempt in attempts:
        try:
            return make(**attempt)
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            reason = first_line(error)
    raise SourceError(f"no {make.__name__} in {root!r}, and it cannot be fetched: {reason}; name its folder with :DIR")


def _columns(library: Any, found: Any, name: str) -> tuple[str, str, tuple[str, ...]]:
    """The columns of pictures and of labels, and the names of the classes."""
    features = found.features
    picture = next((key for key, kind in features.items() if isinstance(kind, library.Image)), None)
    classes = next((key for key, kind in features.items() if isinstance(kind, library.ClassLabel)), None)
    label = classes or next((key for key in ("label", "labels") if key in features), None)
    if picture is None or label is None:
        raise SourceError(f"hf:{name} has columns {', '.join(features)}; expected one of pictures and one of labels")
    return picture, label, tuple(features[classes].names) if classes else ()


def _read(picture: Callable[[int], Image.Image], name: str, rows: list[int], size: Size) -> Tensor:
    return stacked([as_tensor(picture(row), size) for row in rows], [f"image {row} of {name}" for row in rows])
