"""mAP before and after attacks: one line for each, as in the paper's table on YOLOv8."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsepgd.detection.attack import DetectionResult, attack_detector
from sparsepgd.detection.data import Scenes
from sparsepgd.detection.metrics import Precision, mean_average_precision, predictions_of
from sparsepgd.detection.objectives import Detector
from sparsepgd.detection.targets import Prediction
from sparsepgd.search.attack import Attack
from sparsepgd.search.loop import Progress


@dataclass(frozen=True, eq=False)
class Seen:
    """What a model finds in some images, and how good that is."""

    predictions: list[Prediction]
    boxes: Precision
    masks: Precision | None  # where both the model and the targets have masks


@dataclass(frozen=True)
class Row:
    """One image under one attack."""

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


def look(model: Any, detector: Detector, scenes: Scenes, x: Tensor, device: torch.device) -> Seen:
    """What the model finds in images x that show the scenes."""
    found = predictions_of(detector, model, x, device)
    masked = all(one.masks is not None for one in found) and all(one.masks is not None for one in scenes.targets)
    over_masks = mean_average_precision(found, scenes.targets, "masks") if masked else None
    return Seen(found, mean_average_precision(found, scenes.targets), over_masks)


def examine(
    attack: Attack,
    model: Any,
    detector: Detector,
    scenes: Scenes,
    device: torch.device,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> tuple[Line, DetectionResult, Seen]:
    """Attack all scenes, padding left alone, and look at what the model finds afterwards."""
    start = time.perf_counter()
    result = attack_detector(
        attack,
        model,
        scenes.x,
        scenes.targets,
        detector,
        content=scenes.content,
        seed=seed,
        batch_size=batch_size,
        progress=progress,
    )
    seconds = time.perf_counter() - start
    seen = look(model, detector, scenes, result.x_adv, device)
    columns = (result.clean_loss.tolist(), result.loss.tolist(), result.l0.tolist(), result.groups.tolist())
    line = Line(
        attack=attack.name,
        budget=repr(attack.budget),
        evaluations=attack.evaluations,
        boxes=seen.boxes,
        masks=seen.masks,
        clean_loss=float(result.clean_loss.mean()),
        loss=float(result.loss.mean()),
        l0=int(result.l0.max()),
        groups=int(result.groups.max()),
        seconds=seconds,
        rows=tuple(Row(*each) for each in zip(scenes.names, *columns, strict=True)),
    )
    return line, result, seen
