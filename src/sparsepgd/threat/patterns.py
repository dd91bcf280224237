"""Patterns: the shape of one group of pixels that costs the adversary one unit of its budget.

Every pattern is a 0/1 kernel that slides over the image with stride 1 (paper, section "sPGD for
Structured Sparse Perturbations"): 1x1 for pixels, 1xW for rows, Hx1 for columns, rxr for patches,
any drawing for shapes. A group is identified by the position of the kernel's upper left corner. (Index sets,
in groups.py, are the exception.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from sparsepgd.errors import KernelError, PatternError
from sparsepgd.threat import drawings


class Pattern(ABC):
    """What one group looks like. Patterns are immutable and can be compared and hashed."""

    structured: ClassVar[bool] = True  # chooses the paper's defaults for structured perturbations
    per_channel: ClassVar[bool] = False  # True: each channel of a pixel counts separately
    any_shape: ClassVar[bool] = False  # True: needs no rows and columns, so x may also be (B, F) or (B, C, L)
    unit: ClassVar[str]  # what k counts, in the plural, for messages and tables

    @abstractmethod
    def kernel(self, height: int, width: int) -> Tensor:
        """The 0/1 kernel (kh, kw), float32, for an image of that size."""


@dataclass(frozen=True)
class Pixels(Pattern):
    """Single pixels; all channels of a pixel count once."""

    structured: ClassVar[bool] = False
    unit: ClassVar[str] = "pixels"

    def kernel(self, height: int, width: int) -> Tensor:
        return torch.ones(1, 1)


@dataclass(frozen=True)
class Features(Pattern):
    """Single entries of the image tensor: each channel of a pixel counts on its own."""

    structured: ClassVar[bool] = False
    any_shape: ClassVar[bool] = True
    per_channel: ClassVar[bool] = True
    unit: ClassVar[str] = "features"

    def kernel(self, height: int, width: int) -> Tensor:
        return torch.ones(1, 1)


@dataclass(frozen=True)
class Rows(Pattern):
    """Whole rows of the image."""

    unit: ClassVar[str] = "rows"

    def kernel(self, height: int, width: int) -> Tensor:
        return torch.ones(1, width)


@dataclass(frozen=True)
class Columns(Pattern):
    """Whole columns of the image."""

    unit: ClassVar[str] = "columns"

    def kernel(self, height: int, width: int) -> Tensor:
        return torch.ones(height, 1)


@dataclass(frozen=True)
class Patches(Pattern):
    """Rectangles: ``Patches(3)`` is 3x3, ``Patches(3, 5)`` has height 3 and width 5. They may overlap."""

    height: int
    width: int = None  # type: ignore[assignment]  # None: as wide as high

    unit: ClassVar[str] = "patches"

    def __post_init__(self) -> None:
        if self.width is None:
            object.__setattr__(self, "width", self.height)
        if not all(isinstance(side, Integral) and side >= 1 for side in (self.height, self.width)):
            raise PatternError(f"a patch of {self.height}x{self.width}; height and width must be integers, at least 1")

    def kernel(self, height: int, width: int) -> Tensor:
        return torch.ones(self.height, self.width)


@dataclass(frozen=True)
class Frame(Pattern):
    """The border of the image, ``width`` pixels wide. There is only one, so k = 1."""

    width: int
    unit: ClassVar[str] = "frames"

    def __post_init__(self) -> None:
        if not (isinstance(self.width, Integral) and self.width >= 1):
            raise PatternError(f"a frame of width {self.width}; use an integer, at least 1")

    def kernel(self, height: int, width: int) -> Tensor:
        cells = torch.ones(height, width)
        cells[self.width : height - self.width, self.width : width - self.width] = 0
        return cells


class Shape(Pattern):
    """Any drawing, given as a 0/1 kernel: a heart, a star, a circle, a letter, a picture file.

    The kernel is used unchanged. Its empty borders keep the shape away from the edge of the image.
    """

    unit: ClassVar[str] = "shapes"

    def __init__(self, kernel: object, name: str = "shape") -> None:
        try:
            cells = torch.as_tensor(kernel).detach().to("cpu", torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise KernelError(f"kernel of type {type(kernel).__name__}; expected a 2-D array of 0 and 1") from error
        if cells.dim() != 2:
            raise KernelError(f"kernel of shape {tuple(cells.shape)}; expected two dimensions (height, width)")
        if not bool(((cells == 0) | (cells == 1)).all()):
            odd = cells[(cells != 0) & (cells != 1)].flatten()[0].item()
            raise KernelError(f"kernel contains {odd:g}; every entry must be 0 or 1, e.g. (kernel > 0.5)")
        if not bool(cells.any()):
            raise KernelError(
                f"kernel of shape {tuple(cells.shape)} is all zero, so nothing could change; set some entries to 1"
            )
        self._kernel = cells.clone()
        self.name = name

    def kernel(self, height: int, width: int) -> Tensor:
        return self._kernel.clone()

    @property
    def ones(self) -> int:
        return int(self._kernel.sum())

    @classmethod
    def heart(cls, size: int) -> Shape:
        return cls(drawings.heart(size), f"heart:{size}")

    @classmethod
    def star(cls, size: int) -> Shape:
        return cls(drawings.star(size), f"star:{size}")

    @classmethod
    def circle(cls, size: int) -> Shape:
        """A disc with a margin of one pixel; ``circle(18)`` has 208 ones, as in the paper."""
        return cls(drawings.circle(size), f"circle:{size}")

    @classmethod
    def letter(cls, character: str, size: int) -> Shape:
        """One character in a bold font; ``letter("A", 60)`` has 1747 ones, as in the paper."""
        return cls(drawings.letter(character, size), f"letter:{character}:{size}")

    @classmethod
    def from_image(cls, path: str | Path, size: int | None = None, ink: drawings.Ink = "auto") -> Shape:
        """The ink of a picture file: its opaque part if it has transparency, otherwise its dark part."""
        return cls(drawings.from_image(path, size, ink), f"image:{Path(path).name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and torch.equal(self._kernel, other._kernel)

    def __hash__(self) -> int:
        return hash((tuple(self._kernel.shape), self._kernel.numpy().tobytes()))

    def __repr__(self) -> str:
        height, width = self._kernel.shape
        return f"Shape({self.name!r}, {height}x{width}, {self.ones} ones)"
