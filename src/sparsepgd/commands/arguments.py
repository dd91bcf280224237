"""Options that several commands take, with their help; a command says what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsepgd import options
from sparsepgd.problem.engine import PRECISIONS
from sparsepgd.sources.data import NAMES as DATA

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
Steps = Annotated[int, typer.Option(min=1, help="Steps of gradient attacks for each image; the paper uses 10000.")]
Queries = Annotated[int, typer.Option(min=1, help="Queries of a black box for each image; the paper uses 10000.")]
Seed = Annotated[int, typer.Option(help="Names all random numbers of the run.")]
Seeds = Annotated[int, typer.Option(min=1, help="Repeat with this many seeds, from --seed on.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; left out: a GPU if there is one.")]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help=f"Of the search: {', '.join(PRECISIONS)}; verdicts are in fp32.")
]
CompiledCode = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Compile the model; left out: where it pays on a GPU.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
