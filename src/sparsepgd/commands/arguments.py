"""Options shared by several commands, with their help and their panel of `--help`; each command sets its defaults."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sparsepgd import options
from sparsepgd.commands.common import only_json
from sparsepgd.problem.engine import PRECISIONS
from sparsepgd.sources.data import NAMES as DATA

of_input = partial(typer.Option, rich_help_panel="Model and data")
of_budget = partial(typer.Option, rich_help_panel="Budget")
of_attack = partial(typer.Option, rich_help_panel="Attack")
of_training = partial(typer.Option, rich_help_panel="Training")
of_output = partial(typer.Option, rich_help_panel="Output")
of_performance = partial(typer.Option, rich_help_panel="Performance")

MODELS = (
    "zoo:NAME or NAME (see spgd zoo), torchvision:NAME, timm:NAME, robustbench:[DATASET/THREAT/]NAME, "
    "FILE.py:FACTORY, FILE.pt2, FILE.onnx, trained:FOLDER, or a network such as preact_resnet18 with --weights"
)
Model = Annotated[str, of_input(help=f"{MODELS}.")]
Models = Annotated[list[str] | None, of_input("--model", help=f"{MODELS}; repeat it for several models.")]
Weights = Annotated[
    Path | None, of_input(help="Weights for the network: .safetensors, or a torch.save file, read without pickle.")
]
Trust = Annotated[bool, of_input("--trust", help="Also read pickles, which can run code.")]
Normalise = Annotated[
    str | None, of_input(help="Override the normalisation: imagenet, cifar10, cifar100, none or MEANS/STDS.")
]
DataName = Annotated[str, of_input("--data", help=f"{DATA}.")]
Count = Annotated[int | None, of_input("-n", min=1, help="Number of images.")]
Side = Annotated[int | None, of_input("--size", min=1, help="Crop and resize images to this side.")]
Choose = Annotated[
    str | None,
    of_input(help="first, or balanced: equally many per class. Default: balanced for folders, otherwise first."),
]
K = Annotated[int, of_budget(help="Number of pixels, or groups of the pattern, that may change.")]
PatternName = Annotated[str, of_budget("--pattern", help=options.PATTERNS)]
Eps = Annotated[str, of_budget(help="Largest change of a value, e.g. 8/255 for a watermark; 1 is no limit.")]
AttackName = Annotated[str, of_attack("--attack", help=f"{', '.join(options.ATTACKS)}, {options.OTHERS}")]
Steps = Annotated[int, of_attack(min=1, help="Steps of gradient attacks per image; the paper uses 10000.")]
Queries = Annotated[int, of_attack(min=1, help="Queries of black-box attacks per image; the paper uses 10000.")]
Seed = Annotated[int, of_attack(help="Seed of all random numbers.")]
Seeds = Annotated[int, of_attack(min=1, help="Number of seeds, starting at --seed.")]
Device = Annotated[str | None, of_performance(help="cpu, cuda, cuda:1, ... Default: a GPU if there is one.")]
BatchSize = Annotated[int | None, of_performance(min=1, help="Images per batch. Default: chosen for the device.")]
PrecisionName = Annotated[
    str | None,
    of_performance(
        "--precision", help=f"Precision of the search: {', '.join(PRECISIONS)}. Successes are checked in fp32."
    ),
]
CompiledCode = Annotated[
    bool,
    of_performance("--compile/--no-compile", help="Compile the model (GPU only); may pay off without BatchNorm."),
]
Quiet = Annotated[bool, of_output("--quiet", "-q", help="No progress bar, no suggestions at the end.")]
Json = Annotated[
    bool, of_output("--json", callback=only_json, help="Print JSON to stdout, and everything else to stderr.")
]
