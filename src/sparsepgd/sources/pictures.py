"""Convert picture files to tensors and back, cropped and resized as a model needs them."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sparsepgd import atomic, zoo
from sparsepgd.errors import SourceError, UnsupportedError

if TYPE_CHECKING:
    from PIL import Image

Filter = Literal["bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Framing:
    """How a picture becomes an input: resize its shorter side to `resize`, then crop the middle square of `size`.

    Without `resize` the largest square in the middle is resized to `size`.
    """

    size: int
    resize: int | None = None
    filter: Filter = "lanczos"

    def __post_init__(self) -> None:
        if self.filter not in get_args(Filter):
            raise UnsupportedError(f"filter={self.filter!r}; use one of {', '.join(get_args(Filter))}")
        if self.size < 1 or (self.resize is not None and self.resize < self.size):
            raise UnsupportedError(f"size={self.size}, resize={self.resize}; use 1 <= size <= resize")

    def __str__(self) -> str:
        if self.resize is None:
            return f"{self.size}x{self.size}"
        return f"{self.size}x{self.size}, centre crop after resizing the shorter side to {self.resize} ({self.filter})"

    def __call__(self, picture: Image.Image) -> Image.Image:
        if picture.size == (self.size, self.size):
            return picture
        from PIL import Image

        how = Image.Resampling[self.filter.upper()]
        if self.resize is None:
            return _middle(picture, min(picture.size)).resize((self.size, self.size), how)
        scale = self.resize / min(picture.size)  # the longer side is rounded down, as torchvision does
        width, height = (self.resize if side == min(picture.size) else int(side * scale) for side in picture.size)
        return _middle(picture.resize((width, height), how), self.size)


Size = int | Framing | None  # None: that of the picture


def framing(size: Size) -> Framing | None:
    return Framing(size) if isinstance(size, int) else size


def load_image(name: str, size: Size, grey: bool = False) -> tuple[Tensor, tuple[int, int]]:
    """A picture file, or ``bundled:NUMBER``, as (1, 3, H, W) on the 8-bit grid, and its own (width, height).

    With `size` it is cropped and resized, unless it is already of that size; with `grey` a file is (1, 1, H, W).
    """
    kind, _, number = name.partition(":")
    if kind == "bundled":
        x, _ = zoo.bundled_images()
        if not number.isdigit() or int(number) >= len(x):
            raise SourceError(f"no image {name!r}; use bundled:0 to bundled:{len(x) - 1}")
        return x[int(number)][None], (32, 32)
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(name) as file:
            picture = _eight_bit(file).convert("L" if grey else "RGB")
    except FileNotFoundError:
        raise SourceError(f"no file {name!r}; give a picture file or bundled:NUMBER") from None
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError, ImportError) as error:
        # ImportError: ultralytics replaces Image.open
        raise SourceError(f"{name!r} cannot be read as a picture: {error}; use PNG, JPEG, WebP, ...") from None
    return as_tensor(picture, size)[None], picture.size


def as_tensor(picture: Image.Image, size: Size) -> Tensor:
    """(3, H, W), or (1, H, W) for a grey picture, on the 8-bit grid."""
    picture = _eight_bit(picture)
    picture = picture if picture.mode in ("RGB", "L") else picture.convert("RGB")
    frame = framing(size)
    levels = np.array(picture if frame is None else frame(picture))
    return torch.from_numpy(levels.reshape(*levels.shape[:2], -1)).permute(2, 0, 1).float() / 255


def save_image(x: Tensor, path: Path) -> None:
    """(3, H, W) or (1, H, W), uint8 or on the 8-bit grid -> PNG, without loss, written whole or not at all."""
    from PIL import Image

    levels = x if x.dtype == torch.uint8 else (x * 255).round().to(torch.uint8)
    pixels = levels.permute(1, 2, 0).cpu().numpy()
    png = BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(png, format="PNG")
    atomic.write(path, png.getvalue())


def _eight_bit(picture: Image.Image) -> Image.Image:
    """Convert 16-bit grey to 8 bits; Pillow itself would make almost all of it white."""
    if picture.mode != "F" and not picture.mode.startswith("I"):
        return picture
    from PIL import Image

    levels = np.array(picture)
    if picture.mode == "F" or levels.min() < 0 or levels.max() > 65535:
        raise SourceError(
            f"a picture of mode {picture.mode} with values {levels.min()} to {levels.max()}; use 8 or 16 bits"
        )
    return Image.fromarray(((levels.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _middle(picture: Image.Image, side: int) -> Image.Image:
    left, top = ((own - side) // 2 for own in picture.size)
    return picture.crop((left, top, left + side, top + side))
