"""Pictures of a single grey level each, by which a test recognises them."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image


def levels(x: torch.Tensor) -> list[int]:
    """The grey level of each image."""
    return (x[:, 0, 0, 0] * 255).round().long().tolist()


def grey(path: Path, level: int, size: tuple[int, int] = (40, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level, level, level)).save(path)
