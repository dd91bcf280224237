"""Tables for the terminal; all fit 80 columns, and most fit 60."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table

from sparsepgd.analysis.curves import accuracy_over_k
from sparsepgd.analysis.summary import Line, Summary
from sparsepgd.errors import counted
from sparsepgd.report.entries import unbroken
from sparsepgd.runs.records import Record
from sparsepgd.zoo import Card

WIDEST = 30  # characters of the name of a model; a longer one takes several lines


class Boxed(Table):
    """A table with lines around its cells, which it leaves out in a terminal of fewer than 80 columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < 80:
            self.box, self.padding, self.pad_edge, self.show_edge = box.SIMPLE, (0, 0), False, False
        yield from super().__rich_console__(console, options)


def how(precision: str, compiled: bool) -> str:
    return f"{precision}, compiled" if compiled else precision


def accuracies(rows: list[tuple[str, Summary]], title: str, caption: str) -> Table:
    table = _named(("model", "clean", "robust", "95 %", "changed", "steps", "time"), title, caption, min_width=12)
    for name, row in rows:
        table.add_row(
            name,
            f"{row.clean_accuracy:.1%}",
            f"{row.robust_accuracy:.1%}",
            f"{100 * row.interval[0]:.1f}-{row.interval[1]:.1%}",
            "-" if math.isnan(row.median_l0) else f"{row.median_l0:.0f}",
            "-" if math.isnan(row.median_steps) else f"{row.median_steps:.0f}",
            f"{row.seconds:.1f} s",
        )
    return table


def over_k(rows: Sequence[tuple[str, Record]], k_max: int, title: str) -> Table:
    """Robust accuracy at up to nine values of k, from runs that searched for the smallest k."""
    shown = sorted({round(k_max * part / 8) for part in range(9)})
    table = _named(("%, at k =", *map(str, shown)), title, min_width=12)
    for name, record in rows:
        accuracy = accuracy_over_k(record, k_max)[1]
        table.add_row(name, *(f"{100 * float(accuracy[k]):.0f}" for k in shown))
    return table


def over_seeds(rows: Sequence[tuple[str, Sequence[Record]]], title: str) -> Table:
    """Mean and spread over seeds, and the robust accuracy against all seeds together."""
    table = _named(("model", "mean", "sd", "least", "most", "all seeds together"), title, min_width=12)
    for name, records in rows:
        robust = [record.robust_accuracy for record in records]
        values = (statistics.mean(robust), statistics.stdev(robust), min(robust), max(robust))
        table.add_row(name, *(f"{value:.1%}" for value in values), f"{unbroken(records) / records[0].images:.1%}")
    return table


def compared(lines: Sequence[Line], title: str, caption: str) -> Table:
    """One attack per row, the strongest first."""
    table = _named(("attack", "robust", "95 %", "groups", "forward", "backward", "time"), title, caption)
    for one in sorted(lines, key=lambda line: line.robust_accuracy):
        table.add_row(
            one.attack,
            f"{one.robust_accuracy:.1%}",
            f"{100 * one.interval[0]:.0f}-{one.interval[1]:.0%}",
            _number(one.median_groups, ".0f"),
            f"{one.forwards:.0f}",
            f"{one.backwards:.0f}",
            f"{one.seconds:.1f} s",
        )
    return table


def bare_model(record: dict[str, Any]) -> Table:
    title = f"{record['model']} alone, {record['hardware']}, {counted(record['threads'], 'threads')}"
    table = Table(title=title, title_justify="left")
    for column in ("work", "precision", "batch", "us an image"):
        named = column in ("work", "precision")
        table.add_column(column, justify="left" if named else "right", no_wrap=named)
    for row in record["bare"]:
        table.add_row(row["work"], how(row["precision"], row["compiled"]), str(row["batch"]), f"{row['us']:.1f}")
    return table


def timed_attacks(record: dict[str, Any]) -> Table:
    caption = (
        f"{counted(record['images'], 'images')}, {record['budget']}, {counted(record['steps'], 'steps')}, "
        f"{counted(record['queries'], 'queries')}; us: per "
        "image and step; x: relative to the bare model; out: share of the time outside the model; looks: how often "
        "the host waited; first: the first run, with compilation"
    )
    verdict = record.get("verdict")
    if verdict is not None:
        caption += f"; below: seconds until robust accuracy was below {verdict:.1%}"
    header = ("attack", "s", "first", "left", "us", "x", "out", "looks", "MB", *(["below"] if verdict else []))
    table = _named(header, "attacks", caption)
    for row in record["attacks"]:
        cells = [f"{statistics.mean(row['seconds']):.2f}", _number(row["warm_up"], ".1f")]
        cells += [f"{statistics.mean(row['robust']):.0f}", _number(row["us"], ".1f"), _number(row["ratio"], ".2f")]
        cells += [_number(row.get("outside"), ".0%"), _number(row["looks"], "d")]
        cells += [_number(row["memory"] and row["memory"] / 1e6, ".0f")]
        cells += [_number(row["below"], ".1f")] if verdict else []
        table.add_row(f"{row['name']}\n{how(row['precision'], row['compiled'])}", *cells)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _named(header: Sequence[str], title: str, caption: str = "", min_width: int | None = None) -> Table:
    """A column of names, at least `min_width` wide, which may wrap, and columns of numbers, which may not."""
    table = Boxed(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column(header[0], min_width=min_width, overflow="fold")
    for column in header[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def models(found: Sequence[tuple[Card, str]], caption: str = "") -> Table:
    """One model per row, with its lowest robust accuracy and its folder."""
    table = Table(
        title="shipped models", title_justify="left", caption=caption, caption_justify="left",
        box=box.SIMPLE, pad_edge=False, show_edge=False, padding=0,
    )  # fmt: skip
    several = ["under", *(["model"] if any(len(card.name) > WIDEST for card, _ in found) else [])]
    for column in ("model", "params", "clean", "robust", "under", "in"):
        justify: JustifyMethod = "right" if column in ("params", "clean", "robust") else "left"
        table.add_column(column, justify=justify, no_wrap=column not in several, overflow="fold")
    for card, folder in found:
        lowest = card.lowest
        row = (card.name, f"{card.parameters / 1e6:.2f} M", f"{card.clean_accuracy:.1%}")
        table.add_row(*row, "-" if lowest is None else f"{lowest.robust_accuracy:.1%}", str(lowest or ""), folder)
    return table


def words(header: Sequence[str], rows: Sequence[Sequence[str]], title: str, names: Sequence[int] = (0,)) -> Table:
    """A narrow table of text. Only the columns `names` may wrap; default: the first."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, padding=0)
    for i, column in enumerate(header):
        table.add_column(column, justify="right" if i else "left", no_wrap=i not in names, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.strip().replace("|", r"\|") for cell in line) + " |" for line in lines)
