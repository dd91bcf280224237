"""Drawings: 0/1 kernels for stickers and watermarks (paper, section on adversarial watermarks).

The paper gives only the size and the number of ones of its kernels (an 18x18 circle with 208, a 60x60
letter "A" with 1747); the authors' own bitmaps are unpublished. The drawings here have exactly these numbers.
Outlines are in units of cells, x to the right, y down. Each cell is sampled at many points, and is part of the drawing
("ink") if enough of them lie inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsepgd.errors import KernelError, SourceError, UnsupportedError

if TYPE_CHECKING:
    from PIL import Image

Ink = Literal["auto", "dark", "light", "alpha"]
Contour = NDArray[np.float64]  # (points, 2), closed

SAMPLES = 1200  # along each side of a drawing, shared among its cells
LARGEST = 4096  # drawings of more cells take several GB of memory
TRIM = 0.008  # of the side, taken off the edges of a letter: letter("A", 60) then has 1747 ones


def heart(size: int) -> Tensor:
    """Two discs side by side, each joined to the tip below by its tangents.

    A cell is ink if at least 60 % of it is covered, so that the notch is visible from size 5 on. The tip is half a cell
    longer than the box, so that it reaches the last row.
    """
    _check_size(size)
    r, depth = size / 4, 3 * size / 4 + 0.5  # radius; from the discs' centres down to the tip
    angle = np.linspace(math.pi, 2 * math.atan2(depth, r) - math.pi, 100)  # over the top, to the tangent
    right = np.stack((r + r * np.cos(angle), r - r * np.sin(angle)), 1)
    right = np.concatenate((right, [[0.0, r + depth]]))
    outline = np.array([size / 2, 0]) + np.concatenate((right, (right * [-1, 1])[::-1]))
    return _mirrored(_coverage(_inside([outline], size), size) >= 0.6)


def star(size: int) -> Tensor:
    """A five-pointed star, stretched to the box; a cell is ink from one eighth on, otherwise the points are lost."""
    _check_size(size)
    angle = np.arange(10) * math.pi / 5  # from the upper point
    radius = np.where(np.arange(10) % 2 == 0, 1.0, (3 - math.sqrt(5)) / 2)  # of the pentagram
    outline = np.stack((radius * np.sin(angle), -radius * np.cos(angle)), 1)
    return _mirrored(_coverage(_inside(_stretched([outline], size), size), size) >= 1 / 8)


def circle(size: int) -> Tensor:
    """The cells whose centres are at most size / 2 - 1 from the middle; ``circle(18)`` has 208 ones.

    Below size 3, this radius would leave nothing, so the disc fills the box.
    """
    _check_size(size)
    radius = size / 2 - 1 if size >= 3 else size / 2
    centre = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    return (centre[:, None] ** 2 + centre**2 <= radius**2).float()


def letter(character: str, size: int) -> Tensor:
    """One character in DejaVu Sans Bold, stretched to the box; a cell is ink from one half on.

    The strokes are made slightly thinner: a margin of TRIM * size along the outline is removed. TRIM is chosen so that
    ``letter("A", 60)`` has the 1747 ones of the paper. A character that is a single bar, such as "I" or "-", fills the
    box.
    """
    from scipy.ndimage import distance_transform_edt

    _check_size(size)
    inside = _inside(_stretched(_glyph(character), size), size)
    if not inside.all():  # without background there is no distance to it
        inside = distance_transform_edt(inside) > TRIM * len(inside)
    ink = _coverage(inside, size) >= 0.5
    if not ink.any():
        raise KernelError(f"letter {character!r} in a box of {size}x{size} leaves no pixels; use a larger size")
    return torch.from_numpy(ink).float()


def from_image(path: str | Path, size: int | None = None, ink: Ink = "auto") -> Tensor:
    """The ink of a picture file: the pixels that are at least half opaque ("alpha"), half dark or half light.

    "auto" is "alpha" if the file has transparency, otherwise "dark". Transparent parts are never ink.
    `size` is the longer side after resizing by area; None keeps the size of the picture.
    """
    if ink not in get_args(Ink):
        raise UnsupportedError(f"ink={ink!r}; expected one of {', '.join(map(repr, get_args(Ink)))}")
    drawn = _ink(_open(path), path, ink)
    if size is not None:
        _check_size(size)
        from PIL import Image

        scale = size / max(drawn.size)
        width, height = (max(1, round(side * scale)) for side in drawn.size)
        drawn = drawn.resize((width, height), Image.Resampling.BOX)
    cells = np.asarray(drawn) >= 128
    if not cells.any():
        expected = "another ink=" if size is None else "another ink= or a larger size"
        raise KernelError(f"{path} has no ink with ink={ink!r} and size={size}; use {expected}")
    return torch.from_numpy(cells).float()


def _check_size(size: int) -> None:
    if not (isinstance(size, Integral) and 1 <= size <= LARGEST):
        raise KernelError(f"size={size!r}; use an integer size >= 1 and <= {LARGEST}")


def _stretched(contours: Sequence[Contour], size: int) -> list[Contour]:
    """The contours, moved and stretched so that together they fill the box."""
    points = np.concatenate(contours)
    low, high = points.min(0), points.max(0)
    return [(contour - low) / (high - low) * size for contour in contours]


def _inside(contours: Sequence[Contour], size: int) -> NDArray[np.bool_]:
    """Which samples of the box have a non-zero winding number: a square array whose side is a multiple of `size`."""
    n = max(4, math.ceil(SAMPLES / size)) * size
    crossings = np.zeros((n, n + 1), np.int32)  # change of the winding number at each sample
    for contour in contours:
        points = contour * n / size - 0.5  # samples now have integer coordinates
        for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, 0), strict=True):
            top, bottom = np.clip(np.ceil([min(y0, y1), max(y0, y1)]), 0, n).astype(int)
            rows = np.arange(top, bottom)
            if rows.size:
                columns = np.ceil(x0 + (rows - y0) * (x1 - x0) / (y1 - y0))
                crossings[rows, np.clip(columns, 0, n).astype(int)] += 1 if y1 > y0 else -1
    inside: NDArray[np.bool_] = crossings[:, :n].cumsum(1) != 0
    return inside


def _coverage(inside: NDArray[np.bool_], size: int) -> NDArray[np.float64]:
    """The share of each cell that lies inside, (size, size)."""
    s = len(inside) // size
    coverage: NDArray[np.float64] = inside.reshape(size, s, size, s).mean((1, 3))
    return coverage


def _mirrored(ink: NDArray[np.bool_]) -> Tensor:
    """Made exactly symmetric, because rounding affects samples on the outline."""
    return torch.from_numpy(ink | ink[:, ::-1]).float()


def _glyph(character: str) -> list[Contour]:
    """The contours of one character in the bold font of matplotlib."""
    import matplotlib
    from matplotlib.font_manager import FontProperties, get_font
    from matplotlib.textpath import TextPath

    if len(character) != 1 or not character.isprintable() or character.isspace():
        raise KernelError(f"character={character!r}; expected exactly one visible character, e.g. 'A'")
    face = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
    font = get_font(face)
    if font.get_char_index(ord(character)) == 0:
        raise KernelError(
            f"character={character!r} is not in the font {face.stem}; draw it to a file and use from_image"
        )
    if font.load_char(ord(character)).width == 0:
        raise KernelError(f"character={character!r} has no outline; use a visible character")
    outline = TextPath((0, 0), character, size=1000, prop=FontProperties(fname=face))
    return [np.asarray(points) * [1, -1] for points in outline.to_polygons()]


def _open(path: str | Path) -> Image.Image:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGBA")
    except FileNotFoundError as error:
        raise SourceError(f"no picture at {path}; check the path") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise SourceError(f"cannot read {path} as a picture ({error}); save it as an 8-bit PNG") from error


def _ink(image: Image.Image, path: str | Path, ink: Ink) -> Image.Image:
    """How much of each pixel is ink, 0 to 255."""
    alpha = image.getchannel("A")
    transparent = alpha.getextrema() != (255, 255)
    if ink == "alpha" and not transparent:
        raise SourceError(f"{path} has no transparency, so all of it would be ink; use ink='dark' or 'light'")
    if ink == "alpha" or (ink == "auto" and transparent):
        return alpha
    from PIL import Image

    paper = Image.new("RGBA", image.size, "black" if ink == "light" else "white")
    grey = Image.alpha_composite(paper, image).convert("L")
    return grey if ink == "light" else grey.point([255 - level for level in range(256)])
