"""All that changes while a model trains: it can be put down at the end of an epoch and taken up again, to the bit."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
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
from sparsepgd.training.annealing import Changes
from sparsepgd.training.objective import SoftTargets
from sparsepgd.training.settings import Settings

VERSION = 2  # 1: the pattern was written as it prints
Plain = dict[str, Any]
Curves = dict[str, list[float | None]]  # one value an epoch; None: before the first measured one


@dataclass(eq=False)
class State:
    """The weights and what belongs to them; `epoch` and `iteration` count what is done."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    average: list[Tensor]  # of the network's floating-point state; empty if not asked for
    targets: SoftTargets | None
    changes: Changes | None = None
    epoch: int = 0
    iteration: int = 0
    patience: int = 3  # how often a run may still be taken back after NaN
    brake: float = 1.0  # on the learning rate, after NaN
    curves: Curves = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def latest(self) -> dict[str, float]:
        """The last value of each curve."""
        return {name: value for name, (*_, value) in self.curves.items() if value is not None}

    @cached_property
    def live(self) -> list[Tensor]:
        """The floating-point weights and statistics that an average follows, where they lie."""
        return [value for value in self.network.state_dict().values() if value.is_floating_point()]

    def follow(self, decay: float) -> None:
        """The average takes a step; it forgets faster at first."""
        slow = min(decay, (1 + self.iteration) / (10 + self.iteration))
        torch._foreach_lerp_(self.average, self.live, 1 - slow)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The network with the averaged weights, for a while."""
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
        """Everything, by reference."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": list(self.average),
            "targets": None if self.targets is None else self.targets.t,
            "changes": None if self.changes is None else [self.changes.places, self.changes.values],
            "numbers": (self.epoch, self.iteration, self.patience, self.brake, self.seconds),
            "curves": {name: list(values) for name, values in self.curves.items()},
            "notices": list(self.notices),
            "random": _random_state(self.device),
        }

    @torch.no_grad()
    def load(self, kept: Plain) -> None:
        self.network.load_state_dict(kept["network"])
        self.optimizer.load_state_dict(kept["optimizer"])
        for value, before in zip(self.average, kept["average"], strict=True):
            value.copy_(before)
        if self.targets is not None:
            self.targets.t.copy_(kept["targets"])
        if self.changes is not None:
            self.changes.places, self.changes.values = (part.clone() for part in kept["changes"])
        self.epoch, self.iteration, self.patience, self.brake, self.seconds = kept["numbers"]
        self.curves = {name: list(values) for name, values in kept["curves"].items()}
        self.notices = list(kept["notices"])
        _set_random_state(kept["random"], self.device)


def snapshot(state: State) -> Plain:
    """A copy that further training does not change."""
    copied: Plain = _cloned(state.dump())
    return copied


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _cloned(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_cloned(each) for each in value)
    return value


def _random_state(device: torch.device) -> list[Tensor]:
    """torch's own generators, which dropout and the like draw from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(kept: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(kept[0].cpu())
    if device.type == "cuda" and len(kept) > 1:
        torch.cuda.set_rng_state(kept[1].cpu(), device)


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> str:
    """As safetensors, unless the file holds them already; their sha256."""
    data = save_tensors({name: value.cpu().contiguous() for name, value in weights.items()})
    digest = hashlib.sha256(data).hexdigest()
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        atomic.write(path, data)
    return digest


def save(path: Path, state: State, configuration: Plain) -> None:
    buffer = io.BytesIO()
    torch.save({"version": VERSION, "configuration": configuration, **state.dump()}, buffer)
    atomic.write(path, buffer.getvalue())


def restore(path: Path, state: State, configuration: Plain) -> None:
    """Go on from a checkpoint, if there is one; that of another run is refused."""
    if not path.is_file():
        return
    try:
        kept = torch.load(path, map_location=state.device, weights_only=True)
        version, before = kept["version"], kept["configuration"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, UnpicklingError) as error:
        reason = first_line(error)
        raise SourceError(f"{path} is no checkpoint: {reason}; delete it or choose another --out") from None
    if version != VERSION:
        raise SourceError(f"{path} is of version {version}, this sparsepgd reads {VERSION}; choose another --out")
    new = {field.name: field.default for field in fields(Settings)}  # settings that did not exist then
    before["settings"] = {name: new[name] for name in configuration["settings"] if name in new} | before["settings"]
    if other := identity.differences(before, configuration):
        raise FolderError(
            f"{path.parent} holds another run: {'; '.join(other)}; choose another --out or delete the folder"
        )
    state.load(kept)


def configuration(wanted: Settings, network: nn.Module, data: Plain, names: dict[str, str]) -> Plain:
    """What makes a run the same run, as plain values. Fresh weights may differ: a checkpoint replaces them."""
    budget = wanted.budget
    allowed = None if budget.allowed is None else identity.digest(budget.allowed)
    rules = {"k": budget.k, "pattern": identity.plain(budget.pattern), "eps": budget.eps, "allowed": allowed}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(wanted).items()}
    shapes = {name: list(value.shape) for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    structure = hashlib.sha256(repr(sorted(shapes.items())).encode()).hexdigest()
    return {
        "settings": {**values, "budget": rules},
        "model": {"name": names.get("model", type(network).__name__), "structure": structure},
        "data": {"name": names.get("data", "tensors"), **data},
    }
