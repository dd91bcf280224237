"""Tables for the terminal: they fit 80 columns, and what comes from outside is shown as it is."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from sparsepgd import tables
from sparsepgd.evaluation.summary import Summary

ROW = Summary(1000, 0.828, 0.691, (0.6617, 0.7189), 20, 448, 1_000_000, 900_000, 179.0)


def shown(table: Table, width: int = 80) -> str:
    text = StringIO()
    Console(file=text, width=width, emoji=False).print(table)
    return text.getvalue()


@pytest.mark.parametrize("name", ["small-plain", "runs/of/a/long/name/" * 4])
def test_numbers_stay_whole_beside_a_long_name(name: str) -> None:
    text = shown(tables.accuracies([(name, ROW)], "saa", "caption"))
    assert max(map(len, text.splitlines())) <= 80
    for number in ("82.8%", "69.1%", "66.2-71.9%", "20", "448", "179.0 s"):
        assert number in text
    assert "…" not in text
    assert name == "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))


def test_brackets_in_names_titles_and_captions_are_no_markup() -> None:
    text = shown(tables.accuracies([("[red]net[/red]", ROW)], "k=[1]", "of [bold]data"))
    assert "[red]net[/red]" in text
    assert "k=[1]" in text
    assert "of [bold]data" in text


def test_markdown_keeps_bars_inside_their_cell() -> None:
    assert tables.markdown(["a"], [["x|y"]]).splitlines()[-1] == r"| x\|y |"
