"""Learning rates as functions of the iteration, so that a resumed run needs nothing but its number."""

from __future__ import annotations

import math
from collections.abc import Callable

WARM = 0.25  # share of the iterations in which a one-cycle rises


def paper(done: float) -> float:
    """Divided by ten at 1/4 and again at 3/4 of all iterations."""
    return 1.0 if done < 0.25 else 0.1 if done < 0.75 else 0.01


def one_cycle(done: float) -> float:
    """Half a cosine from 1/25 up to the peak, and half a cosine down to 0 (Smith and Topin 2018)."""
    if done < WARM:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * done / WARM)) / 2
    return (1 + math.cos(math.pi * (done - WARM) / (1 - WARM))) / 2


def constant(done: float) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[float], float]] = {"paper": paper, "one-cycle": one_cycle, "constant": constant}


def rate(name: str, peak: float, iteration: int, total: int) -> float:
    """The learning rate of an iteration, counted from 0, of `total`."""
    return peak * SCHEDULES[name](iteration / total)
