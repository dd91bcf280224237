"""mAP before and after attacks: one line for each, as in the paper's table on YOLOv8; pictures of both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sparsepgd.detection.attack import DetectionResult, attack_detector
from sparsepgd.detection.data import Scenes
from sparsepgd.detection.metrics import Precision, mean_average_precision, predictions_of
from sparsepgd.detection.objectives import Detector, Prediction
from sparsepgd.errors import SparsePGDError
from sparsepgd.search.attack import Attack
from sparsepgd.sources.data import class_name

SURE = 0.25  # confidence from which a prediction is drawn
COLOURS = ("#ff5c5c", "#4dd2ff", "#ffd24d", "#7dff7d", "#ff9cf5", "#ffa14d", "#b8a6ff", "#ffffff")
SEAM = 6  # pixels between the two


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model finds in some images, and how good that is."""

    predictions: list[Prediction]
    boxes: Precision
    masks: Precision | None  # where both the model and the targets have masks


@dataclass(frozen=True)
class Row:
    name: str
    clean_loss: float
    loss: float
    l0: int
    groups: int


@dataclass(frozen=True)
class Line:
    """One attack with one budget on all images."""

    attack: str
    budget: str
    evaluations: int  # points tried for an image
    boxes: Precision
    masks: Precision | None
    clean_loss: float  # mean
    loss: float  # mean
    l0: int  # of the image with most changed pixels
    groups: int
    seconds: float
    rows: tuple[Row, ...]


def score(model: Any, detector: Detector, scenes: Scenes, x: Tensor, device: torch.device) -> Scored:
    """What the model finds in images x that show the scenes, and its mAP."""
    found = predictions_of(detector, model, x, device)
    masked = all(one.masks is not None for one in found) and all(one.masks is not None for one in scenes.targets)
    over_masks = mean_average_precision(found, scenes.targets, "masks") if masked else None
    return Scored(found, mean_average_precision(found, scenes.targets), over_masks)


def examine(
    attack: Attack, model: Any, detector: Detector, scenes: Scenes, device: torch.device, **options: Any
) -> tuple[Line, DetectionResult, Scored]:
    """Attack all scenes, padding left alone, and measure what the model finds afterwards. `options`: as
    `attack_detector` takes them."""
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
    """(3, H, W) uint8: the image with every sure prediction as a box, named."""
    from torchvision.utils import draw_bounding_boxes

    levels = (image * 255).round().to(torch.uint8).cpu()
    sure = (prediction.scores >= SURE).nonzero()[:, 0]
    if not len(sure):
        return levels
    labels, scores = prediction.labels[sure].tolist(), prediction.scores[sure].tolist()
    words = [f"{class_name(classes, label)} {score:.2f}" for label, score in zip(labels, scores, strict=True)]
    colours = [COLOURS[label % len(COLOURS)] for label in labels]
    picture: Tensor = draw_bounding_boxes(levels, prediction.boxes[sure].cpu(), words, colours, width=2)
    return picture


def write_png(picture: Tensor, path: Path) -> None:
    """(3, H, W) uint8, losslessly."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path, format="PNG")
    except OSError as error:
        raise SparsePGDError(f"{path} cannot be written: {error.strerror}; choose another folder") from None
