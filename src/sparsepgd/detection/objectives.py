"""Objectives: the losses that attacks maximise where there is no label to change (paper, section on YOLOv8).

The paper maximises the training loss of the detector for the true boxes. Any other loss is possible: an objective gives
one number per image, larger if the attack is more successful, and differentiable if the attack needs gradients.
Boxes are (x_1, y_1, x_2, y_2) in pixels of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.errors import ModelError, ShapeError

IGNORED = 255  # pixels of no class, as in the label maps of PASCAL VOC and Cityscapes


@dataclass(frozen=True, eq=False)
class Target:
    boxes: Tensor  # (N, 4)
    labels: Tensor  # (N,) int64, from 0
    masks: Tensor | None = None  # (N, H, W) bool, if there are instance masks

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Prediction:
    """The predictions of a detector for one image, in order of decreasing confidence."""

    boxes: Tensor  # (N, 4)
    labels: Tensor  # (N,) int64, numbered as in the targets
    scores: Tensor  # (N,)
    masks: Tensor | None = None  # (N, H, W) bool

    def __len__(self) -> int:
        return len(self.labels)


class Objective(Protocol):
    """One loss per image. The loss of an image must not depend on the others in the batch."""

    def losses(self, model: Any, x: Tensor, targets: Sequence[Any]) -> Tensor:
        """(B,) for images x (B, C, H, W) and one target per image. The model is in evaluation mode."""


class Detector(Objective, Protocol):
    """An objective that also returns the predictions of the model, for mAP and pictures."""

    def predict(self, model: Any, x: Tensor) -> list[Prediction]:
        """One prediction for each of the images x (B, C, H, W)."""


@dataclass(frozen=True, eq=False)
class OutputLoss:
    """Any loss of the model's outputs: `function(model(x), targets)` -> (B,)."""

    function: Callable[[Any, Sequence[Any]], Tensor]

    def losses(self, model: Any, x: Tensor, targets: Sequence[Any]) -> Tensor:
        return self.function(model(x), targets)


@dataclass(frozen=True)
class SemanticSegmentation:
    """The mean cross-entropy over an image's pixels; a target is its label map (H, W) int64.

    The model returns (B, classes, H, W), or a dict with this tensor under "out", as in torchvision. Normalisation is
    inside the model.
    """

    ignore: int = IGNORED

    def losses(self, model: Any, x: Tensor, targets: Sequence[Tensor]) -> Tensor:
        label = torch.stack(list(targets))
        counted = label != self.ignore
        each = F.cross_entropy(self.scores(model, x), label, ignore_index=self.ignore, reduction="none")
        return each.flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)

    def predict(self, model: Any, x: Tensor) -> Tensor:
        """(B, H, W) int64."""
        return self.scores(model, x).argmax(1)

    def scores(self, model: Any, x: Tensor) -> Tensor:
        """(B, classes, H, W)."""
        output = model(x)
        scores = output["out"] if isinstance(output, dict) and "out" in output else output
        if not isinstance(scores, Tensor):
            found = f"a dict with keys {list(output)}" if isinstance(output, dict) else type(output).__name__
            raise ModelError(f"the model returned {found}; expected (B, classes, H, W), or a dict with it under 'out'")
        if scores.dim() != 4 or scores.shape[2:] != x.shape[2:]:
            raise ShapeError(
                f"scores of shape {tuple(scores.shape)} for images of {tuple(x.shape)}; expected one per class "
                "and pixel, (B, classes, H, W)"
            )
        return scores
