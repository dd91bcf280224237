"""The data sets of the paper, in the formats in which they are distributed, and those of torchvision and Hugging Face.

CIFAR-10 and CIFAR-100 are read as torchvision stores them (and downloaded if necessary) or from one npz file. GTSRB
and ImageNet-100 are folders of classes, which must be downloaded manually.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsepgd import zoo
from sparsepgd.errors import SourceError, counted, first_line
from sparsepgd.extras import needs
from sparsepgd.sources.listings import Listing, Part, of_files, of_folder, of_npz, of_tensors, stacked
from sparsepgd.sources.pictures import Framing, Size, as_tensor

if TYPE_CHECKING:
    from PIL import Image

NAMES = ("cifar10", "cifar100", "gtsrb", "imagenet100")
DATA_FOLDER = "SPARSEPGD_DATA"  # environment variable: the folder of data sets; default: ./data
LARGE = Framing(224, 256, "bilinear")  # pictures of the 224x224 experiments
GTSRB_TEST = 1000  # test images, which the paper takes from the training set
GTSRB_FOLDERS = ("GTSRB/Final_Training/Images", "Final_Training/Images", "GTSRB/Training", "Training", ".")
PARTS = {"train": ("train",), "test": ("val_sub", "test", "val", "validation")}
LABELS = ("targets", "labels", "_labels")  # attributes of torchvision's data sets
SPLITS = {"test": ("test", "validation", "valid", "val"), "train": ("train",)}
GTSRB_CLASSES = (
    "speed limit 20", "speed limit 30", "speed limit 50", "speed limit 60", "speed limit 70", "speed limit 80",
    "end of speed limit 80", "speed limit 100", "speed limit 120", "no overtaking", "no overtaking by lorries",
    "right of way at the next crossing", "priority road", "give way", "stop", "no vehicles", "no lorries",
    "no entry", "danger", "bend to the left", "bend to the right", "double bend", "uneven road", "slippery road",
    "road narrows on the right", "road works", "traffic lights", "pedestrians", "children", "bicycles",
    "ice or snow", "wild animals", "end of all limits", "turn right", "turn left", "ahead only",
    "ahead or right", "ahead or left", "keep right", "keep left", "roundabout", "end of no overtaking",
    "end of no overtaking by lorries",
)  # fmt: skip


def cifar(name: str, given: str, part: Part) -> Listing:
    """Python batches in the folder, or cifar10.npz with x_test, y_test, x_train, y_train."""
    from torchvision import datasets

    folder = _folder(name, given)
    file = folder / f"{name}.npz" if folder.suffix != ".npz" else folder
    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    if file.is_file():
        names = zoo.CIFAR10_CLASSES if name == "cifar10" else ()
        listing = of_npz(file, part)
        return replace(listing, class_names=listing.class_names or names)
    try:
        found = kind(str(folder), train=part == "train", download=not (folder / kind.base_folder).is_dir())
    except (RuntimeError, OSError) as error:
        raise SourceError(
            f"no {kind.base_folder} in {str(folder)!r}, and the download failed: {first_line(error)}; unpack "
            f"{kind.filename} there, put {file.name} there, or give the folder as {name}:DIR or in {DATA_FOLDER}"
        ) from None
    x = torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous()
    return of_tensors(x, torch.tensor(found.targets), found.classes, split=True)


def gtsrb(given: str, part: Part) -> Listing:
    """The labelled training pictures of GTSRB, split as in the paper: 1,000 for testing, the others for training.

    The test images are those of the official code: the first 1,000 after sorting the pictures by name and shuffling
    them with numpy's legacy generator and seed 0.
    """
    folder = _folder("gtsrb", given)
    root = next((folder / one for one in GTSRB_FOLDERS if (folder / one / "00000").is_dir()), None)
    if root is None:
        raise SourceError(
            f"no folders 00000 to 00042 in {str(folder)!r}; unpack GTSRB_Final_Training_Images.zip there, or give the "
            f"folder as gtsrb:DIR or in {DATA_FOLDER}"
        )
    from torchvision.datasets import ImageFolder

    found = ImageFolder(str(root))
    order = np.arange(len(found.samples))
    np.random.RandomState(0).shuffle(order)
    if len(order) <= GTSRB_TEST:
        raise SourceError(
            f"{root} holds {counted(len(order), 'pictures')}; expected more than {GTSRB_TEST}, which are the test "
            "images"
        )
    rows = order[GTSRB_TEST:] if part == "train" else order[:GTSRB_TEST]
    paths, labels = zip(*(found.samples[row] for row in rows.tolist()), strict=True)
    named = found.classes == [f"{number:05d}" for number in range(len(GTSRB_CLASSES))]
    return replace(of_files(paths, labels, GTSRB_CLASSES if named else found.classes, "first", LARGE), split=True)


def imagenet100(given: str, part: Part) -> Listing:
    """Folders train and val (or val_sub, as the official code names it), with one sub-folder per class.

    A file classes.txt beside them selects classes of a larger data set; each line has the name of a folder and then a
    readable name. Classes are numbered in the order of the folders' names, as torchvision does.
    """
    folder = _folder("imagenet100", given)
    if not folder.is_dir() or not any(one.is_dir() for one in folder.iterdir()):
        lacking = "folders of pictures in" if folder.is_dir() else "folder"
        raise SourceError(
            f"no {lacking} {str(folder)!r}; give one with train and val as imagenet100:DIR or in {DATA_FOLDER}"
        )
    listing = of_parts(folder, part, LARGE)
    file = folder / "classes.txt"
    if not file.is_file():
        if len(listing.class_names) > 100:
            raise SourceError(
                f"{folder} has {len(listing.class_names)} classes; list 100 of them in {file} (those of the paper: "
                "recipes/imagenet100-classes.txt)"
            )
        return listing
    content = [line.partition("#")[0].split(None, 1) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in content if line]
    return _restricted(listing, {line[0]: line[-1].strip() for line in lines}, file)


def of_parts(path: Path, part: Part, size: Size = None) -> Listing:
    """The sub-folder for training or testing, if there is one of each; otherwise the folder itself."""
    folders = {
        which: next((path / name for name in names if (path / name).is_dir()), None) for which, names in PARTS.items()
    }
    split = all(folders.values())
    return replace(of_folder(folders[part] or path if split else path, size), split=split)


def _restricted(listing: Listing, names: dict[str, str], file: Path) -> Listing:
    """Only the listed classes, renumbered."""
    chosen = sorted(names)
    missing = [folder for folder in chosen if folder not in listing.class_names]
    if missing:
        raise SourceError(f"{file} lists {missing[0]}, which has no folder; correct the list or add the folder")
    number = {listing.class_names.index(folder): new for new, folder in enumerate(chosen)}
    rows = [row for row, label in enumerate(listing.labels) if label in number]
    return replace(
        listing,
        labels=[number[listing.labels[row]] for row in rows],
        read=lambda some, size: listing.read([rows[row] for row in some], size),
        class_names=tuple(names[folder] for folder in chosen),
    )


def _folder(name: str, given: str) -> Path:
    """The given folder; by default the sub-folder of this data set in the common folder, or the common folder."""
    common = Path(os.environ.get(DATA_FOLDER, "data"))
    return Path(given) if given else common / name if (common / name).is_dir() else common


def torchvision(name: str, part: Part) -> Listing:
    """``MNIST`` or ``MNIST:DIR``: a class of torchvision.datasets, downloaded if necessary."""
    from torchvision import datasets

    kind, _, folder = name.partition(":")
    make = getattr(datasets, kind, None)
    if not isinstance(make, type) or not issubclass(make, datasets.VisionDataset):
        raise SourceError(
            f"torchvision has no data set {kind!r}; use a class of torchvision.datasets, e.g. FashionMNIST"
        )
    found = _made(make, folder or os.environ.get(DATA_FOLDER, "data"), part)
    first = found[0]
    if not isinstance(first, tuple) or not hasattr(first[0], "convert") or not isinstance(first[1], int):
        raise SourceError(
            f"torchvision:{kind} does not return pictures and class numbers; convert it in Python, see sp.load_data"
        )
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
        raise SourceError(
            f"hf:{name} cannot be loaded: {reason}; use a name on the Hugging Face Hub or a saved folder"
        ) from None
    split = False
    if isinstance(found, dict):
        splits = {which: next((one for one in known if one in found), None) for which, known in SPLITS.items()}
        chosen, split = splits[part], all(splits.values())
        if chosen is None:
            raise SourceError(f"hf:{name} has the splits {', '.join(found)}; expected one of {', '.join(SPLITS[part])}")
        found = found[chosen]
    picture, label, names = _columns(library, found, name)
    return Listing(found[label][:], partial(_read, lambda i: found[i][picture], name), names, split=split)


@dataclass(frozen=True, eq=False)
class _Labels(Sequence[int]):
    """The labels of a data set that stores them with the pictures, read on access."""

    found: Any

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return int(self.found[index][1])


def _made(make: type, root: str, part: Part) -> Any:
    """The data set, made with the arguments that its constructor has; it is downloaded only if it is missing."""
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
    raise SourceError(
        f"no {make.__name__} in {root!r}, and the download failed: {reason.rstrip('.')}; give its folder as "
        f"torchvision:{make.__name__}:DIR"
    )


def _columns(library: Any, found: Any, name: str) -> tuple[str, str, tuple[str, ...]]:
    """The columns of pictures and of labels, and the names of the classes."""
    features = found.features
    picture = next((key for key, kind in features.items() if isinstance(kind, library.Image)), None)
    classes = next((key for key, kind in features.items() if isinstance(kind, library.ClassLabel)), None)
    label = classes or next((key for key in ("label", "labels") if key in features), None)
    if picture is None or label is None:
        raise SourceError(f"hf:{name} has columns {', '.join(features)}; expected an image column and a label column")
    return picture, label, tuple(features[classes].names) if classes else ()


def _read(picture: Callable[[int], Image.Image], name: str, rows: list[int], size: Size) -> Tensor:
    return stacked((as_tensor(picture(row), size) for row in rows), [f"image {row} of {name}" for row in rows])
