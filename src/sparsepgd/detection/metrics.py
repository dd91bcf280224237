"""How well a detector does: mAP by torchmetrics, and the mean IoU of label maps."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sparsepgd.detection.objectives import IGNORED, Detector, Prediction, Target
from sparsepgd.errors import InputError
from sparsepgd.extras import needs
from sparsepgd.problem.oracle import borrowed
from sparsepgd.problem.precision import full_precision

BACKENDS = ("pycocotools", "faster_coco_eval")
MOST = 100  # detections of an image, of all classes together; pycocotools alone would keep as many of each class


@dataclass(frozen=True)
class Precision:
    """Mean average precision, in [0, 1]; -1 where there is nothing to find."""

    map50: float  # at IoU 0.5
    map50_95: float  # mean over IoU 0.5, 0.55, ..., 0.95


def mean_average_precision(
    predictions: Sequence[Prediction], targets: Sequence[Target], over: Literal["boxes", "masks"] = "boxes"
) -> Precision:
    """COCO's mAP50 and mAP50-95 of predictions, one for each target, over boxes or masks; of each image the hundred
    surest detections count."""
    if len(predictions) != len(targets):
        raise InputError(f"{len(predictions)} predictions for {len(targets)} targets; give one for each image")
    backend = next((name for name in BACKENDS if importlib.util.find_spec(name)), BACKENDS[0])
    with needs("mAP"):
        from torchmetrics.detection import MeanAveragePrecision

        importlib.import_module(backend)
    metric = MeanAveragePrecision("xyxy", "bbox" if over == "boxes" else "segm", backend=backend)
    for prediction, truth in zip(predictions, targets, strict=True):
        kept = prediction.scores.topk(min(MOST, len(prediction))).indices
        found = {"labels": prediction.labels[kept].cpu(), "scores": prediction.scores[kept].float().cpu()}
        expected = {"labels": truth.labels.cpu()}
        if over == "boxes":
            found["boxes"], expected["boxes"] = prediction.boxes[kept].float().cpu(), truth.boxes.float().cpu()
        else:
            if prediction.masks is None or truth.masks is None:
                raise InputError("mAP over masks, but a prediction or a target has none; use over='boxes'")
            found["masks"], expected["masks"] = prediction.masks[kept].cpu(), truth.masks.cpu()
        metric.update([found], [expected])
    scores = metric.compute()
    return Precision(float(scores["map_50"]), float(scores["map"]))


@torch.no_grad()
def predictions_of(detector: Detector, model: Any, x: Tensor, device: torch.device, size: int = 4) -> list[Prediction]:
    """What the model finds in the images x (B, C, H, W), in full precision, `size` at a time."""
    with borrowed(model, device), full_precision():
        batches = (x[i : i + size].to(device) for i in range(0, len(x), size))
        return [one for batch in batches for one in detector.predict(model, batch)]


def mean_iou(predictions: Tensor, targets: Tensor, classes: int, ignore: int = IGNORED) -> float:
    """The mean over classes of intersection over union, of label maps (B, H, W)."""
    with needs("IoU"):
        from torchmetrics.functional.classification import multiclass_jaccard_index
    return float(multiclass_jaccard_index(predictions, targets, classes, average="macro", ignore_index=ignore))
