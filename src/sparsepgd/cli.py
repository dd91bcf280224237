"""The command `spgd`: parsing and printing only."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import sparsepgd
from sparsepgd import options, zoo
from sparsepgd.errors import BudgetError, InputError, SourceError, SparsePGDError, UnsupportedError
from sparsepgd.evaluation import runs, sanity
from sparsepgd.evaluation.chunks import Attacker
from sparsepgd.evaluation.records import Notice, Record
from sparsepgd.evaluation.sources import Source, load_data, load_image, load_model, save_image
from sparsepgd.evaluation.summary import Summary
from sparsepgd.problem import Goal, Targeted, Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.search.loop import Progress as Report
from sparsepgd.threat import Budget

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=sparsepgd.__doc__)
out, err = Console(), Console(stderr=True)

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


@app.command()
def evaluate(
    model: Model = None,
    data: Annotated[str, typer.Option(help="bundled, npz:FILE with arrays x and y, or folder:DIR.")] = "bundled",
    n: Annotated[int | None, typer.Option("-n", help="Only the first n images.")] = None,
    size: Annotated[int | None, typer.Option(help="Cut and resize the pictures of a folder to this side.")] = None,
    k: K = 20,
    pattern: PatternName = "pixel",
    eps: Eps = "1",
    attack: Annotated[str, typer.Option(help=f"{', '.join(options.ATTACKS)}; several: spgd,rs")] = "spgd",
    steps: Steps = 60,
    queries: Queries = 1000,
    seed: Seed = 0,
    batch_size: Annotated[int | None, typer.Option(help="Images at work at a time.")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Folder for the records; run again to go on.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Images between two writes to --out.")] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Clean and robust accuracy. Without arguments: the shipped models on the bundled CIFAR-10 test images."""
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    searches = options.attacks(attack, budget, steps, queries)
    sources = [load_model(name) for name in model or [f"zoo:{name}" for name in zoo.names()]]
    place = _device(device)
    x, y = (tensor.to(place) for tensor in load_data(data, n, size or sources[0].size))
    go = partial(runs.run, data=(x, y), seed=seed, chunk=chunk, batch_size=batch_size)
    folders = runs.folders(out_dir, [source.name for source in sources], [search.name for search in searches])
    robust: list[dict[str, float]] = [{} for _ in sources]
    caption = f"{len(x)} images of {data}, seed {seed}, {place}; pixels and steps: median of the fooled"
    for search, places in zip(searches, folders, strict=True):
        title = f"{search.name}, {options.length(search)}, {budget}"
        records = [_run(go, search, source, at, data, place, quiet) for source, at in zip(sources, places, strict=True)]
        _show(title, caption, sources, records)
        for known, record in zip(robust, records, strict=True):
            known[search.name] = record.robust_accuracy
    for source, known in zip(sources, robust, strict=True):
        _say(source.name, sanity.compare(known))
    if out_dir is not None:
        out.print(f"records in {out_dir}", soft_wrap=True)


@app.command()
def attack(
    image: Annotated[str, typer.Argument(help="A picture file, or bundled:NUMBER.")],
    model: Annotated[str, typer.Option(help="zoo:NAME or FILE.py:FACTORY.")] = "zoo:small-plain",
    label: Annotated[int | None, typer.Option(help="The true class; left out: what the model says.")] = None,
    target: Annotated[int | None, typer.Option(help="The class the model shall say; left out: any other.")] = None,
    k: K = 20,
    pattern: PatternName = "pixel",
    eps: Eps = "1",
    attack: AttackName = "spgd",
    steps: Steps = 1000,
    queries: Queries = 10_000,
    seed: Seed = 0,
    out_file: Annotated[Path, typer.Option("--out", help="The adversarial PNG.")] = Path("adversarial.png"),
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Attack one picture on the 8-bit grid, write it as PNG, read it back and say what the model sees."""
    source = load_model(model)
    place = _device(device)
    net = source.model.to(place).eval()
    x, own = load_image(image, source.size)
    if tuple(own) != (x.shape[3], x.shape[2]):
        out.print(f"{image}: {own[0]}x{own[1]}, cut and resized to {x.shape[3]}x{x.shape[2]} for {source.name}")
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    search = options.attack(attack, budget, steps, quantize=True, queries=queries)
    goal: Goal = Untargeted() if target is None else Targeted(target)
    x = x.to(place)
    before = _says(net, x)
    y = torch.tensor([int(before.argmax()) if label is None else label], device=place)
    with _progress(f"{source.name}, {search.name}", quiet) as report:
        result = search(net, x, y, seed=seed, goal=goal, progress=report)
    save_image(result.x_adv[0], out_file)
    read = load_image(str(out_file), None)[0].to(place)
    after = _says(net, read)
    out.print(f"before  {_answer(source, before)}")
    out.print(f"after   {_answer(source, after)}   read back from {out_file}")
    changed = int((read != x).any(1).sum())
    if not bool(result.forwards):
        out.print(f"the model does not say {source.class_name(int(y))} to begin with; nothing was changed")
    elif bool(result.fooled) and torch.equal(read, result.x_adv) and int(after.argmax()) == int(result.prediction):
        out.print(f"fooled  {changed} pixels changed, {int(result.steps)} steps, verified on the file")
        return
    else:
        out.print(f"not fooled within {budget}; the best try changes {changed} pixels: more --k or more --steps")
    raise typer.Exit(1)


@app.command("zoo")
def list_zoo() -> None:
    """The shipped models, with measured accuracy."""
    table = Table(title="shipped models", title_justify="left")
    for column in ("model", "parameters", "clean", "robust", "trained by"):
        table.add_column(column, justify="right" if column in ("parameters", "clean") else "left")
    for name in zoo.names():
        card = zoo.card(name)
        robust = "\n".join(f"{value:.1%} {attack}" for attack, value in card.robust_accuracy.items())
        trained = f"{card.method}, {card.epochs} epochs"
        table.add_row(name, f"{card.parameters:,}", f"{card.clean_accuracy:.1%}", robust, trained)
    out.print(table)


def _run(
    go: Callable[..., Record],
    search: Attacker,
    source: Source,
    folder: Path | None,
    data: str,
    place: torch.device,
    quiet: bool,
) -> Record:
    """One attack on one model; an interrupt says how to go on."""
    names = {"model": source.name, "data": data}
    try:
        with _progress(f"{source.name}, {search.name}", quiet) as report:
            return go(folder, search, source.model.to(place), config=names, progress=report)
    except KeyboardInterrupt:
        how = "" if folder is None else f"; what is finished is in {folder}: run the same command again to go on"
        err.print(f"interrupted{how}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _show(title: str, caption: str, sources: Sequence[Source], records: Sequence[Record]) -> None:
    named = [(source.name, record) for source, record in zip(sources, records, strict=True)]
    out.print(_table([(name, record.summary()) for name, record in named], title, caption))
    for name, record in named:
        _say(name, record.warnings)


def _say(name: str, notices: Sequence[Notice]) -> None:
    for notice in notices:
        out.print(f"warning: {name}: {notice.message}", markup=False, highlight=False)


def _says(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The probabilities of one image, (classes,)."""
    with borrowed(model, x.device):
        return Oracle(model, Untargeted()).answers(x, 1).softmax(1)[0]


def _answer(source: Source, probabilities: torch.Tensor) -> str:
    best = int(probabilities.argmax())
    return f"{source.class_name(best)} ({float(probabilities[best]):.1%})"


def _table(rows: list[tuple[str, Summary]], title: str, caption: str) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for column in ("model", "clean", "robust", "95 %", "pixels", "steps", "time"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for name, row in rows:
        table.add_row(
            name,
            f"{row.clean_accuracy:.1%}",
            f"{row.robust_accuracy:.1%}",
            f"{100 * row.interval[0]:.1f}-{row.interval[1]:.1%}",
            "-" if math.isnan(row.median_l0) else f"{row.median_l0:.0f}",
            "-" if math.isnan(row.median_steps) else f"{row.median_steps:.0f}",
            f"{row.seconds:.1f} s",
        )
    return table


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UnsupportedError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}; try cpu") from None
    return device


@contextmanager
def _progress(title: str, quiet: bool) -> Iterator[Report]:
    """A bar on stderr that vanishes; nothing at all when stderr is no terminal."""
    columns = (TextColumn(title), BarColumn(), TextColumn("{task.fields[fooled]} fooled"), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(title, total=None, fooled=0)
        yield lambda done, total, fooled: bar.update(task, completed=done, total=total, fooled=fooled)


def main() -> None:
    """0 done, 1 failed, 2 wrong use. A traceback only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(arguments)
    except SparsePGDError as error:
        if debug:
            raise
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, InputError | BudgetError | UnsupportedError | SourceError) else 1)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(1)
