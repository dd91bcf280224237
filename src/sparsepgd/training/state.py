"""Everything that changes during training, saved after each epoch; resumed runs are identical to the bit."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from sparsepgd import atomic
from sparsepgd.errors import FolderError, SourceError, first_line
from sparsepgd.runs import identity
from sparsepgd.threat import Budget
from sparsepgd.training.annealing import Changes
from sparsepgd.training.data import Images, Resident
from sparsepgd.training.objective import SoftTargets
from sparsepgd.training.settings import Settings

VERSION = 2  # 1: the pattern was written as it prints
Plain = dict[str, Any]
Curves = dict[str, list[float | None]]  # one value per epoch; None before the first measurement


@dataclass(eq=False)
class State:
    """The weights and everything that changes with them; `epoch` and `iteration` count finished ones."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    average: list[Tensor]  # of the network's floating-point state; empty without averaging
    targets: SoftTargets | None
    changes: Sequence[Changes] = ()  # one per budget, if perturbations are kept
    epoch: int = 0
    iteration: int = 0
    retries: int = 3  # how often an epoch may still be repeated after NaN
    lr_scale: float = 1.0  # of the learning rate, after NaN
    curves: Curves = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def latest(self) -> dict[str, float]:
        return {name: value for name, (*_, value) in self.curves.items() if value is not None}

    @cached_property
    def live(self) -> list[Tensor]:
        """References to the floating-point weights and statistics that are averaged."""
        return [value for value in self.network.state_dict().values() if value.is_floating_point()]

    def update_average(self, decay: float) -> None:
        """Update the average, with a smaller decay at first."""
        slow = min(decay, (1 + self.iteration) / (10 + self.iteration))
        torch._foreach_lerp_(self.average, self.live, 1 - slow)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the averaged weights inside the context."""
        live = self.live if self.average else []
        kept = [value.clone() for value in live]
        try:
            self.use_average()
            yield
        finally:
            for value, before in zip(live, kept, strict=True):
                value.copy_(before)

    @torch.no_grad()
    def use_average(self) -> None:
        for value, slow in zip(self.live if self.average else [], self.average, strict=True):
            value.copy_(slow)

    def dump(self) -> Plain:
        """The whole state, by reference."""
        on_gpu = self.device.type == "cuda"
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": list(self.average),
            "targets": None if self.targets is None else self.targets.t,
            "changes": [part for changes in self.changes for part in (changes.places, changes.values)],
            "numbers": (self.epoch, self.iteration, self.retries, self.lr_scale, self.seconds),
            "curves": {name: list(values) for name, values in self.curves.items()},
            "notices": list(self.notices),
            # torch's own generators, for dropout and the like
            "random": [torch.get_rng_state(), *([torch.cuda.get_rng_state(self.device)] if on_gpu else [])],
        }

    @torch.no_grad()
    def load(self, saved: Plain) -> None:
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for value, before in zip(self.average, saved["average"], strict=True):
            value.copy_(before)
        if self.targets is not None:
            self.targets.t.copy_(saved["targets"])
        for number, changes in enumerate(self.changes):
            changes.places, changes.values = (part.clone() for part in saved["changes"][2 * number : 2 * number + 2])
        self.epoch, self.iteration, self.retries, self.lr_scale, self.seconds = saved["numbers"]
        self.curves = {name: list(values) for name, values in saved["curves"].items()}
        self.notices = list(saved["notices"])
        torch.set_rng_state(saved["random"][0].cpu())
        if self.device.type == "cuda" and len(saved["random"]) > 1:
            torch.cuda.set_rng_state(saved["random"][1].cpu(), self.device)


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> str:
    """Write the weights as safetensors, unless the file already holds them; return their sha256."""
    copies = {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    data = save_tensors(copies)  # it refuses tensors that share memory, as the weights of two layers may
    digest = hashlib.sha256(data).hexdigest()
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        atomic.write(path, data)
    return digest


def save(path: Path, state: State, configuration: Plain) -> None:
    buffer = io.BytesIO()
    torch.save({"version": VERSION, "configuration": configuration, **state.dump()}, buffer)
    atomic.write(path, buffer.getvalue())


def restore(path: Path, state: State, configuration: Plain) -> None:
    """Resume from a checkpoint, if there is one; an error if it is from another run."""
    if not path.is_file():
        return
    try:
        saved = torch.load(path, map_location=state.device, weights_only=True)
        version, before = saved["version"], saved["configuration"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, UnpicklingError) as error:
        raise SourceError(
            f"{path} is not a valid checkpoint: {first_line(error)}; delete it or choose another --out"
        ) from None
    if version != VERSION:
        raise SourceError(
            f"{path} is of version {version}, but this sparsepgd reads version {VERSION}; choose another --out"
        )
    new = {field.name: _listed(field.default) for field in fields(Settings)}  # settings that did not exist at that time
    before["settings"] = {name: new[name] for name in configuration["settings"] if name in new} | before["settings"]
    if other := identity.differences(before, configuration):
        raise FolderError(
            f"{path.parent} holds another run: {'; '.join(other)}; choose another --out or delete the folder"
        )
    state.load(saved)


def configuration(settings: Settings, network: nn.Module, images: Images, names: dict[str, str]) -> Plain:
    """The values that identify a run. Fresh weights are not among them, because a checkpoint replaces them."""
    budget, *others = (_plain(budget) for budget in settings.budgets)
    values = {name: _listed(value) for name, value in vars(settings).items()}
    shapes = {name: list(value.shape) for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    structure = hashlib.sha256(repr(sorted(shapes.items())).encode()).hexdigest()
    data: Plain = {"images": len(images), "shape": list(images.shape)}
    if isinstance(images, Resident):
        data["sha256"] = identity.digest(images.x, images.y)
    return {
        "settings": {**values, "budget": budget, "others": others},
        "model": {"name": names.get("model", type(network).__name__), "structure": structure},
        "data": {"name": names.get("data", "tensors"), **data},
    }


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _plain(budget: Budget) -> Plain:
    allowed = None if budget.allowed is None else identity.digest(budget.allowed)
    return {"k": budget.k, "pattern": identity.plain(budget.pattern), "eps": budget.eps, "allowed": allowed}
