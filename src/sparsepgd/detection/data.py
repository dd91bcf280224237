"""A folder of images with boxes and outlines in YOLO's text format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, UnidentifiedImageError
from torch import Tensor

from sparsepgd.detection.letterbox import Placement, letterbox
from sparsepgd.detection.targets import Target
from sparsepgd.errors import SourceError

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
BOX_FOLDERS = ("boxes", "labels")
OUTLINE_FOLDERS = ("polygons", "segments")


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images of one size with the truth about them, one row each."""

    x: Tensor  # (B, 3, H, W) on the 8-bit grid
    content: Tensor  # (B, H, W) bool, what is not padding
    targets: tuple[Target, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def read_folder(folder: Path, size: int = 640, n: int | None = None, *, masks: bool = False) -> Scenes:
    """The first n pictures of FOLDER/images, letterboxed to size x size, by their names.

    FOLDER/boxes (or labels) holds a text file for each, with a line `class x y width height` for each object, as
    shares of the picture; FOLDER/polygons (or segments) lines `class x y x y ...`. With `masks` the objects are those
    of the outlines, without it those of the boxes. A picture without a file shows nothing that counts.
    """
    files = sorted(file for file in (folder / "images").glob("*") if file.suffix.lower() in PICTURES)
    if not files:
        raise SourceError(f"no pictures in {folder / 'images'}; give a folder with images/ and boxes/ in it")
    if n is not None and not 0 < n <= len(files):
        raise SourceError(f"n={n}, but {folder / 'images'} holds {len(files)} pictures; use 1 <= n <= {len(files)}")
    if size < 32 or size % 32:
        raise SourceError(f"size={size}; detectors need a multiple of 32, e.g. 640")
    labels = _labels(folder, OUTLINE_FOLDERS if masks else BOX_FOLDERS)
    x, content, targets = [], [], []
    for file in files[:n]:
        boxed, where = letterbox(_picture(file), size)
        lines = _lines(labels / f"{file.stem}.txt")
        x.append(boxed)
        content.append(where.content)
        targets.append(_outlined(lines, where) if masks else _boxed(lines, where))
    return Scenes(torch.stack(x), torch.stack(content), tuple(targets), tuple(file.stem for file in files[:n]))


def _labels(folder: Path, names: tuple[str, ...]) -> Path:
    found = next((folder / name for name in names if (folder / name).is_dir()), None)
    if found is None:
        raise SourceError(f"no {' or '.join(names)} in {folder}; put a text file for each picture there")
    return found


def _picture(file: Path) -> Tensor:
    try:
        with Image.open(file) as picture:
            levels = torch.from_numpy(np.array(picture.convert("RGB")))
    except (UnidentifiedImageError, OSError, ModuleNotFoundError) as error:  # ultralytics puts its own in for open
        raise SourceError(f"{file} cannot be read as a picture: {error}") from None
    return levels.permute(2, 0, 1).float() / 255


def _lines(file: Path) -> list[tuple[int, list[float]]]:
    """The class and the numbers of each line."""
    found = []
    for number, line in enumerate(file.read_text().splitlines() if file.is_file() else [], 1):
        if not line.strip():
            continue
        try:
            label, *values = line.split()
            found.append((int(label), [float(value) for value in values]))
        except ValueError:
            raise SourceError(f"{file}, line {number}: {line[:40]!r}; expected a class number and shares") from None
        if found[-1][0] < 0 or len(values) < 4 or len(values) % 2:
            raise SourceError(
                f"{file}, line {number}: {len(values)} shares of class {label}; expected pairs, 2 or more"
            )
    return found


def _boxed(lines: list[tuple[int, list[float]]], where: Placement) -> Target:
    """Of outlines, should they be in the place of boxes, the box around them."""
    shares = [values if len(values) == 4 else _around(values) for _, values in lines]
    boxes = where.boxes(torch.tensor(shares).reshape(-1, 4))
    return Target(boxes, torch.tensor([label for label, _ in lines], dtype=torch.int64))


def _around(polygon: list[float]) -> list[float]:
    xs, ys = polygon[::2], polygon[1::2]
    return [(min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2, max(xs) - min(xs), max(ys) - min(ys)]


def _outlined(lines: list[tuple[int, list[float]]], where: Placement) -> Target:
    target = _boxed([(label, _around(polygon)) for label, polygon in lines], where)
    masks = [_filled(where.points(torch.tensor(polygon).reshape(-1, 2)), where.frame) for _, polygon in lines]
    empty = torch.zeros(0, *where.frame, dtype=torch.bool)
    return Target(target.boxes, target.labels, torch.stack(masks) if masks else empty)


def _filled(points: Tensor, frame: tuple[int, int]) -> Tensor:
    """(H, W) bool: the polygon with the given corners (N, 2)."""
    sheet = Image.new("1", (frame[1], frame[0]))
    corners = [(float(x), float(y)) for x, y in points.tolist()]
    ImageDraw.Draw(sheet).polygon(corners, fill=1, outline=1)
    return torch.from_numpy(np.array(sheet, dtype=bool))
