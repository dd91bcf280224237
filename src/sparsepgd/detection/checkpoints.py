"""Weights out of a pickled ultralytics checkpoint, without running a line of what is pickled.

Such a file holds whole modules. Here every class in it but tensors and plain containers is read as an empty husk
that keeps its attributes; the weights are then picked out of the husks.
"""

from __future__ import annotations

import collections
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sparsepgd.errors import SourceError, first_line

HARMLESS: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What it takes to build the network again."""

    architecture: dict[str, Any]  # ultralytics' description of the layers
    weights: dict[str, Tensor]  # float32
    head: str  # class of the last layer: Detect, Segment, ...
    names: tuple[str, ...]  # of the classes


class Husk:
    """Stands for an object of any class; it takes what it is given and does nothing."""

    kind = "object"

    def __new__(cls, *args: Any, **kwargs: Any) -> Husk:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __call__(self, *args: Any, **kwargs: Any) -> Husk:
        return Husk()


class Reader(pickle.Unpickler):
    """Finds no class that is not known to be harmless."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in HARMLESS:
            return HARMLESS[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return type(name, (Husk,), {"kind": name})


READERS = SimpleNamespace(__name__="husks", Unpickler=Reader)  # what torch.load asks of a pickle module


def read_checkpoint(path: Path) -> Checkpoint:
    """The network of an ultralytics .pt file, the averaged one if there is one."""
    try:
        content = torch.load(path, "cpu", pickle_module=READERS, weights_only=False)
    except FileNotFoundError:
        raise SourceError(f"no file {str(path)!r}; give a checkpoint such as yolov8n.pt") from None
    except (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, AttributeError, TypeError) as error:
        raise SourceError(f"{str(path)!r} cannot be read as a checkpoint: {first_line(error)}") from None
    content = content if isinstance(content, dict) else {}
    network = content.get("ema") or content.get("model")
    architecture = getattr(network, "yaml", None)
    if not isinstance(network, Husk) or not isinstance(architecture, dict):
        raise SourceError(f"{str(path)!r} holds no model of ultralytics; give a checkpoint such as yolov8n.pt")
    weights = _state(network, "")
    names = getattr(network, "names", {})
    names = [names[i] for i in sorted(names)] if isinstance(names, dict) else names
    *_, head = vars(network)["_modules"]["model"]._modules.values()
    return Checkpoint(architecture, weights, str(head.kind), tuple(map(str, names)))


def _state(module: Any, prefix: str) -> dict[str, Tensor]:
    """Parameters and buffers of a husk and of those inside it, named as `state_dict` does."""
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
