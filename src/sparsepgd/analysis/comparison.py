"""Attacks beside each other on the same images: a line of figures for each."""

from __future__ import annotations

from dataclasses import dataclass

from sparsepgd.analysis.summary import wilson
from sparsepgd.problem import Result


@dataclass(frozen=True)
class Line:
    """One attack in the table."""

    attack: str
    clean_accuracy: float
    robust_accuracy: float
    interval: tuple[float, float]  # 95 %
    median_groups: float | None  # of the fooled
    forwards: float  # for an attacked image, on average
    backwards: float
    seconds: float


def line(attack: str, result: Result, seconds: float, most: int | None = None) -> Line:
    """What an attack left; successes after more than `most` passes of the model do not count."""
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
