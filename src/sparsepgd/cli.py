"""The command `spgd`: parsing and printing only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import sparsepgd
from sparsepgd import options, tables, zoo
from sparsepgd.errors import BudgetError, InputError, SourceError, SparsePGDError, UnsupportedError
from sparsepgd.evaluation import figures, runs, sanity
from sparsepgd.evaluation.curves import Smallest
from sparsepgd.evaluation.distributed import Workers, joined
from sparsepgd.evaluation.folders import load
from sparsepgd.evaluation.records import Notice, Record
from sparsepgd.evaluation.sources import Source, load_data, load_image, load_model, save_image
from sparsepgd.problem import Goal, Targeted, Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.search.ensemble import Member
from sparsepgd.search.loop import Progress as Report
from sparsepgd.threat import Budget

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # letter:A:60 is no emoji
    help=sparsepgd.__doc__,
)
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


@app.command()
@joined()
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
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds, from --seed on.")] = 1,
    k_curve: Annotated[bool, typer.Option("--k-curve", help="The smallest k up to --k for each image.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Images at work at a time.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the records, runs/... if left out; run again to go on.")
    ] = None,
    save: Annotated[bool, typer.Option(help="Write records at all.")] = True,
    chunk: Annotated[int | None, typer.Option(help="Images between two writes to --out.")] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Clean and robust accuracy. Without arguments: the shipped models on the bundled CIFAR-10 test images."""
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    searches = options.attacks(attack, budget, steps, queries)
    titles = [f"{search.name}, {options.length(search)}, {budget}" for search in searches]
    sources = [load_model(name) for name in model or [f"zoo:{name}" for name in zoo.names()]]
    if save and out_dir is None:
        words = (data, n, size, k, pattern, eps, attack, steps, queries, seed, seeds, k_curve, *map(str, model or []))
        out_dir = Path("runs") / options.run_name(attack, pattern, k, words)
    workers = Workers.here()
    out.quiet = not workers.first
    place = _device(device or workers.device)
    x, y = (tensor.to(place) for tensor in load_data(data, n, size or sources[0].size))
    go = partial(runs.run, data=(x, y), chunk=chunk, batch_size=batch_size, workers=workers)
    attackers = [Smallest(search, budget) for search in searches] if k_curve else searches
    plan = _Plan(
        list(zip(titles, attackers, strict=True)), sources, data, len(x), place, go, k if k_curve else None, quiet
    )
    found: list[list[list[Record]]] = []  # by seed, attack, model
    for number in range(seed, seed + seeds):
        found.append(plan.with_seed(number, out_dir / f"seed-{number}" if out_dir and seeds > 1 else out_dir))
    for j, title in enumerate(titles if seeds > 1 else ()):
        rows = [(source.name, [of_seed[j][i] for of_seed in found]) for i, source in enumerate(sources)]
        out.print(tables.over_seeds(rows, f"robust accuracy over {seeds} seeds: {title}"))
    if out_dir is not None:
        out.print(f"records in {out_dir}", soft_wrap=True)
    if not plan.fresh:
        out.print("this run was finished before and only read; delete the folder to run it again")


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


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A folder with run.json and adversarial.safetensors.")],
    model: Annotated[str, typer.Option(help="The model of the run: zoo:NAME or FILE.py:FACTORY.")],
    device: Device = None,
) -> None:
    """Check every success of a finished run again, from its files and the model alone."""
    place = _device(device)
    reported = sum(row.fooled for row in load(folder).rows)
    held = runs.recheck(folder, load_model(model).model.to(place), device=place)
    out.print(f"{held} of {reported} reported successes hold")
    if held < reported:
        raise typer.Exit(1)


@app.command("zoo")
def list_zoo() -> None:
    """The shipped models, with measured accuracy."""
    out.print(tables.models([zoo.card(name) for name in zoo.names()]))


@dataclass(eq=False)
class _Plan:
    """What `evaluate` does for each seed."""

    attacks: Sequence[tuple[str, Member]]  # with their titles
    sources: Sequence[Source]
    data: str
    images: int
    place: torch.device
    go: Callable[..., Record]
    k_max: int | None  # of a curve over k
    quiet: bool
    fresh: bool = False  # whether anything had to be done

    def with_seed(self, seed: int, base: Path | None) -> list[list[Record]]:
        """All attacks on all models, each shown as soon as it is there."""
        names = [source.name for source in self.sources]
        caption = (
            f"{self.images} images of {self.data}, seed {seed}, {self.place}; pixels and steps: median of the fooled"
        )
        found = []
        folders = runs.folders(base, names, [attack.name for _, attack in self.attacks])
        for (title, attack), places in zip(self.attacks, folders, strict=True):
            records = [self.run(attack, *pair, seed) for pair in zip(self.sources, places, strict=True)]
            found.append(records)
            named = list(zip(names, records, strict=True))
            _show(title, caption, named)
            if self.k_max is not None:
                out.print(tables.over_k(named, self.k_max, "robust accuracy over k"))
            self.draw(named, places)
        for i, name in enumerate(names):
            robust = {a.name: of[i].robust_accuracy for (_, a), of in zip(self.attacks, found, strict=True)}
            _say(name, sanity.compare(robust))
        return found

    def run(self, attack: Member, source: Source, folder: Path | None, seed: int) -> Record:
        """One attack on one model; an interrupt says how to go on."""
        self.fresh |= folder is None or not (folder / "run.json").is_file()
        names = {"model": source.name, "data": self.data}
        try:
            with _progress(f"{source.name}, {attack.name}", self.quiet) as report:
                return self.go(folder, attack, source.model.to(self.place), config=names, seed=seed, progress=report)
        except KeyboardInterrupt:
            how = "" if folder is None else f"; what is finished is in {folder}: run the same command again to go on"
            err.print(f"interrupted{how}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None

    def draw(self, named: Sequence[tuple[str, Record]], places: Sequence[Path | None]) -> None:
        """The curves as a picture beside each record; of several workers the first draws."""
        for (name, record), folder in zip(named, places, strict=True):
            if folder is not None and record.finished and not out.quiet:
                figures.draw(record, folder, name, self.k_max)


def _show(title: str, caption: str, named: Sequence[tuple[str, Record]]) -> None:
    out.print(tables.accuracies([(name, record.summary()) for name, record in named], title, caption))
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
    with Progress(*columns, console=err, transient=True, disable=quiet or out.quiet or not err.is_terminal) as bar:
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
