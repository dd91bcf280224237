"""The mAP of a detector before and after attacks (torchmetrics), as in the paper's table on YOLOv8, with pictures; and
the mean IoU of label maps."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sparsepgd.detection.attack import DetectionResult, attack_detector
from sparsepgd.detection.data import Scenes
from sparsepgd.detection.objectives import IGNORED, Detector, Prediction, Target
from sparsepgd.errors import InputError
from sparsepgd.extras import needs
from sparsepgd.problem.oracle import borrowed
from sparsepgd.problem.precision import full_precision
from sparsepgd.search.attack import Attack
from sparsepgd.sources.data import class_name

BACKENDS = ("pycocotools", "faster_coco_eval")
MOST = 100  # detections per image, over all classes; pycocotools alone would keep this number per class
SURE = 0.25  # smallest confidence of a prediction that is drawn
COLOURS = ("#ff5c5c", "#4dd2ff", "#ffd24d", "#7dff7d", "#ff9cf5", "#ffa14d", "#b8a6ff", "#ffffff")
SEAM = 6  # pixels between the two pictures


@dataclass(frozen=True)
class Precision:
    """Mean average precision, in [0, 1]; -1 if there are no objects."""

    map50: float  # at IoU 0.5
    map50_95: float  # mean over IoU 0.5, 0.55, ..., 0.95


def mean_average_precision(
    predictions: Sequence[Prediction], targets: Sequence[Target], over: Literal["boxes", "masks"] = "boxes"
) -> Precision:
    """COCO's mAP50 and mAP50-95 of predictions, one for each target, over boxes or masks. For each image, the hundred
    most confident detections count."""
    if len(predictions) != len(targets):
        raise InputError(f"{len(predictions)} predictions for {len(targets)} targets; give one per image")
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
    """The predictions of the model for the images x (B, C, H, W), in full precision, `size` at a time."""
    with borrowed(model, device), full_precision():
        batches = (x[i : i + size].to(device) for i in range(0, len(x), size))
        return [one for batch in batches for one in detector.predict(model, batch)]


def mean_iou(predictions: Tensor, targets: Tensor, classes: int, ignore: int = IGNORED) -> float:
    """The intersection over union of label maps (B, H, W), averaged over classes."""
    with needs("IoU"):
        from torchmetrics.functional.classification import multiclass_jaccard_index
    return float(multiclass_jaccard_index(predictions, targets, classes, average="macro", ignore_index=ignore))


@dataclass(frozen=True, eq=False)
class Scored:
    """The predictions of a model for images, and their mAP."""

    predictions: list[Prediction]
    boxes: Precision
    masks: Precision | None  # if both the model and the targets have masks


@dataclass(frozen=True)
class Row:
    """One image of an attack on a detector."""

    name: str
    clean_loss: float
    loss: float
    l0: int
    groups: int


@dataclass(frozen=True)
class Line:
    """One attack on a detector, over all images; mAP is that of the adversarial images."""

    attack: str
    budget: str
    evaluations: int  # points evaluated per image
    boxes: Precision
    masks: Precision | None
    clean_loss: float  # mean
    loss: float  # mean
    l0: int  # of the image with the most changed pixels
    groups: int
    seconds: float
    rows: tuple[Row, ...]


def score(model: Any, detector: Detector, scenes: Scenes, x: Tensor, device: torch.device) -> Scored:
    """The predictions of the model for images x of the scenes, and their mAP."""
    predictions = predictions_of(detector, model, x, device)
    masked = all(one.masks is not None for one in predictions) and all(one.masks is not None for one in scenes.targets)
    over_masks = mean_average_precision(predictions, scenes.targets, "masks") if masked else None
    return Scored(predictions, mean_average_precision(predictions, scenes.targets), over_masks)


def examine(
    attack: Attack, model: Any, detector: Detector, scenes: Scenes, device: torch.device, **options: Any
) -> tuple[Line, DetectionResult, Scored]:
    """Attack all scenes, except for their padding, and measure mAP afterwards. `options`: those of
    `attack_detector`."""
    start = time.perf_counter()
    result = attack_detector(attack, model, scenes.x, scenes.targets, detector, content=scenes.content, **options)
    seconds = time.perf_counter() - start
    after = score(model, detector, scenes, result.x_adv, device)
    columns = (result.clean_loss.tolist(), result.loss.tolist(), result.l0.tolist(), result.groups.tolist())
    line = Line(
        attack=attack.name,
        budget=repr(attack.budget),
        evaluations=attack.evaluations,
        boxes=after.boxes,
        masks=after.masks,
        clean_loss=float(result.clean_loss.mean()),
        loss=float(result.loss.mean()),
        l0=int(result.l0.max()),
        groups=int(result.groups.max()),
        seconds=seconds,
        rows=tuple(Row(*each) for each in zip(scenes.names, *columns, strict=True)),
    )
    return line, result, after


def side_by_side(
    x: Tensor, x_adv: Tensor, before: Prediction, after: Prediction, classes: Sequence[str] = ()
) -> Tensor:
    """(3, H, 2 W + seam) uint8: the image (3, H, W) in [0, 1] and the adversarial one, with boxes."""
    left, right = (drawn(image, prediction, classes) for image, prediction in ((x, before), (x_adv, after)))
    return torch.cat([left, left.new_full((3, left.shape[1], SEAM), 255), right], 2)


def drawn(image: Tensor, prediction: Prediction, classes: Sequence[str] = ()) -> Tensor:
    """(3, H, W) uint8: the image with a labelled box for every confident prediction."""
    from torchvision.utils import draw_bounding_boxes

    levels = (image * 255).round().to(torch.uint8).cpu()
    sure = (prediction.scores >= SURE).nonzero()[:, 0]
    if not len(sure):
        return levels
    labels, scores = prediction.labels[sure].tolist(), prediction.scores[sure].tolist()
    captions = [f"{class_name(classes, label)} {score:.2f}" for label, score in zip(labels, scores, strict=True)]
    colours = [COLOURS[label % len(COLOURS)] for label in labels]
    picture: Tensor = draw_bounding_boxes(levels, prediction.boxes[sure].cpu(), captions, colours, width=2)
    return picture
