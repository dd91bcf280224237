"""Outcomes as tables, our numbers above those of the paper, and as figures in the style of the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsepgd import atomic, tables
from sparsepgd.report.style import INK, MUTED, colour, dash, figure_style, new_figure, plain, png, svg
from sparsepgd.reproduce.jobs import Job
from sparsepgd.reproduce.parts import Number, Outcome
from sparsepgd.reproduce.recipe import Recipe, facts

ABSENT = "-"
WIDTH, HEIGHT = 6.0, 3.7  # of a figure
NUMBERS, TABLE = "numbers.json", "table.md"


@dataclass(frozen=True)
class Grid:
    """One table as text."""

    title: str
    header: list[str]
    rows: list[list[str]]

    @property
    def markdown(self) -> str:
        return tables.markdown(self.header, self.rows)

    @property
    def columns(self) -> list[list[str]]:
        return [list(column) for column in zip(self.header, *self.rows, strict=True)]

    @property
    def width(self) -> int:
        """In characters, with one between two columns and one at each side."""
        return sum(1 + max(map(len, column)) for column in self.columns) + 1

    def within(self, room: int) -> Grid:
        """The grid itself, or its transpose if the grid does not fit and the transpose is narrower."""
        header, *rows = self.columns
        turned = Grid(self.title, header, rows)
        return turned if self.width > room and turned.width < self.width else self


def grids(outcome: Outcome) -> Iterator[Grid]:
    """One grid per section: for each row our number, half of its interval, and the number of the paper."""
    for section in dict.fromkeys(number.section for number in outcome.numbers):
        mine = [number for number in outcome.numbers if number.section == section]
        digits = 1 if "%" in f"{outcome.unit} {section}" else 2
        columns = list(dict.fromkeys(number.column for number in mine))
        rows = []
        for row in dict.fromkeys(number.row for number in mine):
            cells = {number.column: number for number in mine if number.row == row}
            rows.append([f"{row}, here", *(_text(cells, column, "here", digits) for column in columns)])
            if any(number.low is not None for number in cells.values()):
                rows.append(["  95 %", *(_interval(cells.get(column)) for column in columns)])
            if any(number.paper is not None for number in cells.values()):
                rows.append([f"{row}, paper", *(_text(cells, column, "paper", digits) for column in columns)])
        yield Grid(section, ["", *columns], rows)


def heading(section: str, unit: str) -> str:
    """The heading of a table: its section and the unit, or only one of them if that is enough."""
    return f"{section}: {unit}" if unit and not unit.startswith(section) else unit or section


def markdown(recipe: Recipe, outcome: Outcome) -> str:
    """The tables, the reasons and the source as a Markdown page."""
    parts = [f"# {recipe.source}: {recipe.about}\n"]
    for grid in grids(outcome):
        parts.append(f"## {heading(grid.title, outcome.unit)}\n\n{grid.markdown}\n")
    parts.append("## Why the numbers may differ\n\n" + "\n".join(f"- {reason}" for reason in outcome.reasons) + "\n")
    parts.append(f"Source of the paper's numbers: {facts()['source']}.\n")
    return "\n".join(parts)


def write(recipe: Recipe, job: Job, outcome: Outcome) -> list[Path]:
    """Write numbers.json, table.md and the figures, as SVG and PNG."""
    folder = job.out / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    record = outcome.record(recipe=recipe.name, source=recipe.source, scale=job.scale.name, seed=job.seed)
    content = {
        NUMBERS: (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode(),
        TABLE: markdown(recipe, outcome).encode(),
    }
    for name, draw in outcome.figures.items():
        figure = draw()
        content |= {f"{name}.svg": svg(figure), f"{name}.png": png(figure)}
    for name, data in content.items():
        atomic.write(folder / name, data)
    return [folder / name for name in content]


def _text(cells: Mapping[str, Number], column: str, which: Literal["here", "paper"], digits: int) -> str:
    value = getattr(cells[column], which) if column in cells else None
    return ABSENT if value is None else f"{value:.{digits}f}"


def _interval(number: Number | None) -> str:
    if number is None or number.low is None or number.high is None:
        return ABSENT
    return f"{number.low:.0f}-{number.high:.0f}"


def lines(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    labels: tuple[str, str],
    *,
    log: bool = False,
    spread: Mapping[str, Sequence[float]] | None = None,
    top: float | None = 100,
    marks: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] | None = None,
) -> Any:
    """Draw a line for each name, in panels by title. `labels`: of the axes; `spread`: half the width of a band;
    `marks`: the paper's values of the same panels and names, drawn as open diamonds."""
    diamond: Any = {"ls": "", "marker": "D", "ms": 6, "mfc": "none"}
    with figure_style():
        figure, axes, legend = panels_of(list(panels))
        for axis, (title, series) in zip(axes, panels.items(), strict=True):
            printed = (marks or {}).get(title, {})
            for number, (name, points) in enumerate(series.items()):
                across, up = np.array(points).T
                style: Any = {"color": colour(number), "ls": dash(number), "marker": "o", "ms": 4}
                axis.plot(across, up, label=plain(name), **style)
                if spread is not None:
                    half = np.array(spread[name])
                    axis.fill_between(across, up - half, up + half, color=colour(number), alpha=0.14, lw=0)
                if name in printed:
                    axis.plot(*np.array(printed[name]).T, color=colour(number), **diamond)
            axis.set(xlabel=labels[0], ylabel=labels[1], xscale="log" if log else "linear")
            if log:
                ticks = sorted({x for points in (*series.values(), *printed.values()) for x, _ in points})
                axis.set_xticks(ticks, [f"{x:,.0f}" for x in ticks], rotation=0 if len(panels) == 1 else 60)
                axis.minorticks_off()
            if top is not None:
                axis.set_ylim(0, top * 1.02)
        if marks:
            axes[0].plot([], [], color=MUTED, label="the paper", **diamond)
        legend()
    return figure


def panels_of(titles: Sequence[str]) -> tuple[Any, list[Any], Callable[[], None]]:
    """A figure with an axis for each title, three per row, and a function that draws one legend above all of them."""
    columns = min(len(titles), 3)
    rows = -(-len(titles) // columns)
    wide = columns > 1
    figure = new_figure(3.3 * columns if wide else WIDTH, 2.9 * rows if wide else HEIGHT)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(len(titles))]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(plain(title))

    def legend() -> None:
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, labelcolor=INK, loc="outside upper left", ncols=4 if wide else 2)

    return figure, axes, legend
