"""Detectors by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sparsepgd.detection.objectives import Detector
from sparsepgd.detection.torchvision_models import COCO_CATEGORIES, TorchvisionDetector, is_torchvision
from sparsepgd.detection.yolo import Yolo, is_yolo, load_yolo
from sparsepgd.errors import SourceError
from sparsepgd.sources import factories

NAMES = "FILE.pt or yolo:FILE of ultralytics, torchvision:NAME or FILE.py:FACTORY"


@dataclass(frozen=True, eq=False)
class LoadedDetector:
    name: str
    model: Any
    detector: Detector
    classes: tuple[str, ...] = ()  # names, if known

    @property
    def masked(self) -> bool:
        heads = getattr(self.model, "roi_heads", None)
        return getattr(self.detector, "masked", False) or getattr(heads, "mask_head", None) is not None


def load_detector(name: str, device: torch.device | str = "cpu") -> LoadedDetector:
    """``FILE.pt`` or ``yolo:FILE``: an ultralytics checkpoint. ``torchvision:NAME``: with its COCO weights, which
    torchvision downloads. ``FILE.py:FACTORY``: a function without arguments that returns a detector of torchvision or
    ultralytics, or a pair (model, detector) with your own `Detector`."""
    kind, _, rest = name.partition(":")
    if kind == "yolo" or name.endswith(".pt"):
        file = Path(rest if kind == "yolo" else name)
        model, classes = load_yolo(file)
        return LoadedDetector(file.stem, model.to(device), Yolo.of(model), classes)
    if kind == "torchvision":
        return _pretrained(rest, device)
    if kind.endswith(".py"):
        return _made(f"{Path(kind).stem}:{rest}", factories.call(Path(kind), rest), device)
    raise SourceError(f"no detector {name!r}; use {NAMES}")


def _pretrained(name: str, device: torch.device | str) -> LoadedDetector:
    from torchvision.models import detection, get_model, get_model_weights, list_models

    if name not in (known := list_models(module=detection)):
        raise SourceError(f"torchvision has no detector {name!r}; use one of {', '.join(known)}")
    weights = get_model_weights(name).DEFAULT
    try:
        model = get_model(name, weights=weights).to(device).eval()
    except OSError as error:
        raise SourceError(
            f"the weights of {name} cannot be downloaded: {error}; put them into torch's hub folder"
        ) from None
    names = weights.meta["categories"]
    return LoadedDetector(name, model, TorchvisionDetector(COCO_CATEGORIES), tuple(names[i] for i in COCO_CATEGORIES))


def _made(name: str, made: Any, device: torch.device | str) -> LoadedDetector:
    if isinstance(made, tuple) and len(made) == 2 and hasattr(made[1], "losses") and hasattr(made[1], "predict"):
        return LoadedDetector(name, made[0].to(device), made[1])
    if is_yolo(made):
        return LoadedDetector(name, made.to(device).eval(), Yolo.of(made))
    if is_torchvision(made):
        return LoadedDetector(name, made.to(device).eval(), TorchvisionDetector())
    raise SourceError(
        f"{name} returned an object of type {type(made).__name__}; expected a detector of torchvision or "
        "ultralytics, or a pair (model, detector) with the methods losses and predict"
    )
