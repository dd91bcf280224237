"""The result of every attack: one row an image, aligned with the input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsepgd.problem import notebook


@dataclass(frozen=True, eq=False)
class Result:
    """Verified: ``fooled`` is what a fresh full-precision forward pass on ``x_adv`` confirmed, within budget."""

    x_adv: Tensor  # (B, C, H, W); untouched pixels are bit for bit those of x
    fooled: Tensor  # (B,) bool
    clean_correct: Tensor  # (B,) bool; wrong from the start: not robust, and with an untargeted goal not attacked
    l0: Tensor  # (B,) int64, changed pixels
    groups: Tensor  # (B,) int64, the fewest groups of the pattern that cover them
    steps: Tensor  # (B,) int64, updates until success, or all of them
    forwards: Tensor  # (B,) int64, forward passes of the search on this image, until success
    backwards: Tensor  # (B,) int64
    loss: Tensor  # (B,) of x_adv, as the attack measured it; NaN where nothing was searched
    clean_prediction: Tensor  # (B,) int64
    prediction: Tensor  # (B,) int64, on x_adv
    broken_by: tuple[str | None, ...]  # the attack that fooled the model, for each image

    def __len__(self) -> int:
        return len(self.fooled)

    @property
    def clean_accuracy(self) -> float:
        return float(self.clean_correct.double().mean()) if len(self) else math.nan

    @property
    def robust(self) -> Tensor:
        """(B,) bool: right on the clean image and never fooled."""
        return self.clean_correct & ~self.fooled

    @property
    def robust_accuracy(self) -> float:
        return float(self.robust.double().mean()) if len(self) else math.nan

    def __repr__(self) -> str:
        return (
            f"Result({len(self)} images, clean {self.clean_accuracy:.1%}, robust {self.robust_accuracy:.1%}, "
            f"{int(self.fooled.sum())} fooled)"
        )

    def _repr_html_(self) -> str:
        return notebook.of_result(self)


def untouched(x: Tensor, y: Tensor, clean: Tensor) -> Result:
    """The result before any attack: clean images, and what the model says of them."""
    said, zero = clean.argmax(1), torch.zeros_like(y)
    loss, none = clean.new_full(y.shape, math.nan), torch.zeros_like(y, dtype=torch.bool)
    return Result(x.clone(), none, said == y, zero, zero, zero, zero, zero, loss, said, said, (None,) * len(y))
