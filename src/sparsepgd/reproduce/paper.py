"""The numbers of the paper: facts with the table they stand in, kept in paper.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sparsepgd.errors import SourceError


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    label: str  # in the paper's source
    number: str  # roman
    title: str
    images: str  # on what, how long
    networks: dict[str, str]  # by model
    cells: dict[str, dict[str, dict[str, float]]]  # by section, row and column

    def value(self, section: str, row: str, column: str) -> float | None:
        """None where the paper has no such number."""
        return self.cells.get(section, {}).get(row, {}).get(column)


@cache
def facts() -> dict[str, Any]:
    """All of paper.json."""
    content: dict[str, Any] = json.loads(files("sparsepgd.reproduce").joinpath("paper.json").read_bytes())
    return content


def table(label: str) -> Table:
    known = facts()["tables"]
    if label not in known:
        raise SourceError(f"the paper has no table {label!r}; known are {', '.join(known)}")
    return Table(label, **known[label])
