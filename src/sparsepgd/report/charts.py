"""Charts of one or several runs: what became of the images, and how soon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sparsepgd.analysis.curves import accuracy_over_k, accuracy_over_queries, accuracy_over_steps
from sparsepgd.analysis.summary import wilson
from sparsepgd.report.entries import Entry, nouns
from sparsepgd.report.style import INK, LINE, MUTED, PAPER, SERIES, colour, dash, new_figure, plain
from sparsepgd.runs.records import Record

WIDTH, HEIGHT = 6.0, 3.7
LINE_HEIGHT = 0.2  # of a legend
BINS = 24
WRONG = "wrong from the start"
Curve = Callable[[Record], tuple[Tensor, Tensor]]


def outcomes(entries: Sequence[Entry]) -> Any:
    """One bar a run: withstood, broken by which attack, wrong from the start."""
    causes = {"withstood": "withstood", "wrong": WRONG}
    counts = [
        Counter(causes.get(entry.outcome(row)) or f"broken by {row.broken_by}" for row in entry.record.rows)
        for entry in entries
    ]
    names = ["withstood", *sorted({name for each in counts for name in each} - {"withstood", WRONG}), WRONG]
    images = np.array([entry.record.images for entry in entries])
    figure = new_figure(WIDTH * 2, 1.1 + 0.5 * len(entries))
    axis = figure.add_subplot()
    left = np.zeros(len(entries))
    others = len(SERIES) - 1  # blue for what withstood, grey for what was wrong, the others, later hatched, for attacks
    attacks = [{"color": colour(1 + i % others), "hatch": None if i < others else "///"} for i in range(len(names) - 2)]
    fills: list[dict[str, Any]] = [{"color": colour(0)}, *attacks, {"color": LINE}]
    for i, (name, fill) in enumerate(zip(names, fills, strict=True)):
        width = 100 * np.array([each[name] for each in counts]) / images
        axis.barh(range(len(entries)), width, 0.62, left, edgecolor=PAPER, lw=1.2, label=plain(name), **fill)
        ink = INK if name == WRONG else PAPER if i < 3 else "black"  # what can be read on that colour
        for y in np.flatnonzero(width >= 6):
            axis.text(left[y] + width[y] / 2, y, f"{width[y]:.0f}%", ha="center", va="center", color=ink, weight="bold")
        left = left + width
    axis.set(xlim=(0, 100), xlabel=f"share of all {nouns(entries)[0]}s, %", yticks=range(len(entries)))
    axis.set_yticklabels([_name(entry, entries) for entry in entries], color=INK)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    _legend(axis, wide=True)
    return figure


def over_steps(entries: Sequence[Entry]) -> Any:
    return _over(entries, accuracy_over_steps, f"evaluations for each {nouns(entries)[0]} (steps + 1)", 1)


def over_queries(entries: Sequence[Entry]) -> Any:
    return _over(entries, accuracy_over_queries, f"queries (forward passes) for each {nouns(entries)[0]}", 0)


def over_k(entries: Sequence[Entry]) -> Any:
    """A line where the smallest k was searched, else a point with its interval."""
    figure, axis = _axes()
    for entry in entries:
        style = {"color": colour(entry.position), "label": _name(entry, entries)}
        if entry.k is not None and entry.over_k:
            k, accuracy = accuracy_over_k(entry.record, entry.k)
            _curve(axis, k.numpy(), accuracy.numpy(), entry, style)
        elif entry.k is not None:
            value, *ends = (100 * share for share in (entry.record.robust_accuracy, *entry.record.robust_interval))
            reach = [[max(value - ends[0], 0)], [max(ends[1] - value, 0)]]
            form: Any = {"fmt": "o", "ms": 6, "capsize": 4, "elinewidth": 1.6, "clip_on": False, "zorder": 4}
            axis.errorbar([entry.k], [value], reach, **form, **style)
    largest = max(entry.k for entry in entries if entry.k is not None)
    axis.set(xlim=(0, largest * 1.03), xlabel="k, groups that may change")
    axis.locator_params(axis="x", integer=True)
    return _percent(figure, axis, len(entries))


def steps_needed(entries: Sequence[Entry]) -> Any:
    """How many evaluations the successes took; bins are whole numbers, evenly wide on a logarithmic axis."""
    from matplotlib.ticker import MaxNLocator

    entries = [entry for entry in entries if any(row.fooled for row in entry.record.rows)]
    taken = [[row.steps + 1 for row in entry.record.rows if row.fooled] for entry in entries]
    most = max(9, *map(max, taken))
    edges = np.unique(np.round(np.logspace(0, np.log10(most + 1), BINS + 1)).astype(int))
    figure, axis = _axes()
    for entry, values in zip(entries, taken, strict=True):
        counts, alone = np.histogram(values, edges)[0], len(entries) == 1
        style = {"color": colour(entry.position), "ls": dash(entry.position), "lw": 0 if alone else 2}
        axis.stairs(counts, edges, fill=alone, label=_name(entry, entries), **style)
    axis.set(xscale="log", xlim=(1, edges[-1]), xlabel="evaluations until success", ylabel=f"{nouns(entries)[0]}s")
    axis.set_ylim(bottom=0)
    _whole_numbers(axis)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if len(entries) > 1:
        _legend(axis)
    return figure


def _axes() -> tuple[Any, Any]:
    figure = new_figure(WIDTH, HEIGHT)
    return figure, figure.add_subplot()


def _over(entries: Sequence[Entry], curve: Curve, label: str, shift: int) -> Any:
    (figure, axis), most = _axes(), 9
    for entry in entries:
        count, accuracy = curve(entry.record)
        xs = np.maximum(count.numpy() + shift, 1)
        most = max(most, int(xs[-1]))
        _curve(axis, xs, accuracy.numpy(), entry, {"color": colour(entry.position), "label": _name(entry, entries)})
        clean = 100 * entry.record.clean_accuracy
        axis.axhline(clean, color=colour(entry.position) if len(entries) > 1 else MUTED, ls=":", lw=1)
        if len(entries) == 1:
            above = clean < 93  # else there is no room
            where = {"ha": "right", "va": "bottom" if above else "top", "transform": axis.get_yaxis_transform()}
            axis.text(0.99, clean + (1.5 if above else -1.5), f"clean {clean:.1f}%", color=MUTED, **where)
    axis.set(xscale="log", xlabel=label, xlim=(1, 1.15 * most))
    _whole_numbers(axis)
    return _percent(figure, axis, len(entries))


def _curve(axis: Any, xs: Any, accuracy: Any, entry: Entry, style: dict[str, Any]) -> None:
    """A falling line and, lighter, its 95 % interval."""
    n = entry.record.images
    low, high = 100 * np.array([wilson(round(value * n), n) for value in accuracy.tolist()]).T
    axis.fill_between(xs, low, high, step="post", color=style["color"], alpha=0.14, lw=0)
    axis.step(xs, 100 * accuracy, where="post", ls=dash(entry.position), **style)
    axis.plot(xs[-1:], 100 * accuracy[-1:], "o", ms=5, color=style["color"], clip_on=False, zorder=4)


def _percent(figure: Any, axis: Any, count: int) -> Any:
    axis.set(ylim=(0, 100), ylabel="robust accuracy, %")
    axis.set_yticks(range(0, 101, 20))
    if count > 1:
        _legend(axis)
    return figure


def _legend(axis: Any, wide: bool = False) -> None:
    """Above the axes, in as many columns as there is room for; for many lines the figure grows, not the axes shrink."""
    names = axis.get_legend_handles_labels()[1]
    columns = max(1, (150 if wide else 70) // (max(map(len, names)) + 6))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=columns, columnspacing=1.4, labelcolor=INK)
    lines = -(-len(names) // columns)
    axis.figure.set_figheight(axis.figure.get_figheight() + LINE_HEIGHT * max(lines - 2, 0))


def _whole_numbers(axis: Any) -> None:
    """1, 10, 100 as they are written by hand, and 2 and 5 between them where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    short = axis.get_xlim()[1] < 300
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _name(entry: Entry, entries: Sequence[Entry]) -> str:
    return plain(f"{entry.letter}  {entry.label}" if len(entries) > 1 else entry.label, 64)
