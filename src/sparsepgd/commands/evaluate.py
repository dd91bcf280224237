"""`spgd evaluate` and `spgd verify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from sparsepgd import options, tables, zoo
from sparsepgd.commands.common import (
    Device,
    Eps,
    K,
    Model,
    PatternName,
    Queries,
    Quiet,
    Seed,
    Steps,
    device_named,
    err,
    out,
    progress,
)
from sparsepgd.evaluation import figures, runs, sanity
from sparsepgd.evaluation.curves import Smallest
from sparsepgd.evaluation.distributed import Workers, joined
from sparsepgd.evaluation.folders import load
from sparsepgd.evaluation.records import Notice, Record
from sparsepgd.evaluation.sources import Source, load_data, load_model
from sparsepgd.search.ensemble import Member
from sparsepgd.threat import Budget


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
    place = device_named(device or workers.device)
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


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder with run.json and adversarial.safetensors.")],
    model: Annotated[str, typer.Option(help="The model of the run: zoo:NAME or FILE.py:FACTORY.")],
    device: Device = None,
) -> None:
    """Check every success of a finished run again, from its files and the model alone."""
    place = device_named(device)
    reported = sum(row.fooled for row in load(folder).rows)
    held = runs.recheck(folder, load_model(model).model.to(place), device=place)
    out.print(f"{held} of {reported} reported successes hold")
    if held < reported:
        raise typer.Exit(1)


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
            with progress(f"{source.name}, {attack.name}", self.quiet) as report:
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
