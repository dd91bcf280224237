"""Figures of one run by class, and by pixel or feature."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsepgd.report.entries import Entry, nouns
from sparsepgd.report.style import INK, LINE, MUTED, PAPER, SERIES, colour, new_figure, plain, shades

MOST = 20  # classes that are shown individually; the others are combined
BARS = 512  # most bars; if there are more features, neighbours share a bar
NUMBERS = 12  # most classes for which the matrix has room for numbers
SIDE = 5.4  # inches, of a matrix with its class names
OTHERS = -1
Counts = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Classes:
    """The classes that are shown, with their counts of images."""

    numbers: tuple[int, ...]  # OTHERS stands for all that are not shown
    names: tuple[str, ...]
    before: Counts  # (classes, classes), true by predicted
    after: Counts

    def short_names(self, most: int) -> list[str]:
        """Names of at most `most` characters; names that would be equal are preceded by the class number."""
        alike = Counter(plain(name, most) for name in self.names)
        pairs = zip(self.numbers, self.names, strict=True)
        return [plain(name if alike[plain(name, most)] == 1 else f"{number} {name}", most) for number, name in pairs]


def count_classes(entry: Entry) -> Classes:
    """Count the classes that occur as label or prediction; if there are too many, those with the most images."""
    rows = entry.record.rows
    seen = Counter(row.label for row in rows)
    met = {number for row in rows for number in (row.label, row.clean_prediction, row.prediction)}
    numbers = sorted(sorted(met, key=lambda number: (-seen[number], number))[:MOST])
    if len(met) > MOST:
        numbers.append(OTHERS)
    position = {number: numbers.index(number) if number in numbers else len(numbers) - 1 for number in met}
    before, after = (np.zeros((len(numbers), len(numbers)), dtype=np.int64) for _ in range(2))
    for row in rows:
        before[position[row.label], position[row.clean_prediction]] += 1
        after[position[row.label], position[row.prediction]] += 1
    names = tuple("others" if number == OTHERS else entry.class_name(number) for number in numbers)
    return Classes(tuple(numbers), names, before, after)


def per_class(entry: Entry) -> Any:
    """Clean and robust accuracy, one line per class."""
    total, clean, robust = (Counter[int]() for _ in range(3))
    shown = count_classes(entry)
    for row in entry.record.rows:
        number = row.label if row.label in shown.numbers else OTHERS
        total[number] += 1
        clean[number] += row.clean_correct
        robust[number] += row.robust
    names = {number: name for number, name in zip(shown.numbers, shown.short_names(18), strict=True) if total[number]}
    figure = new_figure(6.0, 1.25 + 0.28 * len(names))
    axis = figure.add_subplot()
    y = range(len(names))
    left, right = ([100 * hits[number] / total[number] for number in names] for hits in (robust, clean))
    axis.hlines(y, left, right, color=LINE, lw=5)
    axis.plot(right, y, "o", ms=8, mfc=PAPER, mec=colour(0), mew=2, label="clean", clip_on=False, zorder=3)
    axis.plot(left, y, "D", ms=7, color=SERIES[1], label="robust", clip_on=False, zorder=4)
    axis.set(xlim=(-3, 103), xlabel="accuracy, %", yticks=y, ylim=(len(names) - 0.4, -0.6))
    axis.set_yticklabels([f"{name}  ({total[number]})" for number, name in names.items()], color=INK)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, columnspacing=1.4, labelcolor=INK)
    return figure


def confusion(entry: Entry, stacked: bool) -> Any:
    """True against predicted class, on clean and on adversarial images; shades are shares of a row."""
    shown = count_classes(entry)
    figure = new_figure(SIDE + 0.3, 2 * SIDE) if stacked else new_figure(2 * SIDE + 0.4, SIDE + 0.3)
    for i, (title, counts) in enumerate((("clean", shown.before), ("adversarial", shown.after))):
        axis = figure.add_subplot(*((2, 1) if stacked else (1, 2)), i + 1)
        share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        axis.imshow(share, cmap=shades(SERIES[i]), vmin=0, vmax=1, interpolation="none")
        axis.set_title(f"{title} {nouns([entry])[0]}s")
        ticks = range(len(shown.names))
        names = shown.short_names(14)
        axis.set(xticks=ticks, xlabel="predicted", ylabel="true" if stacked or not i else "")
        axis.set_xticklabels(names, rotation=55, ha="right", rotation_mode="anchor")
        axis.set_yticks(ticks, names if stacked or not i else [])
        axis.grid(visible=False)
        axis.spines[:].set_visible(True)
        for (row, column), count in np.ndenumerate(counts) if len(names) <= NUMBERS else ():
            if count:
                ink = "white" if share[row, column] > 0.55 else INK
                axis.text(column, row, str(count), ha="center", va="center", fontsize=8, color=ink)
    return figure


def heat_map(entry: Entry) -> Any:
    """The share of the attacked images in which each pixel was changed."""
    share = _share_changed(entry)
    height, width = share.shape
    figure = new_figure(5.0, 0.6 + 3.4 * min(height / width, 1.6))
    axis = figure.add_subplot()
    top = max(float(share.max()), 1e-9)
    shown = axis.imshow(share, cmap=shades(SERIES[1]), vmin=0, vmax=top, interpolation="none")
    axis.grid(visible=False)
    axis.spines[:].set_visible(True)
    axis.set(xticks=[0, width - 1], yticks=[0, height - 1])
    bar = figure.colorbar(shown, ax=axis, fraction=0.05, pad=0.03)
    bar.set_label("images that change the pixel, %", color=MUTED)
    bar.outline.set_edgecolor(LINE)
    return figure


def changed_features(entry: Entry) -> Any:
    """The same for inputs that are not images: one bar per feature, or per place of a signal."""
    share, (thing, point) = _share_changed(entry), nouns([entry])
    edges = np.unique(np.linspace(0, len(share), min(len(share), BARS) + 1).astype(int))
    figure = new_figure(5.0, 3.7)
    axis = figure.add_subplot()
    axis.stairs(np.maximum.reduceat(share, edges[:-1]), edges - 0.5, fill=True, color=SERIES[1])
    axis.set(xlabel=f"number of the {point}", xlim=(-0.5, len(share) - 0.5))
    axis.set_ylabel(f"{thing}s that change it, %")
    axis.set_ylim(bottom=0)
    axis.grid(axis="x", visible=False)
    axis.locator_params(axis="x", integer=True)
    return figure


def _share_changed(entry: Entry) -> Any:
    """For each pixel or feature, the percentage of the attacked inputs in which it was changed."""
    searched = entry.changed[entry.searched]
    return 100 * searched.double().mean(0).numpy() if len(searched) else np.zeros(entry.changed.shape[1:])
