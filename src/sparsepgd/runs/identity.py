"""What identifies a run: its attack, seed, model and data, as plain values that can be compared and printed."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sparsepgd.errors import ModelError, SourceError, UnsupportedError, first_line
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.oracle import Model, logits_of
from sparsepgd.search.contract import Attacker
from sparsepgd.search.noise import check_seed
from sparsepgd.threat import Budget, Pattern, Shape

Plain = dict[str, Any]  # values that JSON can represent
SAMPLE = 2  # images whose logits are stored
OFF: tuple[object, ...] = (None, False, 0, [])
SIMPLE = str, int, float, list, tuple, type(None)  # types of settings of a layer; functions count by their names
SAME = 1e-3  # relative to the largest logit: the difference that another device or version may cause


def configuration(attack: Any, model: Model, x: Tensor, y: Tensor, names: Mapping[str, str], seed: int) -> Plain:
    """Everything that determines the result. `names`: of the model and the data, and other entries for the record."""
    for key, value in names.items():
        if key in ("attack", "seed") or not isinstance(value, str):
            raise UnsupportedError(
                f"names has {key!r}: {value!r}; expected texts for 'model', 'data' and keys of your own, which may not "
                "be 'attack' or 'seed'"
            )
    settings = plain(attack)
    if not isinstance(settings, dict):
        settings = {"kind": type(attack).__name__, "repr": settings}
    if isinstance(attack, Attacker) and attack.revision > 1:  # records of the first revision do not state it
        settings["revision"] = attack.revision
    content: Plain = {
        "attack": {"name": attack.name, **settings},
        "seed": check_seed(seed),
        "model": {"name": names.get("model", type(model).__name__), **model_digests(model)},
        "data": {"name": names.get("data", "tensors"), "images": len(x), "sha256": digest(x, y)},
        **{key: value for key, value in names.items() if key not in ("model", "data")},
    }
    return dict(json.loads(json.dumps(content)))


def differences(before: Plain, now: Plain) -> list[str]:
    """``attack.budget.k was 20, is 10`` for every value that differs. A setting that is missing in one of them counts
    as off there, because versions differ in their settings. Models are compared by the best digest that both have."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    worse = "model.sha256" if "model.digest" in old and "model.digest" in new else "model.digest"
    for leaves in (old, new):
        leaves.pop(worse, None)
    if "attack.version" not in old:
        new.pop("attack.version", None)  # in 0.1.0 the version of an ensemble was in its name
    both = {**old, **new}
    differ = [key for key in both if (old[key] != new[key] if key in old and key in new else both[key] not in OFF)]
    return [f"{key} was {_short(old.get(key))}, is {_short(new.get(key))}" for key in differ]


def digest(*tensors: Tensor) -> str:
    """sha256 of types, shapes and bytes."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def model_digests(model: Model) -> dict[str, str | None]:
    """The digests of a model in a record: `sha256`, by `model_digest`, and unless the model is a plain function
    `digest`, by `stable_digest`, which does not depend on the version of torch. Records up to 0.2.0 have only the
    former."""
    return {"sha256": model_digest(model), **({"digest": stable_digest(model)} if isinstance(model, nn.Module) else {})}


def model_digest(model: Model) -> str | None:
    """sha256 of the structure, as torch prints it, and the weights; None for a plain function."""
    if not isinstance(model, nn.Module):
        return None
    return _with_weights(_without_addresses(repr(model)), model)


def stable_digest(model: nn.Module) -> str:
    """sha256 of the modules, each with its path, class and settings, and of the weights. It does not use the printed
    structure, and settings with their default value do not count, because both change between versions of torch."""
    modules = model.named_modules(remove_duplicate=False)
    structure = [[name, _class_name(module), _settings(module), _extra_text(module)] for name, module in modules]
    return _with_weights(json.dumps(structure, sort_keys=True), model)


def _with_weights(structure: str, model: nn.Module) -> str:
    total = hashlib.sha256(structure.encode())
    for name, value in model.state_dict().items():
        if is_lazy(value):
            raise ModelError(f"{name} of the model has no shape yet; call the model once on an image before the run")
        content = digest(value) if isinstance(value, Tensor) else _without_addresses(repr(value))
        total.update(f"{name}={content};".encode())
    return total.hexdigest()


def _class_name(module: nn.Module) -> str:
    return str(getattr(module, "original_name", type(module).__name__))  # TorchScript has original_name


def _settings(module: nn.Module) -> Plain:
    """The constructor arguments of a torch layer or a subclass of one, as far as it keeps them as attributes of the
    same names, without those that have their default value."""
    attributes, arguments = vars(module), dict[str, inspect.Parameter]()
    for kind in filter(_of_torch, type(module).__mro__):
        if "__init__" in vars(kind):
            arguments = {**inspect.signature(vars(kind)["__init__"]).parameters, **arguments}
    shared = arguments.keys() & attributes.keys()
    values = {name: getattr(attributes[name], "__name__", attributes[name]) for name in shared}
    return {
        name: plain(value)
        for name, value in values.items()
        if isinstance(value, SIMPLE) and value != getattr(arguments[name].default, "__name__", arguments[name].default)
    }


def _extra_text(module: nn.Module) -> str:
    """The `extra_repr` of a module, unless it is one of torch's own."""
    author = next(kind for kind in type(module).__mro__ if "extra_repr" in vars(kind))
    return "" if _of_torch(author) else _without_addresses(module.extra_repr())


def _of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def answers(model: Model, x: Tensor) -> tuple[tuple[float, ...], ...]:
    """The logits of the first images, in full precision. They reveal changes in the code of a model, which a digest of
    its weights does not.

    () if they cannot be computed, for example because the model takes only batches of another size.
    """
    try:
        logits = logits_of(model, x[:SAMPLE], SAMPLE)
    except (RuntimeError, ValueError):
        return ()
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in logits.tolist())


def other_answers(before: Sequence[Sequence[float]], model: Model, x: Tensor) -> list[str]:
    """A message if the logits of the model differ from `before`; none if no logits were stored."""
    if not before:
        return []
    old, new = torch.tensor(before), torch.tensor(answers(model, x))
    size = float(old.abs().amax())
    apart = float((old - new).abs().amax()) if old.shape == new.shape else math.inf
    if apart <= round_off(model, SAME) * size:
        return []
    return [
        f"the model differs from the one that started the run: logits of the first images by {apart:.3g}, where the "
        f"largest logit was {size:.3g}"
    ]


def round_off(model: Model, least: float) -> float:
    """How far two evaluations may differ, relative to the largest logit: `least`, or four times the machine epsilon of
    the weights if that is larger."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    return max([least, *(4 * torch.finfo(one.dtype).eps for one in weights if one.is_floating_point())])


def environment(device: torch.device, engine: Engine | None = None) -> dict[str, str]:
    """Versions and hardware, and the engine if one was given."""
    from sparsepgd import __version__

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sparsepgd": __version__,
        "system": platform.platform(),
        "device": str(device),
        "hardware": hardware(device),
        **({} if engine is None else {"engine": f"precision={engine.precision}, compile={engine.compile}"}),
    }


def hardware(device: torch.device) -> str:
    """The name of the GPU, or that of the processor with its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


def budget_of(attack: Plain, allowed: Tensor | None) -> Budget:
    saved = attack.get("budget")
    if not isinstance(saved, dict) or saved.get("kind", "Budget") != "Budget":
        raise UnsupportedError(f"the record of {attack.get('name')!r} has no budget; pass it: budget=...")
    if saved.get("allowed") != plain(allowed):
        raise SourceError("the mask `allowed` stored with the images does not match the record; restore the file")
    return Budget(saved["k"], _pattern(**saved["pattern"]), saved["eps"], allowed)


def _pattern(kind: str, **values: Any) -> Pattern:
    if kind == "Shape":
        return Shape([[int(cell) for cell in row] for row in values["kernel"]], values["name"])
    classes = {known.__name__: known for known in Pattern.__subclasses__()}
    if kind not in classes:
        raise UnsupportedError(f"the record has an unknown pattern {kind!r}; pass the budget: budget=...")
    try:
        return classes[kind](**values)
    except TypeError as error:
        raise SourceError(f"the pattern of the record cannot be restored: {first_line(error)}") from None


def plain(value: object) -> Any:
    if isinstance(value, Shape):
        rows = ["".join(str(int(cell)) for cell in row) for row in value.kernel(0, 0)]
        return {"kind": "Shape", "name": value.name, "kernel": rows}
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "sha256": digest(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
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
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:12]}..."


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
