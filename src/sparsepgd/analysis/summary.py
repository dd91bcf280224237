"""Summaries of a run or of an attack, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparsepgd.errors import counted, singular
from sparsepgd.problem import Result
from sparsepgd.threat import LEVELS, Groups, Pattern

UNITS = {kind.__name__: kind.unit for kind in Pattern.__subclasses__()}


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's score interval for a proportion, at 95 %."""
    if n == 0:
        return 0.0, 1.0
    z = 1.959963984540054  # two-sided 95 %
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def length(settings: Mapping[str, Any]) -> str:
    """``100 steps, 1,000 queries``, or the part of it that applies to the attack."""
    counts = {unit: settings.get(unit) for unit in ("steps", "queries")}
    return ", ".join(counted(count, unit) for unit, count in counts.items() if isinstance(count, int))


def describe_budget(written: object) -> str:
    """``k = 2 patches 3x5, eps = 8/255``, from a Budget in a record."""
    if not isinstance(written, dict):
        return "its own budget"
    pattern = dict(written["pattern"])
    kind = str(pattern.pop("kind"))
    unit = UNITS.get(kind, kind.lower())
    text = f"k = {written['k']} {unit if written['k'] != 1 else singular(unit)}"
    if kind == "Shape":
        text += f" ({pattern['name']})"
    elif kind == "Groups":
        text += f" {repr(Groups(**pattern)).removeprefix('Groups')}"  # (96 of 5 places): there may be thousands
    elif pattern:
        text += " " + "x".join(str(value) for value in pattern.values())
    if written["eps"] < 1:
        levels = written["eps"] * LEVELS
        near = abs(levels - round(levels)) < 1e-6
        text += f", eps = {round(levels)}/{LEVELS}" if near else f", eps = {written['eps']:.4g}"
    return text + (", only where allowed" if written.get("allowed") else "")


class Row(Protocol):
    """The fields of a record's row that are used here."""

    @property
    def clean_correct(self) -> bool: ...
    @property
    def fooled(self) -> bool: ...
    @property
    def robust(self) -> bool: ...
    @property
    def forwards(self) -> int: ...
    @property
    def backwards(self) -> int: ...
    @property
    def broken_by(self) -> str | None: ...


class Rows(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...


@dataclass(frozen=True)
class Summary:
    images: int
    clean_accuracy: float
    robust_accuracy: float
    interval: tuple[float, float]  # of the robust accuracy, 95 %
    median_l0: float  # changed pixels of fooled images; NaN if there are none
    median_steps: float  # until success
    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class Line:
    attack: str
    clean_accuracy: float
    robust_accuracy: float
    interval: tuple[float, float]  # 95 %
    median_groups: float | None  # of fooled images
    forwards: float  # per attacked image, on average
    backwards: float
    seconds: float


def line(attack: str, result: Result, seconds: float, most: int | None = None) -> Line:
    """The line of an attack in a table; successes after more than `most` passes do not count."""
    passes = result.forwards + result.backwards
    fooled = result.fooled if most is None else result.fooled & (passes <= most)
    robust, attacked = result.clean_correct & ~fooled, passes > 0
    groups = result.groups[fooled].double()
    return Line(
        attack=attack,
        clean_accuracy=result.clean_accuracy,
        robust_accuracy=float(robust.double().mean()),
        interval=wilson(int(robust.sum()), len(result)),
        median_groups=float(groups.median()) if len(groups) else None,
        forwards=float(result.forwards[attacked].double().mean()) if bool(attacked.any()) else 0.0,
        backwards=float(result.backwards[attacked].double().mean()) if bool(attacked.any()) else 0.0,
        seconds=seconds,
    )
