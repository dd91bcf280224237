"""Letterboxing: an image resized to fit a frame, with grey around it. The grey is not the adversary's to change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.errors import ShapeError
from sparsepgd.threat import LEVELS

GREY = 114 / LEVELS  # as YOLO pads


@dataclass(frozen=True)
class Placement:
    """Where an image lies in its frame."""

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
        """(..., 2) of (x, y) as shares of the image -> pixels of the frame."""
        size, corner = (normalised.new_tensor(pair) for pair in ((self.width, self.height), (self.left, self.top)))
        return normalised * size + corner

    def boxes(self, normalised: Tensor) -> Tensor:
        """(N, 4) of (centre x, centre y, width, height) as shares of the image -> (x_1, y_1, x_2, y_2) in pixels."""
        centre, half = normalised[:, :2], normalised[:, 2:] / 2
        return torch.cat([self.points(centre - half), self.points(centre + half)], 1)


def place(height: int, width: int, frame: tuple[int, int]) -> Placement:
    """As large as fits, in the middle."""
    scale = min(frame[0] / height, frame[1] / width)
    inner = max(1, round(height * scale)), max(1, round(width * scale))
    return Placement(frame, (frame[0] - inner[0]) // 2, (frame[1] - inner[1]) // 2, *inner)


def letterbox(image: Tensor, frame: int | tuple[int, int]) -> tuple[Tensor, Placement]:
    """(C, H, W) in [0, 1] -> (C, *frame) on the 8-bit grid, and where it lies there."""
    if image.dim() != 3 or not image.is_floating_point():
        raise ShapeError(f"an image of shape {tuple(image.shape)}, {image.dtype}; expected (C, H, W) in [0, 1]")
    where = place(image.shape[1], image.shape[2], (frame, frame) if isinstance(frame, int) else frame)
    inner = (where.height, where.width)
    if image.shape[1:] != inner:
        image = F.interpolate(image[None], inner, mode="bilinear", antialias=True)[0]
    boxed = image.new_full((len(image), *where.frame), GREY)
    boxed[:, where.top : where.top + where.height, where.left : where.left + where.width] = image
    return (boxed.clamp(0, 1) * LEVELS).round() / LEVELS, where
