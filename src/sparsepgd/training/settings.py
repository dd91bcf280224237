"""All that decides a training run, as one frozen value."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from sparsepgd.errors import UnsupportedError
from sparsepgd.threat import Budget, Patches
from sparsepgd.training.methods import Method, method

Gradient = Literal["random", "alternating", "unprojected", "projected"]
Mode = Literal["T", "F"]
Augment = Literal["crop+flip", "crop", "none"]
ScheduleName = Literal["paper", "one-cycle", "constant"]


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
    gradient: Gradient = "random"  # a fair coin, or turn by turn, for each batch
    mode: Mode = "T"  # of TRADES: the adversary maximises cross-entropy, or F, the divergence from the clean answer
    early_stop: bool = True
    multi_eps: int = 6
    multi_size: tuple[int, ...] = ()  # sides of square patches, one drawn for each batch
    near: tuple[float, ...] = ()  # not in the paper: every other batch starts near the clean image, by one of these
    alpha: float | None = None  # 0.25, structured patterns 0.05; of a start near the clean image a fifth of it
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
        for name, least in (("epochs", 1), ("batch", 1), ("steps", 1), ("multi_eps", 1), ("watch_every", 1)):
            if getattr(self, name) < least:
                raise UnsupportedError(f"{name}={getattr(self, name)}; use at least {least}")
        for name in ("lr", "clip", "tolerance", "alpha", "beta", "radius"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UnsupportedError(f"{name}={value}; expected a number larger than 0")
        for name in ("momentum", "ema", "soft_from", "soft_momentum"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise UnsupportedError(f"{name}={value}; expected a share from 0 to 1")
        for name, kind in (("gradient", Gradient), ("mode", Mode), ("augment", Augment), ("schedule", ScheduleName)):
            if getattr(self, name) not in (*get_args(kind), *([None] if name == "augment" else [])):
                words = ", ".join(map(repr, get_args(kind)))
                raise UnsupportedError(f"{name}={getattr(self, name)!r}; use one of {words}")
        self._check_sense()

    def _check_sense(self) -> None:
        """What is asked for must be used."""
        found = self.kind
        if self.mode == "F" and not (found.trades and found.adversary == "spgd"):
            raise UnsupportedError(f"mode='F' with {self.method!r}; only sTRADES has an adversary by divergence")
        if self.near and found.adversary != "spgd":
            raise UnsupportedError(f"near with {self.method!r}; only sPGD starts near the clean image")
        if self.near and self.mode == "F":
            raise UnsupportedError(
                "near with mode='F'; the divergence has no gradient at the clean image, use mode='T'"
            )
        if not all(0 < value <= 1 for value in self.near):
            raise UnsupportedError(f"near={self.near}; expected shares of eps, larger than 0 and at most 1")
        if self.multi_size and not isinstance(self.budget.pattern, Patches):
            raise UnsupportedError(f"multi_size with {self.budget}; it needs a pattern of patches, e.g. Patches(5)")
        if self.budget.allowed is not None and self.budget.allowed.dim() == 3:
            raise UnsupportedError("an allowed mask for each image; in training use one (H, W) for all")

    @property
    def kind(self) -> Method:
        return method(self.method)

    def seed_for(self, purpose: str, number: int = 0) -> int:
        """A seed of its own for every purpose and every epoch or iteration."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{purpose}/{number}".encode()).digest()[:7], "big")


def settings(name: str, budget: Budget, options: dict[str, Any]) -> Settings:
    """The method's own values, then `options`; an unknown one is an error that lists the known."""
    known = {field.name for field in fields(Settings)} - {"method", "budget"}
    if wrong := sorted(set(options) - known):
        raise UnsupportedError(f"no setting {wrong[0]!r}; use one of {', '.join(sorted(known))}")
    kind = method(name)
    own = {"soft_targets": kind.soft_targets, "noise": kind.noise, **kind.defaults}
    return Settings(kind.name, budget, **{**own, **options})
