"""What makes a run the same run: its attack, seed, model and data, as plain values that compare and print."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.oracle import Model
from sparsepgd.threat import Budget, Pattern, Shape

Plain = dict[str, Any]  # what JSON can hold


def configuration(attack: Any, model: Model, x: Tensor, y: Tensor, names: Mapping[str, str], seed: int) -> Plain:
    """All that decides the result. `names`: of the model and the data, and whatever else is to be kept."""
    known: Plain = {
        "attack": {"name": attack.name, **_hyper_parameters(attack)},
        "seed": seed,
        "model": {"name": names.get("model", type(model).__name__), "sha256": model_digest(model)},
        "data": {"name": names.get("data", "tensors"), "images": len(x), "sha256": digest(x, y)},
        **{key: value for key, value in names.items() if key not in ("model", "data")},
    }
    return dict(json.loads(json.dumps(known)))


def differences(before: Plain, now: Plain) -> list[str]:
    """``attack.budget.k was 20, is 10`` for every value that is not the same."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    keys = [*old, *(key for key in new if key not in old)]
    return [
        f"{key} was {_short(old.get(key))}, is {_short(new.get(key))}"
        for key in keys
        if key not in old or key not in new or old[key] != new[key]
    ]


def digest(*tensors: Tensor) -> str:
    """sha256 of types, shapes and bytes."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def model_digest(model: Model) -> str | None:
    """sha256 of the structure and the weights; None for a model that is just a function."""
    if not isinstance(model, nn.Module):
        return None
    total = hashlib.sha256(_without_addresses(repr(model)).encode())
    for name, value in model.state_dict().items():
        content = digest(value) if isinstance(value, Tensor) else _without_addresses(repr(value))
        total.update(f"{name}={content};".encode())
    return total.hexdigest()


def environment(device: torch.device, engine: Engine | None = None) -> dict[str, str]:
    """Versions and hardware, and how the model is run, if that was asked for."""
    from sparsepgd import __version__

    cuda = device.type == "cuda"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sparsepgd": __version__,
        "system": platform.platform(),
        "device": str(device),
        "hardware": torch.cuda.get_device_name(device) if cuda else f"{_processor()}, {os.cpu_count()} cores",
        **({} if engine is None else {"engine": f"precision={engine.precision}, compile={engine.compile}"}),
    }


def budget_of(attack: Plain, allowed: Tensor | None) -> Budget:
    """The budget that ``configuration`` wrote down, built again."""
    written = attack.get("budget")
    if not isinstance(written, dict):
        raise UnsupportedError(f"the record of {attack.get('name')!r} names no budget; hand it over: budget=...")
    return Budget(written["k"], _pattern(written["pattern"]), written["eps"], allowed)


def _pattern(written: Plain) -> Pattern:
    values = dict(written)
    kind = values.pop("kind")
    if kind == "Shape":
        return Shape([[int(cell) for cell in row] for row in values["kernel"]], values["name"])
    classes = {known.__name__: known for known in Pattern.__subclasses__()}
    if kind not in classes:
        raise UnsupportedError(f"the record has a pattern {kind!r} that is not known here; hand it over: budget=...")
    return classes[kind](**values)


def _hyper_parameters(attack: object) -> Plain:
    found = _plain(attack)
    return found if isinstance(found, dict) else {"kind": type(attack).__name__, "repr": found}


def _plain(value: object) -> Any:
    if isinstance(value, Shape):
        rows = ["".join(str(int(cell)) for cell in row) for row in value.kernel(0, 0)]
        return {"kind": "Shape", "name": value.name, "kernel": rows}
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "sha256": digest(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return _without_addresses(repr(value))


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _short(value: object) -> str:
    words = str(value) if isinstance(value, str) else json.dumps(value)
    return words if len(words) <= 40 else f"{words[:12]}..."


def _without_addresses(words: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", words)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
