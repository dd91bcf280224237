"""What the commands share: where they print, options, the command as typed, the device, the progress bar."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sparsepgd import options
from sparsepgd.errors import UnsupportedError, first_line
from sparsepgd.evaluation.data import NAMES as DATA
from sparsepgd.evaluation.sources import Data, Source
from sparsepgd.problem import Untargeted
from sparsepgd.problem.engine import PRECISIONS
from sparsepgd.problem.oracle import Oracle, borrowed, working_device
from sparsepgd.search.loop import Progress as Report

# names of models, files and classes are printed as they are: [b] is no markup
out, err = (Console(stderr=to_err, markup=False, emoji=False, highlight=False) for to_err in (False, True))

MODELS = (
    "zoo:NAME or just NAME (see spgd zoo), torchvision:NAME, timm:NAME, robustbench:[DATASET/THREAT/]NAME, "
    "FILE.py:FACTORY, FILE.pt2, FILE.onnx, trained:FOLDER, or a network such as preact_resnet18 with --weights"
)
Model = Annotated[str, typer.Option(help=f"{MODELS}.")]
Models = Annotated[list[str] | None, typer.Option("--model", help=f"{MODELS}; may be given several times.")]
Weights = Annotated[
    Path | None, typer.Option(help="Weights for the network: .safetensors, or of torch.save, read without pickle.")
]
Trust = Annotated[bool, typer.Option("--trust", help="Read pickles too; they may run code.")]
Normalise = Annotated[
    str | None,
    typer.Option(help="imagenet, cifar10, cifar100, none or MEANS/STDS, where the source of the model is wrong."),
]
DataName = Annotated[str, typer.Option("--data", help=f"{DATA}.")]
Count = Annotated[int | None, typer.Option("-n", min=1, help="Only so many images.")]
Side = Annotated[int | None, typer.Option("--size", min=1, help="Cut and resize pictures to this side.")]
Choose = Annotated[
    str | None, typer.Option(help="first, or balanced: as many of each class; left out: balanced for folders.")
]
K = Annotated[int, typer.Option(help="How many pixels, or groups of the pattern, may change.")]
PatternName = Annotated[str, typer.Option("--pattern", help=options.PATTERNS)]
Eps = Annotated[str, typer.Option(help="Largest change of a value, e.g. 8/255 for a watermark; 1 is free.")]
AttackName = Annotated[str, typer.Option("--attack", help=f"{', '.join(options.ATTACKS)}, {options.OTHERS}")]
Steps = Annotated[int, typer.Option(min=1, help="Steps of the attack for each image; the paper uses 10000.")]
Queries = Annotated[int, typer.Option(min=1, help="Questions of a black box for each image; the paper uses 10000.")]
Seed = Annotated[int, typer.Option(help="Names all random numbers of the run.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; left out: a GPU if there is one.")]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help=f"Of the search: {', '.join(PRECISIONS)}; verdicts are in fp32.")
]
CompiledCode = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Compile the model; left out: for long work on a GPU.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def command() -> str:
    """As it was typed."""
    return shlex.join(["spgd", *sys.argv[1:]])


def counted(count: int, thing: str) -> str:
    """``1 image``, ``2 images``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def warn_of_classes(pairs: Sequence[tuple[Source, Data]]) -> None:
    """Where the data and a model call a class differently, every answer may count as wrong."""
    for source, images in pairs:
        if words := images.disagreement(source.classes):
            out.print(f"warning: {source.name}: {words}")


def check_fit(model: torch.nn.Module, x: torch.Tensor) -> None:
    """Whether the model takes such images; what it says otherwise is the error."""
    place = working_device(model, x)
    with borrowed(model, place):
        Oracle(model, Untargeted(), device=place).answers(x[:1], 1)


def device_named(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no values")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UnsupportedError(f"device {name!r} cannot be used: {first_line(error)}; try cpu") from None
    return device


@contextmanager
def progress(title: str, quiet: bool) -> Iterator[Report]:
    """A bar on stderr that vanishes; nothing at all when stderr is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[fooled]} fooled"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=quiet or out.quiet or not err.is_terminal) as bar:
        task = bar.add_task(title, total=None, fooled=0)
        yield lambda done, total, fooled: bar.update(task, completed=done, total=total, fooled=fooled)
