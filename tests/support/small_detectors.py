"""Detectors small enough for tests: torchvision's classes on a backbone of two layers, with fixed weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.ops import MultiScaleRoIAlign

from sparsepgd.detection import Target

SIZE = 64
CLASSES = 3


class Backbone(nn.Sequential):
    out_channels: int | list[int] = 8

    def __init__(self) -> None:
        layers = [nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()]
        super().__init__(*layers)


def _faster_rcnn() -> nn.Module:
    pool = MultiScaleRoIAlign(["0"], 4, 2)
    anchors = AnchorGenerator(((16, 32),), ((1.0,),))
    return FasterRCNN(
        Backbone(), CLASSES + 1, SIZE, SIZE, rpn_anchor_generator=anchors, box_roi_pool=pool, box_score_thresh=0.0
    )


def _mask_rcnn() -> nn.Module:
    return MaskRCNN(
        Backbone(),
        CLASSES + 1,
        SIZE,
        SIZE,
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 4, 2),
        mask_roi_pool=MultiScaleRoIAlign(["0"], 4, 2),
        box_score_thresh=0.0,
    )


def _retinanet() -> nn.Module:
    anchors = AnchorGenerator(((16, 32),), ((1.0,),))
    return RetinaNet(Backbone(), CLASSES + 1, SIZE, SIZE, anchor_generator=anchors, score_thresh=0.0)


def _ssd() -> nn.Module:
    backbone, boxes = Backbone(), DefaultBoxGenerator([[2]], scales=[0.3, 0.6])
    backbone.out_channels = [8]  # one for each level
    return SSD(backbone, boxes, (SIZE, SIZE), CLASSES + 1, score_thresh=0.0)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "faster-rcnn": _faster_rcnn,
    "mask-rcnn": _mask_rcnn,
    "retinanet": _retinanet,
    "ssd": _ssd,
}


def made(kind: str) -> nn.Module:
    """The detector in evaluation mode, with the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = KINDS[kind]()
        for parameter in model.parameters():
            if parameter.dim() == 4:  # so that the image affects the outputs
                nn.init.normal_(parameter, 0.0, 0.2)
    return model.eval()


def targets(count: int) -> list[Target]:
    """One object in the first image, two in the next, ...; with masks."""
    found = []
    for i in range(count):
        corner = torch.tensor([[4.0 + 6 * j, 8.0 + 3 * i] for j in range(i + 1)])
        boxes = torch.cat([corner, corner + 20 + 4 * i], 1)
        masks = torch.zeros(i + 1, SIZE, SIZE, dtype=torch.bool)
        for mask, (x_1, y_1, x_2, y_2) in zip(masks, boxes.int().tolist(), strict=True):
            mask[y_1:y_2, x_1:x_2] = True
        found.append(Target(boxes, torch.arange(i + 1) % CLASSES, masks))
    return found


def gradients(losses: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (B,) and the gradient of their sum."""
    point = x.clone().requires_grad_()
    loss = losses(point)
    return loss.detach(), torch.autograd.grad(loss.sum(), point)[0]
