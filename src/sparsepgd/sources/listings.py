"""A data source before any picture is read: the labels of all images, and a function that reads some of them."""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sparsepgd.errors import SourceError, UnsupportedError, counted, first_line
from sparsepgd.sources.pictures import Size, load_image

Choice = Literal["first", "balanced"]
Part = Literal["test", "train"]
_LINE = "lines of a picture file and a class number"


@dataclass(frozen=True, eq=False)
class Listing:
    labels: Sequence[int]
    read: Callable[[list[int], Size], Tensor]  # images by index, cropped and resized: (n, C, H, W)
    class_names: tuple[str, ...] = ()
    choose: Choice = "first"  # used if the user gives none
    size: Size = None  # used if the user gives none; as in the paper
    split: bool = False  # whether the source has both training and test images

    def rows(self, n: int | None, choose: str | None, name: str) -> list[int]:
        """The indices of n images: the first ones, or equally many of each class, taken in turn."""
        if choose not in (None, *get_args(Choice)):
            raise UnsupportedError(f"choose {choose!r}; use {' or '.join(get_args(Choice))}")
        count = len(self.labels)
        if n is not None and not (isinstance(n, Integral) and 1 <= n <= count):
            raise SourceError(f"n={n}, but {name} holds {counted(count, 'images')}; use 1 <= n <= {count}")
        if (choose or self.choose) == "first":
            return list(range(count))[:n]
        seen: Counter[int] = Counter()
        ranked = []  # (number within the class, class, index), so that sorting takes from all classes in turn
        for index, label in enumerate(self.labels):
            ranked.append((seen[label], label, index))
            seen[label] += 1
        return [index for _, _, index in sorted(ranked)[:n]]


def of_tensors(x: Tensor, y: Tensor, class_names: Sequence[str] = (), split: bool = False) -> Listing:
    """Images that are in memory already, (N, C, H, W) in [0, 1] or uint8, as float32 in [0, 1]."""

    def read(rows: list[int], size: Size) -> Tensor:
        whole = rows == list(range(len(x)))
        some = x if whole else x[torch.tensor(rows, dtype=torch.int64)]
        if some.dtype == torch.uint8:
            return some.float() / 255
        return some.float() if some.is_floating_point() else some

    return Listing(y.tolist(), read, tuple(class_names), split=split)


def of_files(
    paths: Sequence[str], labels: Sequence[int], class_names: Sequence[str], choose: Choice, size: Size = None
) -> Listing:

    def read(rows: list[int], size: Size) -> Tensor:
        return stacked((load_image(paths[row], size)[0][0] for row in rows), [paths[row] for row in rows])

    return Listing(labels, read, tuple(class_names), choose, size)


def stacked(pictures: Iterable[Tensor], names: Sequence[str]) -> Tensor:
    """One tensor of pictures of the same size. They are in memory only once if `pictures` makes them one by one."""
    whole = torch.empty(0)
    for i, (name, picture) in enumerate(zip(names, pictures, strict=True)):
        if i == 0:
            whole = picture.new_empty(len(names), *picture.shape)
        if picture.shape[0] != whole.shape[1]:
            raise SourceError(
                f"{names[0]} has {counted(whole.shape[1], 'channels')}, but {name} has {picture.shape[0]}; "
                "convert them to one mode"
            )
        if picture.shape != whole.shape[1:]:
            first, other = (f"{shape[-1]}x{shape[-2]}" for shape in (whole.shape, picture.shape))
            raise SourceError(f"{names[0]} is {first}, {name} is {other}; use --size to resize them")
        whole[i] = picture
    return whole


def of_folder(path: Path, size: Size = None) -> Listing:
    """One sub-folder of pictures per class, in the order of their names."""
    from torchvision.datasets import ImageFolder

    try:
        found = ImageFolder(str(path))
    except OSError as error:
        raise SourceError(
            f"no images in {str(path)!r}: {first_line(error).rstrip('.')}; use one sub-folder of pictures per class"
        ) from None
    paths, labels = zip(*found.samples, strict=True)
    return of_files(paths, labels, found.classes, "balanced", size)


def of_csv(path: Path) -> Listing:
    """Lines of a picture file, relative to the folder of the CSV file, and a class number. A header line is skipped; a
    column class_name contains the names of the classes."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = {number: line for number, line in enumerate(csv.reader(file), 1) if line}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"{str(path)!r} cannot be read: {error}; give a CSV file of picture files and class numbers"
        ) from None
    first = min(lines, default=0)
    titles = lines.pop(first) if lines and len(lines[first]) > 1 and not _is_number(lines[first][1]) else []
    column = titles.index("class_name") if "class_name" in titles else 1
    for number, line in lines.items():
        if len(line) <= max(1, column) or not re.fullmatch("[0-9]{1,6}", line[1].strip()):
            raise SourceError(f"{path}, line {number}, holds {line}; expected {_LINE}")
    if not lines:
        raise SourceError(f"{path} is empty; expected {_LINE}")
    labels = [int(line[1]) for line in lines.values()]
    names: list[str] = []
    if "class_name" in titles:
        known = {label: line[column] for label, line in zip(labels, lines.values(), strict=True)}
        names = [known.get(label, f"class {label}") for label in range(max(labels) + 1)]
    return of_files([str(path.parent / line[0]) for line in lines.values()], labels, names, "first")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word.strip().isnumeric()
    return True


def of_npz(path: Path, part: str) -> Listing:
    """Arrays x and y, or x_test, y_test, x_train, y_train; names of classes in an array class_names."""
    x, y, classes, split = _arrays(path, part)
    if y.ndim != 1 or x.ndim == 0 or len(y) != len(x):
        raise SourceError(f"{path} holds images {x.shape} and labels {y.shape}; expected one label per image")
    if y.dtype.kind not in "biuf" or (y.dtype.kind == "f" and not bool(((y == np.floor(y)) & (abs(y) < 1e9)).all())):
        raise SourceError(f"{path} has labels of type {y.dtype}; expected class numbers 0, 1, 2, ...")
    if x.dtype.kind not in "biuf":
        raise SourceError(f"{path} has images of type {x.dtype}; expected uint8, or floats in [0, 1]")
    last = int(y.max(initial=0))
    if classes.ndim != 1 or 0 < len(classes) <= last:
        raise SourceError(
            f"{path} has class_names {classes.shape} and labels up to {last}; expected one name per class"
        )
    images = torch.from_numpy(x.astype(x.dtype.newbyteorder("="), copy=False))
    if images.dim() == 4 and images.shape[1] > 4 and images.shape[3] <= 4:
        images = images.permute(0, 3, 1, 2).contiguous()
    return of_tensors(images, torch.from_numpy(y.astype(np.int64)), [str(name) for name in classes], split)


def _arrays(path: Path, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Images, labels, class names, and whether the file has both training and test images."""
    if not path.exists():
        raise SourceError(f"no file {str(path)!r}; give an npz file with arrays x and y")
    try:
        with path.open("rb") as stream:
            if stream.read(6)[:2] not in (b"PK", b"\x93N"):  # numpy takes anything else for a pickle
                raise ValueError("it is not an npz file")
            stream.seek(0)
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it is a single array")
            there = set(file.files)
            named = {one: {f"x_{one}", f"y_{one}"} <= there for one in get_args(Part)}
            plain = {"x", "y"} <= there  # stands for a part that is not named
            if not named[part] and not plain:
                raise ValueError(f"it holds {', '.join(sorted(file.files)) or 'nothing'}")
            end = f"_{part}" if named[part] else ""
            split = all(named.values()) or (any(named.values()) and plain)
            return file[f"x{end}"], file[f"y{end}"], np.atleast_1d(file.get("class_names", [])), split
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = f"{first_line(error)}; expected arrays x and y, as numpy.savez writes them"
        raise SourceError(f"{str(path)!r} cannot be read as npz: {reason}") from None
