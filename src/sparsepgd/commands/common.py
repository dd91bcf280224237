"""What the commands share: where they print, options, the device, the progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sparsepgd import options
from sparsepgd.errors import UnsupportedError
from sparsepgd.search.loop import Progress as Report

out, err = Console(emoji=False), Console(stderr=True, emoji=False)

Model = Annotated[list[str] | None, typer.Option(help="zoo:NAME or FILE.py:FACTORY; may be given several times.")]
K = Annotated[int, typer.Option(help="How many pixels, or groups of the pattern, may change.")]
PatternName = Annotated[str, typer.Option("--pattern", help=options.PATTERNS)]
Eps = Annotated[str, typer.Option(help="Largest change of a value, e.g. 8/255 for a watermark; 1 is free.")]
AttackName = Annotated[str, typer.Option("--attack", help=", ".join(options.ATTACKS))]
Steps = Annotated[int, typer.Option(help="Steps of the attack for each image; the paper uses 10000.")]
Queries = Annotated[int, typer.Option(help="Questions of a black box for each image; the paper uses 10000.")]
Seed = Annotated[int, typer.Option(help="Names all random numbers of the run.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; left out: a GPU if there is one.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def device_named(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UnsupportedError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}; try cpu") from None
    return device


@contextmanager
def progress(title: str, quiet: bool) -> Iterator[Report]:
    """A bar on stderr that vanishes; nothing at all when stderr is no terminal."""
    columns = (TextColumn(title), BarColumn(), TextColumn("{task.fields[fooled]} fooled"), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or out.quiet or not err.is_terminal) as bar:
        task = bar.add_task(title, total=None, fooled=0)
        yield lambda done, total, fooled: bar.update(task, completed=done, total=total, fooled=fooled)
