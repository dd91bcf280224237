"""Pictures of what a detector finds before and after an attack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from sparsepgd.detection.targets import Prediction
from sparsepgd.errors import SparsePGDError

SURE = 0.25  # confidence from which a prediction is drawn
COLOURS = ("#ff5c5c", "#4dd2ff", "#ffd24d", "#7dff7d", "#ff9cf5", "#ffa14d", "#b8a6ff", "#ffffff")
SEAM = 6  # pixels between the two


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
    words = [f"{_named(label, classes)} {score:.2f}" for label, score in zip(labels, scores, strict=True)]
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


def _named(label: int, classes: Sequence[str]) -> str:
    return classes[label] if label < len(classes) else f"class {label}"
