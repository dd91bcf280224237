"""All that decides a training run, as one frozen value."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sparsepgd.errors import UnsupportedError
from sparsepgd.threat import Budget, Patches
from sparsepgd.training.methods import Method, method

Gradient = Literal["random", "alternating", "unprojected", "projected"]
Mode = Literal["T", "F"]
Augment = Literal["crop+flip", "crop", "none"]
ScheduleName = Literal["paper", "one-cycle", "constant"]
LEAST: dict[str, float] = {
    **dict.fromkeys(("epochs", "batch", "steps", "steps_last", "multi_eps", "tolerance", "watch_every"), 1),
    **dict.fromkeys(("weight_decay", "lam", "held_out", "watch_steps", "loader_workers"), 0),
}
POSITIVE = ("lr", "clip", "alpha", "beta", "radius")
SHARES = ("momentum", "ema", "soft_from", "soft_momentum", "mixed")
WORDS: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text", Budget: "a Budget"}


@dataclass(frozen=True)
class Settings:
    """The paper's values unless said otherwise; None: chosen by the method, the budget or the data."""

    method: str
    budget: Budget  # of the adversary that the model is to withstand; the training one has multi_eps times as many
    epochs: int = 100
    batch: int = 128  # over all workers
    lr: float = 0.05
    schedule: ScheduleName = "paper"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    clip: float | None = None  # largest norm of a gradient
    ema: float | None = None  # decay of the weight average, for each iteration
    # the adversary
    steps: int = 20
    steps_last: int | None = None  # in the last epoch; they rise evenly from `steps`. None: they do not
    mixed: float = 0.0  # of SparseAnneal: the share of the batches that sPGD attacks instead
    keep: bool = False  # of SparseAnneal: go on from the change that each image had in the epoch before
    gradient: Gradient = "random"  # a fair coin, or turn by turn, for each batch
    mode: Mode = "T"  # of TRADES: the adversary maximises cross-entropy, or F, the divergence from the clean answer
    early_stop: bool = True
    multi_eps: int = 6
    multi_size: tuple[int, ...] = ()  # sides of square patches, one drawn for each batch
    alpha: float | None = None  # 0.25, structured patterns 0.05
    beta: float | None = None
    tolerance: int = 10
    radius: float | None = None  # of the dense adversaries
    # the loss
    lam: float = 3.0  # lambda of TRADES
    soft_targets: bool = False  # S
    soft_from: float = 0.5  # share of the epochs before S begins
    soft_momentum: float = 0.9
    noise: bool = False  # N
    # the rest
    seed: int = 0
    augment: Augment | None = None  # None: crop+flip for colour images of at least 24 pixels, none for others
    held_out: int | None = None  # images kept from training to watch it; None: 5 %, at most 1000
    watch_steps: int = 20  # of the attack on them, with either gradient; 0: only clean accuracy
    watch_every: int = 1  # epochs
    bf16: bool | None = None  # None: on a GPU
    compile: bool | None = None  # None: on a GPU
    resident: bool | None = None  # all images on the device; None: if they fit
    loader_workers: int = 0

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            object.__setattr__(self, name, of_kind(name, getattr(self, name), kind))
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise UnsupportedError(f"{name}={value}; use at least {least}")
        for name in POSITIVE:
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UnsupportedError(f"{name}={value}; expected a number larger than 0")
        for name in SHARES:
            if (value := getattr(self, name)) is not None and not 0 <= value <= 1:
                raise UnsupportedError(f"{name}={value}; expected a share from 0 to 1")
        self._check_sense()

    def _check_sense(self) -> None:
        """What is asked for must be used."""
        found = self.kind
        if self.nesterov and not self.momentum:
            raise UnsupportedError("nesterov=True with momentum=0; use a momentum larger than 0, or nesterov=False")
        if self.radius is None and found.adversary in ("linf", "l2", "l1"):
            raise UnsupportedError(f"radius=None with {self.method!r}; expected a number larger than 0")
        if self.mode == "F" and not (found.trades and found.adversary == "spgd"):
            raise UnsupportedError(f"mode='F' with {self.method!r}; only sTRADES has an adversary by divergence")
        if found.adversary == "loap" and not self.budget.pattern.structured:
            raise UnsupportedError(
                f"{self.method!r} with {self.budget}; LOAP places patches: use Patches(3) and the like, --pattern "
                "patch:3, or for this budget sat or strades"
            )
        if (self.mixed or self.keep) and found.adversary != "anneal":
            name = "mixed" if self.mixed else "keep"
            raise UnsupportedError(f"{name} with {self.method!r}; only anneal-at and anneal-trades have it")
        if not all(side >= 1 for side in self.multi_size):
            raise UnsupportedError(f"multi_size={self.multi_size}; expected sides of at least 1")
        if self.multi_size and not isinstance(self.budget.pattern, Patches):
            raise UnsupportedError(f"multi_size with {self.budget}; it needs a pattern of patches, e.g. Patches(5)")
        if self.budget.allowed is not None and self.budget.allowed.dim() == 3:
            raise UnsupportedError("an allowed mask for each image; in training use one (H, W) for all")

    @property
    def kind(self) -> Method:
        return method(self.method)

    @property
    def sparse(self) -> bool:
        """Whether the adversary is one of `budget`."""
        return self.kind.adversary in ("spgd", "anneal", "pgd0", "loap")

    def anneals(self, iteration: int) -> bool:
        """Whether SparseAnneal attacks the batch of an iteration; if it does at all, the others are for sPGD."""
        return self.kind.adversary == "anneal" and self.seed_for("mixed", iteration) % 1000 >= 1000 * self.mixed

    def seed_for(self, purpose: str, number: int = 0) -> int:
        """A seed of its own for every purpose and every epoch or iteration."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{purpose}/{number}".encode()).digest()[:7], "big")


def of_kind(name: str, value: Any, kind: Any) -> Any:
    """The value, if it is of the type of the field; a list, or one alone, stands for a tuple."""
    parts = get_args(kind)
    if NoneType in parts:
        return None if value is None else of_kind(name, value, parts[0])
    if get_origin(kind) is Literal:
        if value not in parts:
            raise UnsupportedError(f"{name}={value!r}; use one of {', '.join(map(repr, parts))}")
        return value
    if get_origin(kind) is tuple:
        return tuple(of_kind(name, one, parts[0]) for one in (value if isinstance(value, list | tuple) else [value]))
    wide = {int: Integral, float: Real}.get(kind, kind)  # numpy's are taken too
    right = isinstance(value, wide) and isinstance(value, bool) == (kind is bool)
    if not right or (kind is float and not math.isfinite(value)):
        raise UnsupportedError(f"{name}={value!r}; expected {WORDS[kind]}")
    return kind(value) if wide is not kind else value


KINDS: dict[str, Any] = get_type_hints(Settings)


def settings(name: str, budget: Budget, options: dict[str, Any]) -> Settings:
    """The method's own values, then `options`; an unknown one is an error that lists the known."""
    known = {field.name for field in fields(Settings)} - {"method", "budget"}
    if wrong := sorted(set(options) - known):
        raise UnsupportedError(f"no setting {wrong[0]!r}; use one of {', '.join(sorted(known))}")
    kind = method(name)
    own = {"soft_targets": kind.soft_targets, "noise": kind.noise, **kind.defaults}
    return Settings(kind.name, budget, **{**own, **options})
