"""Charts of one or several runs: the outcomes of the images, and the steps, queries and k until success."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sparsepgd.analysis.curves import accuracy_over_k, accuracy_over_queries, accuracy_over_steps
from sparsepgd.analysis.summary import wilson
from sparsepgd.report.entries import Entry, nouns
from sparsepgd.report.members import Member
from sparsepgd.report.style import INK, LINE, MUTED, PAPER, SERIES, colour, dash, hint, new_figure, plain
from sparsepgd.runs.records import Record

WIDTH, HEIGHT = 6.0, 3.7
LINE_HEIGHT = 0.2  # of a legend
BINS = 24
SIZES = 20  # bins of magnitudes
WRONG = "misclassified clean"
Curve = Callable[[Record], tuple[Tensor, Tensor]]


def attack_colours(entries: Sequence[Entry]) -> dict[str, int]:
    """The colour number of each attack, the same in all figures; members of cascades come first, in their order."""
    members = [member.name for entry in entries for member in entry.members]
    others = {row.broken_by for entry in entries for row in entry.record.rows if row.broken_by} - set(members)
    free = len(SERIES) - 1  # blue is for robust images
    return {name: 1 + i % free for i, name in enumerate(dict.fromkeys([*members, *sorted(others)]))}


def outcomes(entries: Sequence[Entry]) -> Any:
    """One bar per run: the shares of robust images, those fooled by each attack, and those misclassified when clean."""
    counts = [Counter(row.broken_by or entry.outcome(row) for row in entry.record.rows) for entry in entries]
    attacks = {name: number for name, number in attack_colours(entries).items() if any(each[name] for each in counts)}
    images = np.array([entry.record.images for entry in entries])
    figure = new_figure(WIDTH * 2, 1.1 + 0.5 * len(entries))
    axis = figure.add_subplot()
    left, used = np.zeros(len(entries)), set[int]()
    for name, number in {"withstood": 0, **attacks, "wrong": None}.items():
        fill = {"color": LINE if number is None else colour(number), "hatch": "///" if number in used else None}
        used |= set() if number is None else {number}
        words = {"withstood": "withstood", "wrong": WRONG}.get(name, f"broken by {name}")
        width = 100 * np.array([each[name] for each in counts]) / images
        axis.barh(range(len(entries)), width, 0.62, left, edgecolor=PAPER, lw=1.2, label=plain(words), **fill)
        ink = INK if number is None else PAPER if number < 3 else "black"  # readable on that colour
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


def over_cascade(entry: Entry, colours: Mapping[str, int]) -> Any:
    """One curve across all members, each with its own logarithmic axis of passes on the survivors of those before."""
    figure = new_figure(WIDTH * 2, HEIGHT)
    figure.get_layout_engine().set(w_pad=0, wspace=0)
    axes = figure.subplots(1, len(entry.members), sharey=True, squeeze=False)[0]
    n, clean = entry.record.images, entry.record.clean_accuracy
    for axis, member in zip(axes, entry.members, strict=True):
        assert member.pass_range is not None
        start, stop = member.pass_range
        edges = (0.8, 1.3 * (stop - start))  # room for the first and last number
        xs = np.array([edges[0], *member.own_passes, edges[1]])
        left = np.array([member.given - i for i in (*range(member.broken + 1), member.broken)]) / n
        style = {"color": colour(colours[member.name]), "ls": "-", "gid": hint(_in_words(member))}
        _curve(axis, xs, left, entry, style)
        axis.axhline(100 * clean, color=MUTED, ls=":", lw=1)
        axis.set_title(plain(member.name, 90 // len(axes)), color=style["color"])
        axis.text(0.97, 0.04, f"{100 * member.robust_accuracy:.1f}%", ha="right", transform=axis.transAxes)
        axis.set(xscale="log", xlim=edges)
        axis.spines["left"].set_visible(True)
        _whole_numbers(axis)
    _say_clean(axes[-1], 100 * clean)
    figure.supxlabel(f"passes (forward and backward) of each attack on an {nouns([entry])[0]}", fontsize=9, color=MUTED)
    return _percent(figure, axes[0], 1)


def _in_words(member: Member) -> str:
    left = f"{100 * member.robust_accuracy:.1f} % robust accuracy after it"
    return f"{member.name} broke {member.broken} of {member.given}; {left}"


def over_steps(entries: Sequence[Entry]) -> Any:
    return _over(entries, accuracy_over_steps, f"evaluations for each {nouns(entries)[0]} (steps + 1)", 1)


def over_queries(entries: Sequence[Entry]) -> Any:
    return _over(entries, accuracy_over_queries, f"queries (forward passes) for each {nouns(entries)[0]}", 0)


def over_k(entries: Sequence[Entry]) -> Any:
    """A curve for each run that searched for the smallest k, a point with its interval for the others."""
    figure, axis = _axes()
    for entry in entries:
        style = {"color": colour(entry.position), "label": _name(entry, entries)}
        if entry.k is not None and entry.smallest_k:
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
    """A histogram of the evaluations until success; the edges are integers, evenly spaced on a logarithmic axis."""
    from matplotlib.ticker import MaxNLocator

    entries = [entry for entry in entries if any(row.fooled for row in entry.record.rows)]
    taken = {entry.position: [row.steps + 1 for row in entry.record.rows if row.fooled] for entry in entries}
    most = max(9, *map(max, taken.values()))
    edges = np.unique(np.round(np.logspace(0, np.log10(most + 1), BINS + 1)).astype(int))
    figure, axis = _histograms(entries, lambda entry: taken[entry.position], edges)
    axis.set(xscale="log", xlim=(1, edges[-1]), xlabel="evaluations until success", ylabel=f"{nouns(entries)[0]}s")
    _whole_numbers(axis)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return figure


def smallest_k(entries: Sequence[Entry]) -> Any:
    """A histogram of the smallest k found for each image; the bins contain whole numbers."""
    most = max(entry.k or 1 for entry in entries)
    step = -(-most // 40)
    edges = np.arange(0.5, most + step, step)  # the last bin contains `most`
    figure, axis = _histograms(entries, lambda entry: entry.least_k, edges)
    axis.set(xlim=(edges[0], edges[-1]), xlabel="smallest k that was found", ylabel=f"{nouns(entries)[0]}s")
    axis.locator_params(integer=True)
    return figure


def magnitudes(entries: Sequence[Entry]) -> Any:
    """A histogram of the sizes of the changes."""
    edges = np.linspace(0, max(entry.eps for entry in entries), SIZES + 1)
    figure, axis = _histograms(entries, lambda entry: entry.sizes.numpy().clip(0, edges[-1]), edges, share=True)
    axis.set(xlim=(0, edges[-1]), xlabel="size of the change of a value", ylabel="changed values, %")
    return figure


def _histograms(
    entries: Sequence[Entry], values: Callable[[Entry], Any], edges: Any, share: bool = False
) -> tuple[Any, Any]:
    """One run as bars, several as outlines; in percent of each run if `share`."""
    figure, axis = _axes()
    alone = len(entries) == 1
    for entry in entries:
        counts = np.histogram(values(entry), edges)[0]
        counts = 100 * counts / max(counts.sum(), 1) if share else counts
        style = {"color": colour(entry.position), "ls": dash(entry.position), "lw": 0 if alone else 2}
        axis.stairs(counts, edges, fill=alone, label=_name(entry, entries), **style)
    axis.set_ylim(bottom=0)
    if not alone:
        _legend(axis)
    return figure, axis


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
            _say_clean(axis, clean)
    axis.set(xscale="log", xlabel=label, xlim=(1, 1.15 * most))
    _whole_numbers(axis)
    return _percent(figure, axis, len(entries))


def _say_clean(axis: Any, clean: float) -> None:
    above = clean < 93  # else there is no room
    where = {"ha": "right", "va": "bottom" if above else "top", "transform": axis.get_yaxis_transform()}
    axis.text(0.98, clean + (1.5 if above else -1.5), f"clean {clean:.1f}%", color=MUTED, **where)


def _curve(axis: Any, xs: Any, accuracy: Any, entry: Entry, style: dict[str, Any]) -> None:
    """A step curve with its 95 % interval shaded."""
    n = entry.record.images
    low, high = 100 * np.array([wilson(round(value * n), n) for value in accuracy.tolist()]).T
    axis.fill_between(xs, low, high, step="post", color=style["color"], alpha=0.14, lw=0)
    axis.step(xs, 100 * accuracy, where="post", **{"ls": dash(entry.position), **style})
    axis.plot(xs[-1:], 100 * accuracy[-1:], "o", ms=5, color=style["color"], clip_on=False, zorder=4)


def _percent(figure: Any, axis: Any, count: int) -> Any:
    axis.set(ylim=(0, 100), ylabel="robust accuracy, %")
    axis.set_yticks(range(0, 101, 20))
    if count > 1:
        _legend(axis)
    return figure


def _legend(axis: Any, wide: bool = False) -> None:
    """A legend above the axes, in as many columns as fit. The figure grows with its lines; the axes do not shrink."""
    names = axis.get_legend_handles_labels()[1]
    columns = max(1, (150 if wide else 70) // (max(map(len, names)) + 6))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=columns, columnspacing=1.4, labelcolor=INK)
    lines = -(-len(names) // columns)
    axis.figure.set_figheight(axis.figure.get_figheight() + LINE_HEIGHT * max(lines - 2, 0))


def _whole_numbers(axis: Any) -> None:
    """Label the axis with 1, 10, 100 in plain notation, and with 2 and 5 between them if there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    short = axis.get_xlim()[1] < 300
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _name(entry: Entry, entries: Sequence[Entry]) -> str:
    return plain(f"{entry.letter}  {entry.label}" if len(entries) > 1 else entry.label, 64)
