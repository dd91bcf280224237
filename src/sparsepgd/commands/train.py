"""`spgd train`: train a robust model, in a folder."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from sparsepgd import options
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import Interrupted, bar, command_line, device_named, out, suggest
from sparsepgd.distributed import Workers, joined
from sparsepgd.errors import TrainingWarning, UnsupportedError, counted
from sparsepgd.sources.data import NAMES as DATA
from sparsepgd.threat import Budget
from sparsepgd.training import METHODS, Trained, recipes
from sparsepgd.training import train as run_training
from sparsepgd.training.inputs import NETWORKS, TEST
from sparsepgd.training.loop import Progress as Report
from sparsepgd.training.run_folder import CHECKPOINT, WEIGHTS

DEFAULTS: dict[str, Any] = {"method": "strades", "data": "digits", "k": 20, "pattern": "pixel", "eps": "1"}


@joined()
def train(
    recipe: Annotated[
        Path | None, arg.of_training(help="A TOML file with settings; other options override it.")
    ] = None,
    method: Annotated[
        str | None, arg.of_training(help=f"{', '.join(METHODS)}; add +s (soft targets), +n (noise) or +sn.")
    ] = None,
    model: Annotated[str | None, arg.of_input(help=NETWORKS)] = None,
    data: Annotated[str | None, arg.of_input(help=f"{DATA}. Default: digits.")] = None,
    k: Annotated[int | None, arg.of_budget(help="Number of pixels, or groups of the pattern, to withstand.")] = None,
    pattern: Annotated[str | None, arg.of_budget(help=options.PATTERNS)] = None,
    eps: Annotated[str | None, arg.of_budget(help="Largest change of a value, e.g. 8/255; 1 is no limit.")] = None,
    epochs: Annotated[int | None, arg.of_training(help="Number of epochs.")] = None,
    batch: Annotated[int | None, arg.of_training(help="Batch size over all workers.")] = None,
    lr: Annotated[float | None, arg.of_training(help="Peak learning rate.")] = None,
    steps: Annotated[int | None, arg.of_training(help="Steps of the training attack.")] = None,
    seed: Annotated[int | None, arg.of_training(help="Seed of all random numbers.")] = None,
    setting: Annotated[
        list[str] | None, arg.of_training("--set", help="Any other setting, NAME=VALUE; repeat it for several.")
    ] = None,
    out_dir: Annotated[
        Path | None, arg.of_output("--out", help="Folder of the run; the same command resumes it. Default: runs/...")
    ] = None,
    tensorboard: Annotated[bool, arg.of_output("--tensorboard", help="Also write curves for TensorBoard.")] = False,
    device: arg.Device = None,
    quiet: arg.Quiet = False,
) -> None:
    """Train a model to withstand sparse perturbations. Without arguments: sTRADES on scikit-learn's digits."""
    named: dict[str, Any] = {"method": method, "model": model, "data": data, "k": k, "pattern": pattern, "eps": eps}
    named |= {"epochs": epochs, "batch": batch, "lr": lr, "steps": steps, "seed": seed}
    given = {name: value for name, value in named.items() if value is not None}
    assigned = recipes.assignments(setting or [])
    if twice := [name for name in assigned if name in given]:
        raise UnsupportedError(f"--{twice[0]} {given[twice[0]]} and --set {twice[0]}=...; omit one of them")
    given |= assigned
    read = {} if recipe is None else recipes.read(recipe)
    starts = {} if read else recipes.STARTS.get(given.get("data", DEFAULTS["data"]), {})
    values = {**DEFAULTS, **starts, **read, **given}  # later values win
    budget = Budget(values["k"], options.pattern(values["pattern"]), options.eps(str(values["eps"])))
    if values.get("model") is None:
        raise UnsupportedError(f"no --model given for the data {values['data']!r}; use {NETWORKS}")
    parts = (values["method"], values["data"], values["pattern"], f"k{values['k']}")
    workers, folder = Workers.here(), out_dir or options.run_folder(parts, sorted(values.items()))
    out.quiet = not workers.first
    others = tuple(options.budget(text, budget.eps) for text in values.get("others", ()))
    settings = {name: value for name, value in values.items() if name not in ("k", "pattern", "eps", "others")}
    where, typed = device_named(device or workers.device), shlex.join(_command(recipe, given))
    try:
        with _bar(f"{values['method']} on {values['data']}", quiet) as report, warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # they are shown at the end
            trained = run_training(
                **settings, budget=budget, others=others, device=where, out=folder, command=typed, progress=report,
                tensorboard=tensorboard,
            )  # fmt: skip
    except KeyboardInterrupt:
        resume = f"finished epochs are in {folder}; run the same command again to resume"
        if not (folder / CHECKPOINT).is_file():
            resume = "nothing was saved yet; checkpoints are written at the end of an epoch"
        raise Interrupted(f"interrupted; {resume}") from None
    _show(trained)
    if workers.first:
        _show_test(trained, folder)
    out.print(f"weights and record in {folder}", soft_wrap=True)
    if not quiet and workers.first:
        suggest(f"evaluate the model: {_evaluation(trained, values, folder)}")


def _command(recipe: Path | None, given: dict[str, Any]) -> list[str]:
    """The command line, with only the file name of a recipe given by its absolute path."""
    words = ["spgd", "train"]
    if recipe is not None:
        words += ["--recipe", recipe.name if recipe.is_absolute() else str(recipe)]
    for name, value in given.items():
        has_option = name in (*DEFAULTS, "model", "epochs", "batch", "lr", "steps", "seed")
        text = value if isinstance(value, str) else json.dumps(value)  # as TOML would write it
        words += [f"--{name}", text] if has_option else ["--set", f"{name}={text}"]
    return words


def _show_test(trained: Trained, folder: Path) -> None:
    """Print the accuracies on the test images."""
    figures, test = trained.figures, trained.test
    assert figures is not None
    assert test is not None
    if trained.set_apart:
        out.print(f"set aside {counted(len(test.x), 'images')} for testing in {folder / TEST}", soft_wrap=True)
    robust = ", ".join(f"{one.robust_accuracy:.1%} under {one}" for one in figures.robust)
    out.print(f"tested   clean {figures.clean_accuracy:.1%}, robust {robust}", soft_wrap=True)
    out.print(f"         {figures.measured}", soft_wrap=True)


def _evaluation(trained: Trained, values: dict[str, Any], folder: Path) -> str:
    """The command that evaluates the model on the test images."""
    given: dict[str, Any] = {"model": f"trained:{folder}"}
    if trained.card is None:
        given = {"model": values["model"], "weights": folder / WEIGHTS}
        given |= {"normalise": "none"} if values["model"].startswith("torchvision:") else {}
    given["data"] = f"npz:{folder / TEST}" if trained.set_apart else values["data"]
    given["size"] = None if trained.set_apart else values.get("size")
    return command_line("evaluate", **given, **{name: values[name] for name in ("k", "pattern", "eps")})


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
    """A progress bar with the last value of each curve."""
    with bar(title, quiet) as update:

        def report(done: int, total: int, last: Any) -> None:
            shown = [f"{name} {last[name]:.3f}" for name in ("loss", "clean", "robust") if name in last]
            update(done, total, " ".join(shown))

        yield report
