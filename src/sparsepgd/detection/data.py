"""A folder of images with boxes and outlines in YOLO's text format, letterboxed.

Letterboxing resizes an image to fit a frame and pads it with grey. Attacks may not change the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.detection.objectives import Target
from sparsepgd.errors import ShapeError, SourceError, counted
from sparsepgd.sources import load_image
from sparsepgd.threat import LEVELS

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
BOX_FOLDERS = ("boxes", "labels")
OUTLINE_FOLDERS = ("polygons", "segments")
GREY = 114 / LEVELS  # the padding of YOLO


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images of one size with their ground truth, one row each."""

    x: Tensor  # (B, 3, H, W) on the 8-bit grid
    content: Tensor  # (B, H, W) bool, what is not padding
    targets: tuple[Target, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Placement:
    frame: tuple[int, int]  # height, width
    top: int
    left: int
    height: int
    width: int

    @property
    def content(self) -> Tensor:
        """(H, W) bool: the image itself, without the padding."""
        mask = torch.zeros(self.frame, dtype=torch.bool)
        mask[self.top : self.top + self.height, self.left : self.left + self.width] = True
        return mask

    def points(self, normalised: Tensor) -> Tensor:
        """(..., 2) of (x, y) relative to the image -> pixels of the frame."""
        size, corner = (normalised.new_tensor(pair) for pair in ((self.width, self.height), (self.left, self.top)))
        return normalised * size + corner

    def boxes(self, normalised: Tensor) -> Tensor:
        """(N, 4) of (centre x, centre y, width, height) relative to the image -> (x_1, y_1, x_2, y_2) in pixels."""
        centre, half = normalised[:, :2], normalised[:, 2:] / 2
        return torch.cat([self.points(centre - half), self.points(centre + half)], 1)


def letterbox(image: Tensor, frame: int | tuple[int, int]) -> tuple[Tensor, Placement]:
    """(C, H, W) in [0, 1] -> (C, *frame) on the 8-bit grid, and the position of the image in it."""
    if image.dim() != 3 or not image.is_floating_point():
        raise ShapeError(
            f"an image is {image.dtype} of shape {tuple(image.shape)}; expected floats (C, H, W) in [0, 1]"
        )
    height, width = (frame, frame) if isinstance(frame, int) else frame
    scale = min(height / image.shape[1], width / image.shape[2])  # as large as fits, in the middle
    inner = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[2] * scale))
    where = Placement((height, width), (height - inner[0]) // 2, (width - inner[1]) // 2, *inner)
    if image.shape[1:] != inner:
        image = F.interpolate(image[None], inner, mode="bilinear", antialias=True)[0]
    boxed = image.new_full((len(image), height, width), GREY)
    boxed[:, where.content] = image.flatten(1)
    return (boxed.clamp(0, 1) * LEVELS).round() / LEVELS, where


def read_folder(folder: Path, size: int = 640, n: int | None = None, *, masks: bool = False) -> Scenes:
    """The first n pictures of FOLDER/images, in the order of their names, letterboxed to size x size.

    FOLDER/boxes (or labels) holds a text file for each picture, with a line `class x y width height` for each object,
    relative to the picture; FOLDER/polygons (or segments) has lines `class x y x y ...`. With `masks` the objects are
    read from the polygons, otherwise from the boxes. A picture without a text file has no objects.
    """
    files = sorted(file for file in (folder / "images").glob("*") if file.suffix.lower() in PICTURES)
    if not files:
        raise SourceError(f"no pictures in {folder / 'images'}; expected a folder that contains images/ and boxes/")
    if n is not None and not 0 < n <= len(files):
        raise SourceError(
            f"n={n}, but {folder / 'images'} holds {counted(len(files), 'pictures')}; use 1 <= n <= {len(files)}"
        )
    if size < 32 or size % 32:
        raise SourceError(f"size={size}; detectors need a multiple of 32, e.g. 640")
    names = OUTLINE_FOLDERS if masks else BOX_FOLDERS
    labels = next((folder / name for name in names if (folder / name).is_dir()), None)
    if labels is None:
        raise SourceError(f"no {' or '.join(names)} in {folder}; it must contain a text file for each picture")
    x, content, targets = [], [], []
    for file in files[:n]:
        boxed, where = letterbox(load_image(str(file), None)[0][0], size)
        lines = _lines(labels / f"{file.stem}.txt", pairs=3 if masks else 2)
        x.append(boxed)
        content.append(where.content)
        targets.append(_outlined(lines, where) if masks else _boxed(lines, where))
    return Scenes(torch.stack(x), torch.stack(content), tuple(targets), tuple(file.stem for file in files[:n]))


def _lines(file: Path, pairs: int) -> list[tuple[int, list[float]]]:
    """The class and the coordinates in each line, at least so many pairs: 2 of a box, 3 of a polygon."""
    found = []
    for number, line in enumerate(file.read_text().splitlines() if file.is_file() else [], 1):
        if not line.strip():
            continue
        try:
            label, *values = line.split()
            found.append((int(label), [float(value) for value in values]))
        except ValueError:
            raise SourceError(
                f"{file}, line {number}: {line[:40]!r}; expected a class number and relative coordinates"
            ) from None
        if found[-1][0] < 0 or len(values) < 2 * pairs or len(values) % 2:
            raise SourceError(
                f"{file}, line {number}: {len(values)} coordinates for class {label}; expected a class from 0 on and "
                f"at least {pairs} pairs"
            )
    return found


def _boxed(lines: list[tuple[int, list[float]]], where: Placement) -> Target:
    """Boxes; polygons in place of boxes are replaced by the boxes around them."""
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
