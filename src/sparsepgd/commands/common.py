"""What the commands share: where they print, the command as typed, the model, the device, the progress bar."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sparsepgd import options
from sparsepgd.problem.checks import check_device
from sparsepgd.search.loop import Progress as Report
from sparsepgd.sources import Data, Source, load_pairs

# names of models, files and classes are printed as they are: [b] is no markup
out, err = (Console(stderr=to_err, markup=False, emoji=False, highlight=False) for to_err in (False, True))
answer = Console()  # its file is stdout, also while --json redirects sys.stdout


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C, in words: how to resume."""


def only_json(context: typer.Context, asked: bool) -> bool:
    """With --json, stdout is for `print_json` alone: until the command ends, all else goes to stderr, also what the
    code of a model prints."""
    if asked:
        answer.file = sys.stdout
        context.call_on_close(partial(setattr, answer, "file", None))  # None: whatever sys.stdout is
        context.with_resource(redirect_stdout(sys.stderr))
    return asked


def print_json(value: object) -> None:
    """Of several workers the first one does."""
    if not out.quiet:
        print(json.dumps(value, indent=1), file=answer.file)


def command() -> str:
    return shlex.join(["spgd", *sys.argv[1:]])


def command_line(*arguments: object, **options: object) -> str:
    """``spgd ARGUMENTS --OPTION VALUE`` to be copied; options that are None or False are left out."""
    line = ["spgd", *map(str, arguments)]
    for name, value in options.items():
        if value is True:
            line.append(f"--{name}")
        elif value is not None and value is not False:
            line += [f"--{name}", str(value)]
    return shlex.join(line)


def suggest(text: str) -> None:
    """What to do next, among the last lines of a command; left out with --quiet and --json."""
    out.print(f"next: {text}", soft_wrap=True)


def one_model(
    model: str, data: str, n: int | None, default: int, device: torch.device, *, choose: str | None, **how: Any
) -> tuple[Source, Data]:
    """A model by its name and the images as it takes them, both on `device`; warns where class names differ.
    `default`: the number of images if `n` is None, or all if there are fewer. `how`: size, weights, trust and
    normalise, as for `load_pairs`."""
    pairs = load_pairs(
        [model], data, n or default, choose=options.choice(choose), fewer=n is None, device=device, **how
    )
    warn_of_classes(pairs)
    ((source, images),) = pairs
    return replace(source, model=source.model.to(device).eval()), images


def warn_of_classes(pairs: Sequence[tuple[Source, Data]]) -> None:
    """Warn if the data and a model name a class differently, because every prediction may then count as wrong."""
    for source, images in pairs:
        if message := images.disagreement(source.classes):
            out.print(f"warning: {source.name}: {message}")


def device_named(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return check_device(name)


@contextmanager
def bar(title: str, quiet: bool, seen: str = "") -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr that vanishes, told what is done, of how much, and what is seen; nothing at all when stderr is
    no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[seen]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=quiet or out.quiet or not err.is_terminal) as shown:
        task = shown.add_task(title, total=None, seen=seen)
        yield lambda done, total, seen: shown.update(task, completed=done, total=total, seen=seen)


@contextmanager
def progress(title: str, quiet: bool) -> Iterator[Report]:
    with bar(title, quiet, "0 fooled") as update:
        yield lambda done, total, fooled: update(done, total, f"{fooled} fooled")
