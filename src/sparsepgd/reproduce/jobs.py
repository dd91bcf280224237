"""Scales, and the models that replace those of the paper."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsepgd import options, zoo
from sparsepgd.errors import UnsupportedError
from sparsepgd.search import SparsePGD
from sparsepgd.search.contract import Attacker
from sparsepgd.sources import load_pairs
from sparsepgd.sources.data import images_in
from sparsepgd.threat import Budget, Pattern

SAA = ("sPGD_u", "sPGD_p", "RS")  # the members of sAA
ANNEAL = "anneal"  # SparseAnneal; together with SAA, the attacks whose length is given in steps or queries, not passes
OURS = (*SAA, ANNEAL)
CORNER_SEARCH, AFFORDED = "CS", 1000  # number of images that the paper uses for its slowest attack


@dataclass(frozen=True)
class Scale:
    """The number of images, and the length of attacks and of training."""

    name: str
    images: int
    steps: int  # of sPGD
    queries: int  # of Sparse-RS
    passes: int | None  # per image, of every other attack; None: the settings of its paper
    epochs: int  # of the networks that a recipe trains
    training_images: int | None  # None: all

    def attack(self, column: str, budget: Budget) -> Attacker:
        """An attack by its name in the paper's tables."""
        if column in OURS:
            return options.attack(column, budget, self.steps, queries=self.queries)
        if self.passes is None:
            return options.preset(column, budget, "paper")
        return options.at_cost(column, budget, self.passes)

    def cost(self, column: str, attack: Attacker) -> int:
        """Upper estimate of the passes per image."""
        return passes(attack) if column in OURS or self.passes is None else self.passes


SCALES = {
    scale.name: scale
    for scale in (
        Scale("smoke", images=4, steps=20, queries=40, passes=40, epochs=4, training_images=700),
        Scale("small", images=100, steps=300, queries=1000, passes=600, epochs=20, training_images=1400),
        Scale("paper", images=10_000, steps=10_000, queries=10_000, passes=None, epochs=100, training_images=None),
    )
}


def scale(name: str) -> Scale:
    if name not in SCALES:
        raise UnsupportedError(f"scale {name!r}; use one of {', '.join(SCALES)}")
    return SCALES[name]


def passes(attack: Attacker) -> int:
    """Upper estimate of the forward and backward passes per image."""
    return attack.evaluations * (1 + attack.needs_gradient)


SHIPPED, SIDE = "bundled", 32  # the images of this package, and their side
IN_PACKAGE = {  # by role: substitutes in an installation without weights/subjects
    "Vanilla": "zoo:small-plain",
    "Fast-EG-l1": "zoo:small-plain",
    "sTRADES": "zoo:small-strades",
    "sTRADES-l0": "zoo:small-strades",
}
TOGETHER = 16  # images of a measurement


class Enlarged(nn.Module):
    """A model for small images, applied to large ones by averaging over squares of pixels."""

    def __init__(self, model: nn.Module, factor: int) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(F.avg_pool2d(x, self.factor))
        return logits


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, which is made when first needed, and its images."""

    role: str  # the paper's name of the model that it replaces
    name: str
    make: Callable[[], nn.Module]
    x: Tensor  # (B, C, H, W)
    y: Tensor
    data: str
    classes: tuple[str, ...] = ()
    stand_in: bool = False  # it replaces this model by default, not by an option
    sample: Callable[[], nn.Module] | None = None  # a model of the same speed, if this one takes long to make
    training: int = 0  # passes that making it takes, per image of a batch

    @cached_property
    def model(self) -> nn.Module:
        return self.make().to(self.x.device).eval()

    def first(self, count: int) -> Subject:
        """The same model with only the first images."""
        if len(self.x) <= count:
            return self
        return replace(self, make=lambda: self.model, x=self.x[:count], y=self.y[:count], training=0)

    def seconds(self, pattern: Pattern, passes: int) -> float:
        """Estimated seconds for this number of passes on batches of these images, from a measurement."""
        return passes * self._seconds_a_pass(pattern, 1 if pattern.structured else min(len(self.x), TOGETHER))

    def _seconds_a_pass(self, pattern: Pattern, batch: int) -> float:
        """Measured by an attack of two steps on images that do not leave early; the faster of two."""
        model = self.model if self.sample is None else self.sample().to(self.x.device).eval()
        attack, best = SparsePGD(Budget(1, pattern), 2, early_stop=False), float("inf")
        rows = torch.arange(batch, device=self.x.device) % len(self.x)
        for _ in range(2):
            begun = time.perf_counter()
            attack(model, self.x[rows], self.y[rows])
            best = min(best, (time.perf_counter() - begun) / (2 * attack.evaluations * batch))
        return best


@dataclass(frozen=True, eq=False)
class Job:
    """The options of a command: what to run, on which models and data, and where to store records."""

    scale: Scale
    out: Path
    models: dict[str, str]  # by role, as given; {}: the subjects, or the shipped models
    data: str = SHIPPED
    images: int | None = None  # None: those of the scale
    size: int | None = None  # side of the pictures of a folder
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    few: tuple[tuple[str, int], ...] = ((CORNER_SEARCH, AFFORDED),)  # number of images for slow attacks, by column
    chunk: int | None = None  # images between two writes of a run; None: as in `runs.run`

    @cached_property
    def count(self) -> int:
        """Number of images: as given, or that of the scale, at most all."""
        return self.images or min(self.scale.images, images_in(self.data))

    def chosen(self, roles: dict[str, str | None]) -> dict[str, str]:
        """The models by role: only the given ones, otherwise the available ones."""
        if self.models:
            return self.models
        installed = {f"zoo:{name}" for name in zoo.names()}
        available = {}
        for role, source in roles.items():
            if source in installed:
                available[role] = source
            elif source is not None and role in IN_PACKAGE:
                available[role] = IN_PACKAGE[role]
        if not available:
            raise UnsupportedError(
                f"the package has no substitute for {' or '.join(roles)}; "
                "give a model and its images: --model ROLE=SOURCE --data ..."
            )
        return available

    def enlarged(self, size: int) -> int:
        """The factor by which the images of the package are enlarged to `size`; 0: images of that size are given."""
        return size // SIDE if not self.models and self.data == SHIPPED and size > SIDE else 0

    def subjects(self, roles: dict[str, str | None], size: int = SIDE) -> list[Subject]:
        """The models of a table; shipped models average over larger images of side `size`."""
        return [self._subject(role, source, size) for role, source in self.chosen(roles).items()]

    def _subject(self, role: str, name: str, size: int) -> Subject:
        ((source, images),) = load_pairs([name], self.data, self.count, size=self.size, device=self.device)
        x, y = images
        if factor := self.enlarged(size):
            x = x.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
        model = Enlarged(source.model, factor) if factor else source.model
        shown = f"{source.name} at {size}x{size}" if factor else source.name
        return Subject(
            role, shown, lambda: model, x, y, self.data, source.classes or images.class_names, stand_in=not self.models
        )
