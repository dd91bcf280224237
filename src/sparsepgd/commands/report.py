"""`spgd report`: show runs on a page, and as figures."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from sparsepgd import atomic
from sparsepgd.commands.common import out
from sparsepgd.errors import SourceError, counted
from sparsepgd.report import PAGE, collect, write_figures, write_page
from sparsepgd.runs.folders import unfinished


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders that contain runs.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help=f"The page. Default: {PAGE} in RUN, or here for several runs.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write every figure, as SVG and PNG, to this folder.")
    ] = None,
) -> None:
    """Write runs as one self-contained HTML page with figures and images, several runs side by side."""
    entries = collect(runs)
    for folder in chain.from_iterable(map(unfinished, runs)):
        out.print(
            f"warning: {folder} is not finished and was skipped; run its command again to resume it", soft_wrap=True
        )
    page = out_file or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
    atomic.check(page)
    if figures is not None:
        try:
            figures.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(f"{figures} cannot be made: {error.strerror}; choose another folder") from None
    write_page(entries, page)
    out.print(f"report in {page}, {page.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
    if figures is not None:
        files = write_figures(entries, figures)
        out.print(f"{counted(len(files), 'figures')} in {figures}", soft_wrap=True)
