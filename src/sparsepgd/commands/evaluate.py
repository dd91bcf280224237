"""`spgd evaluate` and `spgd verify`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from sparsepgd import options, tables, zoo
from sparsepgd.commands.common import (
    MODELS,
    Choose,
    CompiledCode,
    DataName,
    Device,
    Eps,
    K,
    Model,
    Normalise,
    PatternName,
    PrecisionName,
    Queries,
    Quiet,
    Seed,
    Steps,
    Trust,
    Weights,
    device_named,
    err,
    out,
    progress,
)
from sparsepgd.evaluation import runs, sanity
from sparsepgd.evaluation.curves import Smallest
from sparsepgd.evaluation.distributed import Workers, joined
from sparsepgd.evaluation.folders import load
from sparsepgd.evaluation.records import About, Notice, Record
from sparsepgd.evaluation.sources import Data, Source, load_data, load_model
from sparsepgd.problem.shapes import shape_of
from sparsepgd.report import PAGE, refresh_page
from sparsepgd.report.entries import nouns_of
from sparsepgd.search.ensemble import Member
from sparsepgd.threat import Budget


@joined()
def evaluate(
    model: Model = None,
    weights: Weights = None,
    trust: Trust = False,
    normalise: Normalise = None,
    data: DataName = "bundled",
    n: Annotated[int | None, typer.Option("-n", help="Only so many images.")] = None,
    choose: Choose = None,
    size: Annotated[int | None, typer.Option(help="Cut and resize pictures to this side.")] = None,
    k: K = 20,
    pattern: PatternName = "pixel",
    eps: Eps = "1",
    attack: Annotated[
        str, typer.Option(help=f"{', '.join(options.ATTACKS)}, {options.OTHERS}; several: spgd,rs")
    ] = "spgd",
    steps: Steps = 60,
    queries: Queries = 1000,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds, from --seed on.")] = 1,
    k_curve: Annotated[bool, typer.Option("--k-curve", help="The smallest k up to --k for each image.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Images at work at a time.")] = None,
    precision: PrecisionName = None,
    compiled: CompiledCode = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the records, runs/... if left out; run again to go on.")
    ] = None,
    save: Annotated[bool, typer.Option(help="Write records at all.")] = True,
    chunk: Annotated[int | None, typer.Option(help="Images between two writes to --out.")] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Clean and robust accuracy. Without arguments: the bundled models on the bundled CIFAR-10 test images."""
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    searches = options.attacks(attack, budget, steps, queries)
    titles = [f"{search.name}, {options.length(search)}, {budget}" for search in searches]
    names = model or [f"zoo:{name}" for name in zoo.bundled_names()]
    sources = [load_model(name, weights=weights, trust=trust, normalise=normalise) for name in names]
    if save and out_dir is None:
        words = (data, n, size, k, pattern, eps, attack, steps, queries, seed, seeds, k_curve, *map(str, model or []))
        words += tuple(str(word) for word in (weights, normalise, choose) if word is not None)
        out_dir = Path("runs") / options.run_name(attack, pattern, k, words)
    workers = Workers.here()
    out.quiet = not workers.first
    place = device_named(device or workers.device)
    images = load_data(data, n, size or sources[0].size, choose=options.choice(choose)).for_classes(sources[0].classes)
    x, y = (tensor.to(place) for tensor in images)
    runs.chunk_size(x, chunk, workers.world)  # what is wrong is said before anything is shown
    budget.resolve(shape_of(x))
    engine = options.engine(precision, compiled)
    go = partial(runs.run, data=(x, y), chunk=chunk, batch_size=batch_size, engine=engine, workers=workers)
    attackers = [Smallest(search, budget) for search in searches] if k_curve else searches
    plan = _Plan(
        list(zip(titles, attackers, strict=True)), sources, data, images, place, go, k if k_curve else None, quiet
    )
    plan.introduce()
    plan.with_seeds(range(seed, seed + seeds), out_dir)
    plan.conclude(out_dir)


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder with run.json and adversarial.safetensors.")],
    model: Annotated[str, typer.Option(help=f"The model of the run: {MODELS}.")],
    weights: Weights = None,
    trust: Trust = False,
    normalise: Normalise = None,
    device: Device = None,
) -> None:
    """Check every success of a finished run again, from its files and the model alone."""
    place = device_named(device)
    reported = sum(row.fooled for row in load(folder).rows)
    source = load_model(model, weights=weights, trust=trust, normalise=normalise)
    held = runs.recheck(folder, source.model.to(place), device=place)
    out.print(f"{held} of {reported} reported successes hold")
    if held < reported:
        raise typer.Exit(1)


@dataclass(eq=False)
class _Plan:
    """What `evaluate` does for each seed."""

    attacks: Sequence[tuple[str, Member]]  # with their titles
    sources: Sequence[Source]
    data: str
    images: Data
    place: torch.device
    go: Callable[..., Record]
    k_max: int | None  # of a curve over k
    quiet: bool
    fresh: bool = False  # whether anything had to be done
    pages: list[Path] = field(default_factory=list)  # folders that have one

    def introduce(self) -> None:
        """What the models and the images are, before anything runs."""
        for source in self.sources:
            out.print(source.about, markup=False, highlight=False, soft_wrap=True)
        out.print(f"{self.data}: {self.images.about}", markup=False, highlight=False, soft_wrap=True)
        for source in self.sources:
            if words := self.images.disagreement(source.classes):
                _say(source.name, [Notice("classes", words)])

    def with_seeds(self, seeds: Sequence[int], base: Path | None) -> None:
        """Once for each seed, and if there are several, how far they agree."""
        several = len(seeds) > 1
        found = [self.with_seed(seed, base / f"seed-{seed}" if base and several else base) for seed in seeds]
        for j, (title, _) in enumerate(self.attacks if several else ()):
            rows = [(source.name, [of_seed[j][i] for of_seed in found]) for i, source in enumerate(self.sources)]
            out.print(tables.over_seeds(rows, f"robust accuracy over {len(seeds)} seeds: {title}"))

    def conclude(self, base: Path | None) -> None:
        """One more page, of all runs, if there are several; and where everything is."""
        if base is not None:
            if len(self.pages) > 1:
                refresh_page(self.pages, base / PAGE)
            if self.pages:
                out.print(f"page in {base / PAGE}", soft_wrap=True)
            out.print(f"records in {base}", soft_wrap=True)
        if not self.fresh:
            out.print("this run was finished before and only read; delete the folder to run it again")

    def with_seed(self, seed: int, base: Path | None) -> list[list[Record]]:
        """All attacks on all models, each shown as soon as it is there."""
        names = [source.name for source in self.sources]
        x = self.images.x
        thing, point = nouns_of(x)
        caption = (
            f"{len(x)} {thing}s of {self.data}, seed {seed}, {self.place}; changed ({point}s) and steps: median of the "
            f"fooled{'; time: of all workers together' if Workers.here().world > 1 else ''}"
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
            self.draw(records, places)
        for i, name in enumerate(names):
            robust = {a.name: of[i].robust_accuracy for (_, a), of in zip(self.attacks, found, strict=True)}
            _say(name, sanity.compare(robust))
        return found

    def run(self, attack: Member, source: Source, folder: Path | None, seed: int) -> Record:
        """One attack on one model; an interrupt says how to go on."""
        self.fresh |= folder is None or not (folder / "run.json").is_file()
        names = {"model": source.name, "data": self.data}
        about = About(class_names=self.images.names_for(source.classes), command=shlex.join(["spgd", *sys.argv[1:]]))
        try:
            with progress(f"{source.name}, {attack.name}", self.quiet) as report:
                net = source.model.to(self.place)
                return self.go(folder, attack, net, config=names, seed=seed, progress=report, about=about)
        except KeyboardInterrupt:
            how = "" if folder is None else f"; what is finished is in {folder}: run the same command again to go on"
            err.print(f"interrupted{how}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None

    def draw(self, records: Sequence[Record], places: Sequence[Path | None]) -> None:
        """A page beside each record; of several workers the first draws."""
        for record, folder in zip(records, places, strict=True):
            if folder is not None and record.finished and not out.quiet:
                refresh_page([folder], folder / PAGE)
                self.pages.append(folder)


def _show(title: str, caption: str, named: Sequence[tuple[str, Record]]) -> None:
    out.print(tables.accuracies([(name, record.summary()) for name, record in named], title, caption))
    for name, record in named:
        _say(name, record.warnings)


def _say(name: str, notices: Sequence[Notice]) -> None:
    for notice in notices:
        out.print(f"warning: {name}: {notice.message}", markup=False, highlight=False)
