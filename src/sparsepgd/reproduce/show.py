"""Outcomes as tables: ours above the paper's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsepgd import atomic, tables
from sparsepgd.report.style import png, svg
from sparsepgd.reproduce.paper import facts
from sparsepgd.reproduce.parts import Number, Outcome
from sparsepgd.reproduce.recipe import Recipe
from sparsepgd.reproduce.subjects import Job

ABSENT = "-"
NUMBERS, TABLE = "numbers.json", "table.md"


@dataclass(frozen=True)
class Grid:
    """One table as words."""

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
        """In letters: one between two columns, and one at either side."""
        return sum(1 + max(map(len, column)) for column in self.columns) + 1

    def within(self, room: int) -> Grid:
        """Itself, or its columns as rows where there is no room for it and more for those."""
        header, *rows = self.columns
        turned = Grid(self.title, header, rows)
        return turned if self.width > room and turned.width < self.width else self


def grids(outcome: Outcome) -> Iterator[Grid]:
    """One grid a section; of each row what was found here, its half interval, and what the paper prints."""
    for section in dict.fromkeys(number.section for number in outcome.numbers):
        mine = [number for number in outcome.numbers if number.section == section]
        digits = 1 if "%" in f"{outcome.unit} {section}" else 2
        columns = list(dict.fromkeys(number.column for number in mine))
        rows = []
        for row in dict.fromkeys(number.row for number in mine):
            cells = {number.column: number for number in mine if number.row == row}
            rows.append([f"{row}, here", *(_here(cells.get(column), digits) for column in columns)])
            if any(number.low is not None for number in cells.values()):
                rows.append(["  95 %", *(_interval(cells.get(column)) for column in columns)])
            if any(number.paper is not None for number in cells.values()):
                rows.append([f"{row}, paper", *(_paper(cells.get(column), digits) for column in columns)])
        yield Grid(section, ["", *columns], rows)


def heading(section: str, unit: str) -> str:
    """Of a table: its section and the unit, or one of them if that says both."""
    return f"{section}: {unit}" if unit and not unit.startswith(section) else unit or section


def markdown(recipe: Recipe, outcome: Outcome) -> str:
    """The tables, the reasons and the source as a page."""
    parts = [f"# {recipe.source}: {recipe.about}\n"]
    for grid in grids(outcome):
        parts.append(f"## {heading(grid.title, outcome.unit)}\n\n{grid.markdown}\n")
    parts.append("## Why the numbers may differ\n\n" + "\n".join(f"- {reason}" for reason in outcome.reasons) + "\n")
    parts.append(f"Source of the paper's numbers: {facts()['source']}.\n")
    return "\n".join(parts)


def write(recipe: Recipe, job: Job, outcome: Outcome) -> list[Path]:
    """numbers.json, table.md and the figures, as SVG and PNG."""
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


def _here(number: Number | None, digits: int) -> str:
    return ABSENT if number is None or number.here is None else f"{number.here:.{digits}f}"


def _paper(number: Number | None, digits: int) -> str:
    return ABSENT if number is None or number.paper is None else f"{number.paper:.{digits}f}"


def _interval(number: Number | None) -> str:
    if number is None or number.low is None or number.high is None:
        return ABSENT
    return f"{number.low:.0f}-{number.high:.0f}"
