"""`spgd leaderboard`: records of models and budgets as a table."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Annotated

import typer

from sparsepgd import atomic, tables
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import out, print_json
from sparsepgd.report import leaderboard as board

PAGE = Path("docs") / "leaderboard.md"
HEAD = """# Leaderboard

Robust accuracy is the share of images that no attack in the record has broken. It is an upper bound, which further
attacks can only lower. *Strongest alone* is the single attack with the lowest robust accuracy. Each line is one JSON
record in `leaderboard/`. `spgd leaderboard` writes this page from the records; do not edit it.
"""
TAIL = """
To add a model, run attacks on it and add their folders. Runs on the same images with the same budget share a record:

```
spgd evaluate --model mine.py:make_model --attack saa+,l1-apgd --steps 1000 --queries 5000 --k 20 --out runs/mine
spgd leaderboard --add runs/mine/saa+ --add runs/mine/l1-apgd
```
"""


def leaderboard(
    add: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="A run folder to add; repeat it for several.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("leaderboard"),
    page: Annotated[
        Path | None,
        typer.Option(help=f"Also write the table as Markdown. Default: {PAGE}, if it exists and a run is added."),
    ] = None,
    as_json: arg.Json = False,
) -> None:
    """Rank models by robust accuracy for each budget: the share of images that no attack has broken."""
    if page is not None:
        atomic.check(page)
    for run in add or []:
        entered = board.add(folder, run)
        out.print(f"entered {entered.model}, {entered.words}: {entered.file}", soft_wrap=True)
    found = board.contenders(folder)
    shown = list(board.boards(found))
    for title, rows in shown:
        out.print(tables.words(board.HEADER[:5], [row[:5] for row in rows], title, names=(0, 4)))
    target = page or (PAGE if add and PAGE.is_file() else None)
    if target is not None:
        atomic.write(target, markdown(found).encode())
        out.print(f"page in {target}", soft_wrap=True)
    if as_json:
        print_json({title: [dict(zip(board.HEADER, row, strict=True)) for row in rows] for title, rows in shown})


def markdown(found: list[board.Contender]) -> str:
    parts = [
        f"\n## {_text(title)}\n\n{tables.markdown(board.HEADER, [list(map(_text, row)) for row in rows])}\n"
        for title, rows in board.boards(found)
    ]
    return HEAD + "".join(parts) + TAIL


def _text(words: str) -> str:
    """Escape names, so that they add no markup and no column."""
    return html.escape(words, quote=False).replace("|", "&#124;")
