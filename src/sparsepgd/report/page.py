"""The report: one HTML page that needs no other file and no network; its figures can also be written as files."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median_low
from typing import Any

from sparsepgd.analysis.summary import wilson
from sparsepgd.atomic import write
from sparsepgd.errors import counted
from sparsepgd.report import charts, classes, pictures
from sparsepgd.report.entries import Entry, entries_of, notices, nouns, short_digest, unbroken
from sparsepgd.report.style import MUTED, figure_style, inline_svg, plain, png, svg
from sparsepgd.runs.folders import dump, sha256
from sparsepgd.runs.records import Record

ABSENT = "-"
PAGE = "report.html"


def write_page(entries: Sequence[Entry], file: Path) -> Path:
    write(file, render(entries).encode())
    return file


def refresh_page(records: Mapping[Path, Record], file: Path) -> Path:
    """Write the page of the runs in these folders, unless `file` already shows these and no others."""
    shown = _listed(records.values())
    if not file.is_file() or f'name="runs" content="{shown}"' not in file.read_text(encoding="utf-8", errors="replace"):
        write_page(entries_of(records), file)
    return file


def _listed(records: Iterable[Record]) -> str:
    """The digests of the records, which the head of the page lists."""
    return " ".join(sha256(dump(record))[:16] for record in records)


def render(entries: Sequence[Entry]) -> str:
    """Everything that comes from data is escaped by the template; the script gets it as JSON and writes it as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sparsepgd.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": lambda share: f"{100 * share:.1f}",
        "count": lambda value: ABSENT if math.isnan(value) else f"{value:,.0f}",
        "duration": duration,
        "counted": counted,
    }
    script, (thing, point) = _asset("page.js"), nouns(entries)
    page: str = environment.get_template("page.html.j2").render(
        entries=entries,
        title=_title(entries),
        runs=_listed(entry.record for entry in entries),
        thing=thing,
        point=point,
        notices=notices(entries),
        drawings=list(draw_all(entries)),
        colours=charts.attack_colours(entries),
        rows_shown=pictures.MOST,
        together=list(_together(entries)),
        settings=list(_table([_flat(entry.record.configuration) for entry in entries])),
        versions=list(_table([entry.record.environment for entry in entries])),
        gallery=pictures.gallery(entries),
        style=_asset("page.css"),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return page


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _asset(name: str) -> str:
    return files("sparsepgd.report").joinpath("assets", name).read_text(encoding="utf-8")


def _title(entries: Sequence[Entry]) -> str:
    if len(entries) == 1:
        return f"{entries[0].model_name} under {entries[0].attack_name}"
    names = {word: {getattr(entry, f"{word}_name") for entry in entries} for word in ("model", "attack")}
    return " under ".join(next(iter(of)) if len(of) == 1 else f"{len(of)} {word}s" for word, of in names.items())


def _together(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """For each group of comparable runs, the robust accuracy against all of them together."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.comparison_key, []).append(entry)
    for group in groups.values():
        if len(group) > 1:
            left = unbroken([entry.record for entry in group])
            n = group[0].record.images
            letters = " + ".join(entry.letter for entry in group)
            low, high = wilson(left, n)
            yield {"letters": letters, "model": group[0].model_name, "robust": left / n, "low": low, "high": high}


def _table(columns: Sequence[dict[str, str]]) -> Iterator[tuple[str, list[str], bool]]:
    """(name, its value in each run, whether they differ)."""
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name, ABSENT) for column in columns]
        yield name, values, len(set(values)) > 1


def _flat(value: object, path: str = "") -> dict[str, str]:
    """``{"attack": {"steps": 60}}`` -> ``{"attack.steps": "60"}``; kernels and groups are shortened."""
    if isinstance(value, dict):
        parts = (_flat(each, f"{path}.{key}" if path else str(key)) for key, each in value.items())
        return {name: text for part in parts for name, text in part.items()}
    if isinstance(value, list) and path.endswith("kernel"):
        return {path: f"{len(value)}x{len(value[0])}, {''.join(value).count('1')} ones"}
    if isinstance(value, list) and path.endswith("pattern.sets"):
        return {path: f"{len(value)}, sha256 {short_digest(value)}"}
    return {path: ABSENT if value is None else str(value)}


@dataclass(frozen=True, eq=False)
class Drawing:
    name: str  # of the file
    kind: str  # its section of the page
    title: str
    words: str  # caption, also read by screen readers
    entry: Entry | None  # None: of all runs
    figure: Any

    def inline(self) -> str:
        return inline_svg(self.figure, self.name)


def draw_all(entries: Sequence[Entry]) -> Iterator[Drawing]:
    with figure_style():
        yield from _of_all(entries)
        for entry in entries:
            yield from _of_one(entry, entries)


def write_figures(entries: Sequence[Entry], folder: Path) -> list[Path]:
    """Write every figure as SVG and PNG. A figure of a single run gets the label of the run as its title."""
    files = []
    for drawing in draw_all(entries):
        entry = drawing.entry or (entries[0] if len(entries) == 1 else None)
        if entry is not None:
            room = round(11 * drawing.figure.get_figwidth())  # characters
            drawing.figure.suptitle(plain(entry.label, room), x=0.01, ha="left", fontsize=10, color=MUTED)
        for kind, content in (("svg", svg(drawing.figure)), ("png", png(drawing.figure))):
            files.append(folder / f"{drawing.name}.{kind}")
            write(files[-1], content)
    return files


def _of_all(entries: Sequence[Entry]) -> Iterator[Drawing]:
    thing, _ = nouns(entries)
    words, title = f"Robust accuracy, the share that withstood: {_each(entries, _robust)}.", f"Outcome of the {thing}s"
    yield Drawing("outcomes", "outcomes", title, words, None, charts.outcomes(entries))
    timed = [entry for entry in entries if not entry.over_k]  # a search over k adds up the steps of many attacks
    if timed:
        band = f"At the end: {_each(timed, _robust)}. Shaded: 95 % interval; dotted: accuracy on clean {thing}s."
        yield Drawing("over-steps", "curves", "Against steps", band, None, charts.over_steps(timed))
        yield Drawing("over-queries", "curves", "Against queries", band, None, charts.over_queries(timed))
    # k pixels and k patches cannot share an axis, and a single k is not a curve
    first = next((entry for entry in entries if entry.smallest_k), entries[0])
    ladder = [entry for entry in entries if entry.k is not None and entry.threat == first.threat]
    if ladder and (first.smallest_k or len({entry.k for entry in ladder}) > 1):
        words = f"Shading and bars: 95 % interval. k = 0 is the accuracy on clean {thing}s."
        yield Drawing("over-k", "curves", "Against k", words, None, charts.over_k(ladder))
    if timed and any(row.fooled for entry in timed for row in entry.record.rows):
        words = f"Evaluations until success; median: {_each(timed, _median)}."
        yield Drawing("steps-needed", "curves", "Steps needed", words, None, charts.steps_needed(timed))
    if least := [entry for entry in ladder if entry.least_k]:
        words = (
            f"Smallest k found for each fooled {thing}, an upper bound on the true minimum; median: "
            f"{_each(least, _median_k)}."
        )
        yield Drawing("smallest-k", "curves", "Smallest k", words, None, charts.smallest_k(least))
    if moved := [entry for entry in entries if len(entry.sizes)]:
        words = f"All changed values of the attacked {thing}s. {_each(moved, _moved, '; ')}."
        yield Drawing("magnitudes", "curves", "Size of the changes", words, None, charts.magnitudes(moved))


def _of_one(entry: Entry, entries: Sequence[Entry]) -> Iterator[Drawing]:
    several = len(entries) > 1
    end = f"-{entry.letter}" if several else ""
    thing, point = nouns([entry])
    if entry.members and all(member.pass_range for member in entry.members):
        words = (
            "Each attack runs on the survivors of those before it and has its own axis. In the corner: robust accuracy "
            "after it. Shaded: 95 % interval."
        )
        figure = charts.over_cascade(entry, charts.attack_colours(entries))
        yield Drawing(f"cascade{end}", "cascade", "Against passes, attack by attack", words, entry, figure)
    words = f"Clean and robust accuracy by class; in brackets, the number of {thing}s."
    yield Drawing(f"per-class{end}", "classes", "Accuracy by class", words, entry, classes.per_class(entry))
    words = f"Share of the attacked {thing}s in which a {point} was changed, whether or not that fooled the model."
    if entry.pictures:
        yield Drawing(f"heat-map{end}", "classes", "Where pixels are changed", words, entry, classes.heat_map(entry))
    else:
        figure = classes.changed_features(entry)
        yield Drawing(f"changed{end}", "classes", f"Which {point}s are changed", words, entry, figure)
    words = f"Numbers count {thing}s; shades show shares of a row."
    figure = classes.confusion(entry, stacked=several)
    yield Drawing(f"confusion{end}", "confusion", "Confusion before and after", words, entry, figure)


def _each(entries: Sequence[Entry], words: Callable[[Entry], str], between: str = ", ") -> str:
    if len(entries) == 1:
        return words(entries[0])
    return between.join(f"{entry.letter} {words(entry)}" for entry in entries)


def _robust(entry: Entry) -> str:
    return f"{entry.record.robust_accuracy:.1%}"


def _median(entry: Entry) -> str:
    steps = entry.record.summary().median_steps
    return "none" if math.isnan(steps) else f"{steps + 1:.0f}"


def _median_k(entry: Entry) -> str:
    return f"{median_low(entry.least_k)}"


def _moved(entry: Entry) -> str:
    """``97.3 % at the limit (0 or 1), mean size 0.61, 20 pixels in the median image``."""
    groups = [row.groups for row, changed in zip(entry.record.rows, entry.changed, strict=True) if changed.any()]
    ends, (thing, _) = "0 or 1" if entry.eps >= 1 else "0, 1 or eps", nouns([entry])
    size = f"mean size {float(entry.sizes.mean()):.2g}"
    groups_changed = counted(median_low(groups), entry.unit)
    return f"{entry.extreme:.1%} at the limit ({ends}), {size}, {groups_changed} in the median {thing}"
