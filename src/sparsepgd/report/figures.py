"""Which figures there are: the same for the page and as files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsepgd.atomic import write
from sparsepgd.report import charts, classes
from sparsepgd.report.entries import Entry, nouns
from sparsepgd.report.style import MUTED, figure_style, inline_svg, plain, png, svg


@dataclass(frozen=True, eq=False)
class Drawing:
    name: str  # of the file
    kind: str  # where on the page it belongs
    title: str
    words: str  # what is to be seen, for those who look and for those who cannot
    entry: Entry | None  # None: of all runs
    figure: Any

    def inline(self) -> str:
        return inline_svg(self.figure, self.name)


def draw_all(entries: Sequence[Entry]) -> Iterator[Drawing]:
    with figure_style():
        yield from _of_all(entries)
        for entry in entries:
            yield from _of_one(entry, len(entries) > 1)


def write_figures(entries: Sequence[Entry], folder: Path) -> list[Path]:
    """Every figure as SVG and as PNG. Without the page around it, a figure of one run says which."""
    files = []
    for drawing in draw_all(entries):
        entry = drawing.entry or (entries[0] if len(entries) == 1 else None)
        if entry is not None:
            room = round(11 * drawing.figure.get_figwidth())  # letters
            drawing.figure.suptitle(plain(entry.label, room), x=0.01, ha="left", fontsize=10, color=MUTED)
        for kind, content in (("svg", svg(drawing.figure)), ("png", png(drawing.figure))):
            files.append(folder / f"{drawing.name}.{kind}")
            write(files[-1], content)
    return files


def _of_all(entries: Sequence[Entry]) -> Iterator[Drawing]:
    thing, _ = nouns(entries)
    words, title = f"Robust accuracy is what withstood: {_each(entries, _robust)}.", f"What became of the {thing}s"
    yield Drawing("outcomes", "outcomes", title, words, None, charts.outcomes(entries))
    timed = [entry for entry in entries if not entry.over_k]  # a search over k adds up the steps of many attacks
    if timed:
        band = f"At the end: {_each(timed, _robust)}. Shaded: 95 % interval; dotted: accuracy on clean {thing}s."
        yield Drawing("over-steps", "curves", "Against steps", band, None, charts.over_steps(timed))
        yield Drawing("over-queries", "curves", "Against queries", band, None, charts.over_queries(timed))
    # k pixels and k patches have no axis in common, and one k is no curve
    first = next((entry for entry in entries if entry.over_k), entries[0])
    ladder = [entry for entry in entries if entry.k is not None and entry.threat == first.threat]
    if ladder and (first.over_k or len({entry.k for entry in ladder}) > 1):
        words = f"Shaded or barred: 95 % interval. k = 0 is the accuracy on clean {thing}s."
        yield Drawing("over-k", "curves", "Against k", words, None, charts.over_k(ladder))
    if timed and any(row.fooled for entry in timed for row in entry.record.rows):
        words = f"Evaluations that the successes took; median: {_each(timed, _median)}."
        yield Drawing("steps-needed", "curves", "Steps needed", words, None, charts.steps_needed(timed))


def _of_one(entry: Entry, several: bool) -> Iterator[Drawing]:
    end = f"-{entry.letter}" if several else ""
    thing, point = nouns([entry])
    words = f"Accuracy on clean {thing}s and what the attack leaves of it; in brackets, the number of {thing}s."
    yield Drawing(f"per-class{end}", "classes", "Accuracy by class", words, entry, classes.per_class(entry))
    words = f"Share of the attacked {thing}s in which a {point} was changed, whether or not that fooled the model."
    if entry.pictures:
        yield Drawing(f"heat-map{end}", "classes", "Where pixels are changed", words, entry, classes.heat_map(entry))
    else:
        figure = classes.changed_features(entry)
        yield Drawing(f"changed{end}", "classes", f"Which {point}s are changed", words, entry, figure)
    words = f"Numbers are {thing}s; shades are shares of a row."
    figure = classes.confusion(entry, stacked=several)
    yield Drawing(f"confusion{end}", "confusion", "Confusion before and after", words, entry, figure)


def _each(entries: Sequence[Entry], words: Callable[[Entry], str]) -> str:
    if len(entries) == 1:
        return words(entries[0])
    return ", ".join(f"{entry.letter} {words(entry)}" for entry in entries)


def _robust(entry: Entry) -> str:
    return f"{entry.record.robust_accuracy:.1%}"


def _median(entry: Entry) -> str:
    steps = entry.record.summary().median_steps
    return "none" if math.isnan(steps) else f"{steps + 1:.0f}"
