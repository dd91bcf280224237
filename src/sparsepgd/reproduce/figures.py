"""Figures of the recipes, with the look of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsepgd.report.style import INK, colour, dash, look, new_figure, plain

WIDTH, HEIGHT = 6.0, 3.7


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    words: tuple[str, str],
    *,
    log: bool = False,
    spread: Mapping[str, Sequence[float]] | None = None,
    printed: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    top: float | None = 100,
) -> Any:
    """A line for each name; `spread`: half the width of a band; `printed`: points of the paper, as crosses."""
    with look():
        figure = new_figure(WIDTH, HEIGHT)
        axis = figure.add_subplot()
        for place, (name, points) in enumerate(series.items()):
            across, up = ([point[side] for point in points] for side in (0, 1))
            own: Any = {"color": colour(place), "ls": dash(place), "marker": "o", "ms": 4}
            axis.plot(across, up, label=plain(name), **own)
            if spread is not None:
                low, high = ([value + sign * half for value, half in _paired(up, spread[name])] for sign in (-1, 1))
                axis.fill_between(across, low, high, color=colour(place), alpha=0.14, lw=0)
            for x, y in (printed or {}).get(name, ()):
                axis.plot([x], [y], "x", color=colour(place), ms=8, mew=2)
        axis.set(xlabel=words[0], ylabel=words[1], xscale="log" if log else "linear")
        if log:
            ticks = sorted({x for points in series.values() for x, _ in points})
            axis.set_xticks(ticks, [f"{x:,.0f}" for x in ticks])
            axis.minorticks_off()
        if top is not None:
            axis.set_ylim(0, top * 1.02)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=2, labelcolor=INK)
    return figure


def _paired(up: Sequence[float], half: Sequence[float]) -> Any:
    return zip(up, half, strict=True)
