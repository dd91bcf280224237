"""Torchvision's detectors: Faster R-CNN, Mask R-CNN, RetinaNet, FCOS, SSD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsepgd.detection.objectives import Prediction, Target
from sparsepgd.errors import InputError, UnsupportedError

# numbers of the 80 classes among the 91 categories of COCO, as torchvision's pretrained detectors count them
COCO_CATEGORIES = tuple(i for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))


@dataclass(frozen=True)
class TorchvisionDetector:
    """The sum of the detector's training losses, computed image by image, because torchvision normalises over a batch.

    BatchNorm and dropout stay in evaluation mode, and the anchors that a loss samples are the same in every call
    (``seed``), so that the loss is a function of the image alone.
    ``categories``: how the model numbers the classes of the targets; default: 1, 2, ... (0 is the background).
    """

    categories: tuple[int, ...] | None = None
    seed: int = 0

    def losses(self, model: Any, x: Tensor, targets: Sequence[Target]) -> Tensor:
        if not is_torchvision(model):
            raise UnsupportedError(
                f"{type(model).__name__} is not a torchvision detector (Faster R-CNN, Mask R-CNN, RetinaNet, FCOS, "
                "SSD); use Yolo.of(model), OutputLoss(function), or an objective of your own"
            )
        devices = [x.device] if x.device.type == "cuda" else []
        losses = []
        with _giving_losses(model), torch.random.fork_rng(devices=devices):
            for image, target in zip(x, targets, strict=True):
                torch.manual_seed(self.seed)  # the caller's random state is unchanged
                parts = model([image], [self._as_dict(target, model)])
                losses.append(torch.stack(list(parts.values())).sum())
        return torch.stack(losses)

    def predict(self, model: Any, x: Tensor) -> list[Prediction]:
        return [self._as_prediction(found) for found in model(list(x))]

    def _as_dict(self, target: Target, detector: Any) -> dict[str, Tensor]:
        labels = target.labels + 1
        if self.categories is not None:
            labels = torch.tensor(self.categories, device=labels.device)[target.labels]
        known = {"boxes": target.boxes, "labels": labels}
        if getattr(getattr(detector, "roi_heads", None), "mask_head", None) is None:
            return known
        if target.masks is None:
            raise InputError("Mask R-CNN is trained on masks, but a target has none; give Target(boxes, labels, masks)")
        return {**known, "masks": target.masks.to(torch.uint8)}

    def _as_prediction(self, found: dict[str, Tensor]) -> Prediction:
        labels = found["labels"] - 1
        kept = labels >= 0  # RetinaNet and FCOS have a class 0 without targets
        if self.categories is not None:
            categories = torch.tensor(self.categories, device=labels.device)
            same = found["labels"][:, None] == categories
            kept, labels = same.any(1), same.int().argmax(1)  # omit categories that are no classes of the targets
        masks = found["masks"][kept, 0] > 0.5 if "masks" in found else None
        return Prediction(found["boxes"][kept], labels[kept], found["scores"][kept], masks)


@contextmanager
def _giving_losses(detector: Any) -> Iterator[None]:
    """Put only the parts that return losses into training mode; all modes are restored afterwards."""
    inner = (getattr(detector, name, None) for name in ("rpn", "roi_heads"))
    parts = [part for part in (detector, *inner) if part is not None]
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = True
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def is_torchvision(model: Any) -> bool:
    from torchvision.models.detection import FCOS, RetinaNet
    from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
    from torchvision.models.detection.ssd import SSD

    return isinstance(model, GeneralizedRCNN | RetinaNet | FCOS | SSD)
