"""YOLO models of ultralytics, detection and instance segmentation (paper, section on YOLOv8).

Ultralytics is licensed under the AGPL-3.0, so it is optional and imported only where it is needed. Its checkpoints are
pickles of whole modules. No code in them is run: every class in a file, except for tensors and plain containers, is
read as an empty placeholder that keeps its attributes, and the weights are taken from these placeholders.
"""

from __future__ import annotations

import collections
import os
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.detection.objectives import Prediction, Target
from sparsepgd.errors import InputError, SourceError, UnsupportedError, first_line
from sparsepgd.extras import needs

GAINS = {"box": 7.5, "cls": 0.5, "dfl": 1.5}  # weights of the three losses in the training of YOLOv8
MASK_RATIO = 4  # masks are compared at a quarter of the resolution, as in training
HARMLESS: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
}


@dataclass(frozen=True, eq=False)
class Yolo:
    """The training loss of YOLOv8 or YOLO11: boxes, classes, distances and, for segmentation, masks.

    The network is evaluated on the whole batch, the loss on one image at a time: it divides by the assignments in the
    batch, so images in a batch would affect each other. The assignment is that of the perturbed predictions.
    """

    classes: int
    masked: bool  # whether there are masks
    confidence: float = 0.001  # smallest confidence of a prediction, as for mAP
    overlap: float = 0.7  # IoU above which the less confident of two is dropped
    most: int = 300  # predictions per image
    criteria: dict[torch.device, Any] = field(default_factory=dict, repr=False)  # created when first needed

    @classmethod
    def of(cls, model: Any) -> Yolo:
        """For a network such as YOLO("yolov8n.pt").model."""
        tasks = _ultralytics()
        if not isinstance(model, tasks.DetectionModel):
            raise UnsupportedError(
                f"{type(model).__name__} is not a detection model of ultralytics; pass YOLO(...).model, or use "
                "OutputLoss"
            )
        head = model.model[-1]
        if type(head).__name__ not in ("Detect", "Segment") or getattr(head, "one2one_cv2", None) is not None:
            raise UnsupportedError(
                f"the head {type(head).__name__} is not supported; use a YOLOv8 or YOLO11 model for detection or "
                "segmentation, or OutputLoss(function) with a loss of your own"
            )
        return cls(head.nc, type(head).__name__ == "Segment")

    def losses(self, model: Any, x: Tensor, targets: Sequence[Target]) -> Tensor:
        if x.device not in self.criteria:
            self.criteria[x.device] = _criterion(model)
        output = model(x)
        return torch.stack([self._loss(_row(output, i), x, target) for i, target in enumerate(targets)])

    def predict(self, model: Any, x: Tensor) -> list[Prediction]:
        output = model(x)[0]
        decoded, prototypes = output if isinstance(output, tuple) else (output, None)
        if self.masked and prototypes is None:  # ultralytics before 8.4
            prototypes = model(x)[1][-1]
        return [
            self._prediction(rows, None if prototypes is None else prototypes[i], x.shape[2:])
            for i, rows in enumerate(decoded)
        ]

    def _loss(self, output: Any, x: Tensor, target: Target) -> Tensor:
        """The loss of one image, a scalar."""
        height, width = x.shape[2:]
        (x_1, y_1), (x_2, y_2) = target.boxes[:, :2].T, target.boxes[:, 2:].T
        centred = [(x_1 + x_2) / 2 / width, (y_1 + y_2) / 2 / height, (x_2 - x_1) / width, (y_2 - y_1) / height]
        batch: dict[str, Tensor] = {
            "batch_idx": torch.zeros_like(target.labels, dtype=torch.float32),
            "cls": target.labels.float(),
            "bboxes": torch.stack(centred, 1).float(),
            "img": x[:1],
        }
        if self.masked:
            if target.masks is None:
                raise InputError("the model is trained on masks, but a target has none; give Target(..., masks=masks)")
            size = (height // MASK_RATIO, width // MASK_RATIO)
            batch["masks"] = F.interpolate(target.masks[:, None].float(), size)[:, 0]
        total, _ = self.criteria[x.device](output, batch)
        result: Tensor = total.sum()
        return result

    def _prediction(self, rows: Tensor, prototypes: Tensor | None, shape: torch.Size) -> Prediction:
        """From (4 + classes + coefficients, anchors): centre, size, scores. An anchor may have several classes."""
        from torchvision.ops import batched_nms, clip_boxes_to_image

        rows = rows.T.float()
        anchor, label = (rows[:, 4 : 4 + self.classes] > self.confidence).nonzero(as_tuple=True)
        score, box = rows[anchor, 4 + label], rows[anchor, :4]
        box = torch.cat([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], 1)
        kept = batched_nms(box, score, label, self.overlap)[: self.most]
        box, masks = box[kept], None
        if prototypes is not None:
            masks = _masks(rows[anchor[kept], 4 + self.classes :], prototypes.float(), box, shape)
        return Prediction(clip_boxes_to_image(box, shape), label[kept], score[kept], masks)


def load_yolo(path: Path) -> tuple[Any, tuple[str, ...]]:
    """The network of a checkpoint such as yolov8n.pt in float32, and the names of its classes.

    Only tensors are read from the file; the network is built from its description.
    """
    saved, tasks = read_checkpoint(path), _ultralytics()
    kind = {"Detect": tasks.DetectionModel, "Segment": tasks.SegmentationModel}.get(saved.head)
    if kind is None:
        raise UnsupportedError(f"{path} ends in a {saved.head}; use a checkpoint for detection or segmentation")
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):  # building draws initial weights
        model = kind(saved.architecture, verbose=False)
    try:
        model.load_state_dict(saved.weights)
    except RuntimeError as error:
        raise SourceError(
            f"{path} does not fit the installed ultralytics: {first_line(error)}; try another version"
        ) from None
    return model.eval(), saved.names


def is_yolo(model: Any) -> bool:
    return any(kind.__module__.startswith("ultralytics.") for kind in type(model).__mro__)


def _ultralytics() -> Any:
    """The module of ultralytics with its networks, imported without output."""
    os.environ.setdefault("YOLO_VERBOSE", "false")
    with needs("a YOLO model"):
        from ultralytics.nn import tasks
    return tasks


def _criterion(model: Any) -> Any:
    """The model's own loss. It reads its settings from `model.args`, which may be a dict or missing in a checkpoint;
    they are restored afterwards."""
    before = getattr(model, "args", None)
    settings = before if isinstance(before, dict) else vars(before or SimpleNamespace())
    model.args = SimpleNamespace(**{**GAINS, **settings, "overlap_mask": False})
    try:
        return model.init_criterion()
    finally:
        model.args = before


def _row(output: Any, i: int) -> Any:
    """The part of a (nested) batch output that belongs to one image, as a batch of one."""
    if isinstance(output, Tensor):
        return output[i : i + 1]
    if isinstance(output, dict):
        return {name: _row(part, i) for name, part in output.items()}
    if isinstance(output, list | tuple):
        return type(output)(_row(part, i) for part in output)
    return output


def _masks(coefficients: Tensor, prototypes: Tensor, boxes: Tensor, shape: torch.Size) -> Tensor:
    """(N, H, W) bool: combinations of the prototypes (M, h, w), within their boxes."""
    scores = torch.einsum("nm,mhw->nhw", coefficients, prototypes)
    scores = F.interpolate(scores[:, None], tuple(shape), mode="bilinear")[:, 0]
    y = torch.arange(shape[0], device=boxes.device)[None, :, None]
    x = torch.arange(shape[1], device=boxes.device)[None, None, :]
    x_1, y_1, x_2, y_2 = (side[:, None, None] for side in boxes.T)
    inside: Tensor = (x >= x_1) & (x < x_2) & (y >= y_1) & (y < y_2)
    return (scores > 0) & inside


@dataclass(frozen=True, eq=False)
class Checkpoint:
    architecture: dict[str, Any]  # ultralytics' description of the layers
    weights: dict[str, Tensor]  # float32
    head: str  # class of the last layer: Detect, Segment, ...
    names: tuple[str, ...]  # names of the classes


class Placeholder:
    """A placeholder for an object of any class; it accepts any arguments and does nothing."""

    kind = "object"

    def __new__(cls, *args: Any, **kwargs: Any) -> Placeholder:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __call__(self, *args: Any, **kwargs: Any) -> Placeholder:
        return Placeholder()


class Reader(pickle.Unpickler):
    """An unpickler that only finds classes known to be harmless."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in HARMLESS:
            return HARMLESS[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return type(name, (Placeholder,), {"kind": name})


PICKLE = SimpleNamespace(__name__="placeholders", Unpickler=Reader)  # required of a pickle module by torch.load


def read_checkpoint(path: Path) -> Checkpoint:
    """The network of an ultralytics .pt file, the averaged one if there is one."""
    try:
        content = torch.load(path, "cpu", pickle_module=PICKLE, weights_only=False)
    except FileNotFoundError:
        raise SourceError(f"no file {str(path)!r}; give a checkpoint such as yolov8n.pt") from None
    except (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, AttributeError, TypeError) as error:
        raise SourceError(
            f"{str(path)!r} cannot be read as a checkpoint: {first_line(error)}; give one such as yolov8n.pt"
        ) from None
    content = content if isinstance(content, dict) else {}
    network = content.get("ema") or content.get("model")
    architecture = getattr(network, "yaml", None)
    if not isinstance(network, Placeholder) or not isinstance(architecture, dict):
        raise SourceError(
            f"{str(path)!r} does not contain a model of ultralytics; give a checkpoint such as yolov8n.pt"
        )
    weights = _state(network, "")
    names = getattr(network, "names", {})
    names = [names[i] for i in sorted(names)] if isinstance(names, dict) else names
    *_, head = vars(network)["_modules"]["model"]._modules.values()
    return Checkpoint(architecture, weights, str(head.kind), tuple(map(str, names)))


def _state(module: Any, prefix: str) -> dict[str, Tensor]:
    """Parameters and buffers of a placeholder and of those inside it, named as in `state_dict`."""
    found = {}
    tensors = {**getattr(module, "_parameters", {}), **getattr(module, "_buffers", {})}
    unsaved = getattr(module, "_non_persistent_buffers_set", ())
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and (not isinstance(unsaved, set) or name not in unsaved):
            values = tensor.detach()
            found[prefix + name] = values.float() if values.is_floating_point() else values
    for name, inner in getattr(module, "_modules", {}).items():
        found |= _state(inner, f"{prefix}{name}.")
    return found
