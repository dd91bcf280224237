"""What is in an image, and what a detector says is in it. Boxes are (x_1, y_1, x_2, y_2) in pixels of the tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Target:
    """The truth about one image."""

    boxes: Tensor  # (N, 4)
    labels: Tensor  # (N,) int64, from 0
    masks: Tensor | None = None  # (N, H, W) bool, where instances are outlined

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a detector says of one image, the surest first."""

    boxes: Tensor  # (N, 4)
    labels: Tensor  # (N,) int64, numbered as those of the targets
    scores: Tensor  # (N,)
    masks: Tensor | None = None  # (N, H, W) bool

    def __len__(self) -> int:
        return len(self.labels)
