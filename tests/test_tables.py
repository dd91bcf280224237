"""Tables for the terminal: they fit 80 columns, most fit 60, and what comes from outside is shown as it is."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from sparsepgd import tables
from sparsepgd.analysis.summary import Line, Summary
from sparsepgd.report import leaderboard

ROW = Summary(1000, 0.828, 0.691, (0.6617, 0.7189), 20, 448, 1_000_000, 900_000, 179.0)


def shown(table: Table, width: int = 80) -> str:
    text = StringIO()
    Console(file=text, width=width, markup=False, emoji=False).print(table)  # as the commands do
    return text.getvalue()


@pytest.mark.parametrize("name", ["small-plain", "runs/of/a/long/name/" * 4])
def test_numbers_stay_whole_beside_a_long_name(name: str) -> None:
    text = shown(tables.accuracies([(name, ROW)], "saa", "caption"))
    assert max(map(len, text.splitlines())) <= 80
    for number in ("82.8%", "69.1%", "66.2-71.9%", "20", "448", "179.0 s"):
        assert number in text
    assert "…" not in text
    assert name == "".join(line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│"))


def test_names_and_numbers_stay_whole_in_a_narrow_terminal() -> None:
    text = shown(tables.accuracies([("small-strades", ROW)], "saa", "caption"), width=60)
    assert max(map(len, text.splitlines())) <= 60
    for words in ("small-strades", "82.8%", "69.1%", "66.2-71.9%", "20", "448", "179.0 s"):
        assert words in text


def test_numbers_of_a_leaderboard_stay_whole_beside_long_names() -> None:
    row = ["runs/of/a/long/name/" * 4, "82.8%", "69.1%", "66.2-71.9%", "71.2% torchattacks:AnAttackOfALongName"]
    text = shown(tables.words(leaderboard.HEADER[:5], [row], "pixels", names=(0, 4)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for number in (*row[1:4], "71.2%"):
        assert number in text


def test_numbers_of_compared_attacks_stay_whole_beside_long_names() -> None:
    line = Line("torchattacks:" + "Long" * 8, 0.9, 0.215, (0.1, 0.3), 20.0, 12345.0, 1234.0, 123.4)
    text = shown(tables.compared([line], "title", "caption"))
    assert "…" not in text
    for number in ("21.5%", "10-30%", "20", "12345", "1234", "123.4 s"):
        assert number in text


def test_brackets_in_names_titles_and_captions_are_no_markup() -> None:
    text = shown(tables.accuracies([("[red]net[/red]", ROW)], "k=[1]", "of [bold]data"))
    assert "[red]net[/red]" in text
    assert "k=[1]" in text
    assert "of [bold]data" in text


def test_markdown_keeps_bars_inside_their_cell() -> None:
    assert tables.markdown(["a"], [["x|y"]]).splitlines()[-1] == r"| x\|y |"
