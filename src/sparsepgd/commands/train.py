"""`spgd train`: a robust model, in a folder."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn

from sparsepgd import atomic, options, zoo
from sparsepgd.analysis.summary import counted
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import bar, check_fit, device_named, err, out
from sparsepgd.distributed import Workers, joined
from sparsepgd.errors import SourceError, TrainingWarning, UnsupportedError
from sparsepgd.search.noise import signed
from sparsepgd.sources import TRAINED, Data, load_model
from sparsepgd.sources.data import NAMES as DATA
from sparsepgd.sources.data import load_parts
from sparsepgd.threat import Budget
from sparsepgd.training import METHODS, Trained, recipes
from sparsepgd.training import train as run_training
from sparsepgd.training.api import CHECKPOINT
from sparsepgd.training.entries import measure, zoo_entry
from sparsepgd.training.loop import Progress as Report
from sparsepgd.training.settings import settings
from sparsepgd.zoo.registry import ARCHITECTURES

DEFAULTS: dict[str, Any] = {"method": "strades", "data": "digits", "k": 20, "pattern": "pixel", "eps": "1"}
TEST = "test.npz"  # in the folder of a run
STEPS = 100  # of the attack on them
NETWORKS = f"{', '.join(ARCHITECTURES)}, torchvision:NAME (fresh weights), zoo:NAME, trained:FOLDER or FILE.py:FACTORY"


@joined()
def train(
    recipe: Annotated[Path | None, typer.Option(help="A TOML file of settings; other options override it.")] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}; add +s, +n, +sn.")] = None,
    model: Annotated[str | None, typer.Option(help=NETWORKS)] = None,
    data: Annotated[str | None, typer.Option(help=f"{DATA}; digits if left out.")] = None,
    k: Annotated[int | None, typer.Option(help="Pixels, or groups of the pattern, to withstand.")] = None,
    pattern: Annotated[str | None, typer.Option(help=options.PATTERNS)] = None,
    eps: Annotated[str | None, typer.Option(help="Largest change of a value, e.g. 8/255; 1 is free.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images of a batch, over all workers.")] = None,
    lr: Annotated[float | None, typer.Option(help="The largest learning rate.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the training attack.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names all random numbers of the run.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, NAME=VALUE; may be given several times.")
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the run, runs/... if left out; run again to go on.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard too.")] = False,
    device: arg.Device = None,
    quiet: arg.Quiet = False,
) -> None:
    """Train a model to withstand sparse perturbations. Without arguments: sTRADES on scikit-learn's digits."""
    words: dict[str, Any] = {"method": method, "model": model, "data": data, "k": k, "pattern": pattern, "eps": eps}
    words |= {"epochs": epochs, "batch": batch, "lr": lr, "steps": steps, "seed": seed}
    given = {name: word for name, word in words.items() if word is not None}
    assigned = recipes.assignments(setting or [])
    if twice := [name for name in assigned if name in given]:
        raise UnsupportedError(f"--{twice[0]} {given[twice[0]]} and --set {twice[0]}=...; leave one of them out")
    given |= assigned
    wanted = _merged(recipes.read(recipe) if recipe is not None else {}, given)
    workers = Workers.here()
    out.quiet = not workers.first
    job = _Job(wanted, out_dir or _folder(wanted), device_named(device or workers.device))
    with _bar(f"{wanted['method']} on {wanted['data']}", quiet) as report:
        trained = job.run(report, tensorboard)
    _show(trained)
    if workers.first:
        job.keep_test()
        job.show_test(trained, shlex.join(_command(recipe, given)))
    out.print(f"weights and record in {job.folder}", soft_wrap=True)


def _merged(recipe: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Defaults, those of the data, the recipe, the command line: the later wins."""
    data = given.get("data", recipe.get("data", DEFAULTS["data"]))
    starts = recipes.STARTS.get(data, {}) if not recipe else {}
    return {**DEFAULTS, **starts, **recipe, **given}


def _command(recipe: Path | None, given: dict[str, Any]) -> list[str]:
    """The command line without places of this machine."""
    words = ["spgd", "train"]
    if recipe is not None:
        words += ["--recipe", recipe.name if recipe.is_absolute() else str(recipe)]
    for name, value in given.items():
        own = name in (*DEFAULTS, "model", "epochs", "batch", "lr", "steps", "seed")
        word = value if isinstance(value, str) else json.dumps(value)  # as TOML would write it
        words += [f"--{name}", word] if own else ["--set", f"{name}={word}"]
    return words


def _folder(wanted: dict[str, Any]) -> Path:
    """The same words, the same folder."""
    digest = hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()[:8]
    name = f"{wanted['method']}-{wanted['data']}-{wanted['pattern']}-k{wanted['k']}-{digest}"
    return Path("runs") / re.sub(r"[^\w.,+-]+", "-", name)


class _Job:
    """Words turned into a model, data and settings."""

    def __init__(self, wanted: dict[str, Any], folder: Path, device: torch.device) -> None:
        options_of_run = dict(wanted)
        self.wanted, self.folder, self.device = wanted, folder, device
        self.method, self.data, self.network = (options_of_run.pop(key, None) for key in ("method", "data", "model"))
        self.size = options_of_run.pop("size", None)
        if self.size is not None and self.size < 1:
            raise UnsupportedError(f"size={self.size}; use at least 1")
        pattern = options.pattern(options_of_run.pop("pattern"))
        self.budget = Budget(options_of_run.pop("k"), pattern, options.eps(str(options_of_run.pop("eps"))))
        self.options = options_of_run
        self.seed = signed(settings(self.method, self.budget, self.options).seed)  # what is wrong is said here
        self.test: Data | None = None
        self.split = False  # whether the images to test on were set apart here
        self.architecture: str | None = None
        self.arguments: dict[str, Any] = {}

    def run(self, report: Report, tensorboard: bool) -> Trained:
        (x, y), self.test = self.images()
        model = self.model(self.classes(y)).to(self.device)
        check_fit(model, x)
        names = {"model": str(self.network), "data": self.data}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)  # they are shown at the end
                return run_training(
                    model, (x, y), self.method, self.budget, out=self.folder, names=names, progress=report,
                    tensorboard=tensorboard, **self.options,
                )  # fmt: skip
        except KeyboardInterrupt:
            how = f"what is finished is in {self.folder}: run the same command again to go on"
            if not (self.folder / CHECKPOINT).is_file():
                how = "nothing was saved yet, which happens at the ends of epochs"
            err.print(f"interrupted; {how}", soft_wrap=True)
            raise typer.Exit(1) from None

    def classes(self, y: Tensor) -> int:
        """As many as there are names, or labels among all images."""
        assert self.test is not None
        labels = torch.cat([y, self.test.y])
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or max(high + 1, len(self.test.class_names)) < 2:
            raise SourceError(f"{self.data} has labels {low} to {high}; expected 0, 1, 2, ..., at least two classes")
        return max(high + 1, len(self.test.class_names))

    def model(self, classes: int) -> nn.Module:
        """A fresh network by its name, drawn under the seed, or one with weights."""
        if self.network is None:
            raise UnsupportedError(f"no --model for the data {self.data!r}; use {NETWORKS}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.network in ARCHITECTURES:
                self.architecture, self.arguments = self.network, {"num_classes": classes}
                return ARCHITECTURES[self.network](num_classes=classes)
            kind, _, name = self.network.partition(":")
            if kind == "torchvision":
                return _torchvision(name, classes)
            model = load_model(self.network).model
            if kind in ("zoo", "trained") or zoo.known(self.network):
                about = zoo.card(TRAINED, Path(name)) if kind == "trained" else zoo.card(name or self.network)
                self.architecture, self.arguments = about.architecture, about.arguments
            return model

    def show_test(self, trained: Trained, command: str) -> None:
        """What the model does on the images to test on, and how to go on with it."""
        found = self.measured(trained, command)
        robust = ", ".join(f"{value:.1%} under {attack}" for attack, value in found["robust_accuracy"].items())
        out.print(f"tested   clean {found['clean_accuracy']:.1%}, robust {robust}", soft_wrap=True)
        out.print(f"         {found['measured']}", soft_wrap=True)
        words = ["spgd", "evaluate", *self.source(), "--data", f"npz:{self.folder / TEST}" if self.split else self.data]
        words += [] if self.split or self.size is None else ["--size", str(self.size)]
        for name in ("k", "pattern", "eps"):
            words += [f"--{name}", str(self.wanted[name])]
        out.print(f"use it   {shlex.join(words)}", soft_wrap=True)

    def measured(self, trained: Trained, command: str) -> dict[str, Any]:
        """For a network of the zoo with a card beside the weights, so that `trained:FOLDER` is a model."""
        assert self.test is not None
        images = 1000 if self.device.type == "cuda" else 200
        if self.architecture is None:
            return measure(trained.model, self.test, self.budget, images, STEPS)
        card = zoo_entry(
            trained, self.folder, TRAINED, self.architecture, self.test, arguments=self.arguments, data=self.data,
            classes=self.test.class_names, command=command, images=images, steps=STEPS,
        )  # fmt: skip
        return vars(card)

    def source(self) -> list[str]:
        """The trained model for the other commands."""
        if self.architecture is not None:
            return ["--model", f"trained:{self.folder}"]
        words = ["--model", self.network, "--weights", str(self.folder / f"{TRAINED}.safetensors")]
        return words + (["--normalise", "none"] if self.network.startswith("torchvision:") else [])

    def keep_test(self) -> None:
        """The images that were set apart, as a file: of the source itself most have been trained on."""
        if not self.split:
            return
        assert self.test is not None
        stream, names = BytesIO(), np.array(self.test.class_names, dtype=np.str_)
        np.savez_compressed(stream, x=self.test.x.numpy(), y=self.test.y.numpy(), class_names=names)
        atomic.write(self.folder / TEST, stream.getvalue())
        out.print(f"set aside {counted(len(self.test.x), 'images')} to test on in {self.folder / TEST}", soft_wrap=True)

    def images(self) -> tuple[tuple[Tensor, Tensor], Data]:
        """Those to train on and those to test on: a fifth of them, if the source does not tell them apart."""
        data, test = load_parts(self.data, self.size)
        if test is not None:
            return data, test
        x, y = data
        if len(x) < 2:
            raise SourceError(f"{self.data} holds {counted(len(x), 'images')}; some are to train on, some to test on")
        self.split = True
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed))
        fifth = max(1, len(x) // 5)
        rows, kept = order[fifth:].sort().values, order[:fifth].sort().values
        return (x[rows], y[rows]), Data(x[kept], y[kept], data.class_names)


def _torchvision(name: str, classes: int) -> nn.Module:
    from torchvision import models

    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    except ValueError:
        raise SourceError(f"torchvision has no model {name!r}; e.g. torchvision:resnet34") from None
    return model


def _show(trained: Trained) -> None:
    last = {name: values[-1] for name, values in trained.curves.items()}
    epochs = counted(trained.settings.epochs, "epochs")
    words = f"trained  {trained.settings.method}, {epochs}, {trained.seconds:.0f} s"
    seen = [f"{name} {last[name]:.1%}" for name in ("clean", "robust") if name in last]
    out.print(f"{words}; loss {last['loss']:.3f}")
    if seen:
        out.print(f"held out {', '.join(seen)}")
    for notice in trained.notices:
        out.print(f"warning: {notice}")


@contextmanager
def _bar(title: str, quiet: bool) -> Iterator[Report]:
    """With the last value of each curve."""
    with bar(title, quiet) as tell:

        def report(done: int, total: int, last: Any) -> None:
            tell(
                done,
                total,
                " ".join(f"{name} {last[name]:.3f}" for name in ("loss", "clean", "robust") if name in last),
            )

        yield report
