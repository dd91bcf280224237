"""`spgd evaluate` and `spgd verify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from sparsepgd import options, tables, zoo
from sparsepgd.analysis import sanity
from sparsepgd.analysis.curves import Smallest
from sparsepgd.analysis.sanity import Notice
from sparsepgd.analysis.summary import counted
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import command, device_named, err, out, progress, warn_of_classes
from sparsepgd.distributed import Workers, joined
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.shapes import shape_of
from sparsepgd.report import PAGE, refresh_page
from sparsepgd.report.entries import nouns_of
from sparsepgd.runs import runs
from sparsepgd.runs.audit import audit
from sparsepgd.runs.folders import load
from sparsepgd.runs.records import About, Record
from sparsepgd.search.contract import Attacker
from sparsepgd.sources import Data, Source, load_model, load_pairs
from sparsepgd.threat import Budget


@joined()
def evaluate(
    model: arg.Models = None,
    weights: arg.Weights = None,
    trust: arg.Trust = False,
    normalise: arg.Normalise = None,
    data: arg.DataName = "bundled",
    n: arg.Count = None,
    choose: arg.Choose = None,
    size: arg.Side = None,
    k: arg.K = 20,
    pattern: arg.PatternName = "pixel",
    eps: arg.Eps = "1",
    attack: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(options.ATTACKS)}, {options.OTHERS}; several: anneal,sparse-rs. "
            "Left out: saa+, with --k-curve anneal."
        ),
    ] = None,
    steps: arg.Steps = 100,
    queries: arg.Queries = 200,
    seed: arg.Seed = 0,
    seeds: arg.Seeds = 1,
    k_curve: Annotated[
        bool, typer.Option("--k-curve", help="Robust accuracy over k: the smallest k up to --k for each image.")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images at work at a time.")] = None,
    precision: arg.PrecisionName = None,
    compiled: arg.CompiledCode = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the records, runs/... if left out; run again to go on.")
    ] = None,
    save: Annotated[bool, typer.Option(help="Write records at all.")] = True,
    chunk: Annotated[int | None, typer.Option(help="Images between two writes to --out.")] = None,
    device: arg.Device = None,
    quiet: arg.Quiet = False,
) -> None:
    """Clean and robust accuracy. Without arguments: the bundled models on the bundled CIFAR-10 test images."""
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    attack = ("anneal" if k_curve else "saa+") if attack is None else attack
    searches = options.attacks(attack, budget, steps, queries)
    titles = [f"{search.name}, {options.length(search)}, {budget}" for search in searches]
    names = model or [f"zoo:{name}" for name in zoo.bundled_names()]
    if not save and out_dir is not None:
        raise UnsupportedError(f"--no-save with --out {out_dir}; leave one of them out")
    if save and out_dir is None:
        words = (data, n, size, k, pattern, eps, attack, steps, queries, seed, seeds, k_curve, *map(str, model or []))
        words += tuple(str(word) for word in (weights, normalise, choose) if word is not None)
        out_dir = Path("runs") / options.run_name(attack, pattern, k, words)
    workers = Workers.here()
    out.quiet = not workers.first
    place = device_named(device or workers.device)
    pairs = load_pairs(
        names, data, n, size=size, choose=options.choice(choose), device=place, weights=weights, trust=trust,
        normalise=normalise,
    )  # fmt: skip
    for _, images in pairs:  # what is wrong is said before anything is shown
        runs.chunk_size(len(images.x), chunk, workers.world, place)
        budget.resolve(shape_of(images.x))
    engine = options.engine(precision, compiled)
    go = partial(runs.run, chunk=chunk, batch_size=batch_size, engine=engine, workers=workers)
    attackers = [Smallest(search, budget) for search in searches] if k_curve else searches
    plan = _Plan(list(zip(titles, attackers, strict=True)), pairs, data, place, go, k if k_curve else None, quiet)
    plan.introduce()
    plan.with_seeds(range(seed, seed + seeds), out_dir)
    plan.conclude(out_dir)


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder with run.json and adversarial.safetensors.")],
    model: arg.Model,
    weights: arg.Weights = None,
    trust: arg.Trust = False,
    normalise: arg.Normalise = None,
    device: arg.Device = None,
) -> None:
    """Check every row of a finished run again, from its files and the model alone."""
    place = device_named(device)
    load(folder)  # what is wrong with it is said before the model is loaded
    source = load_model(model, weights=weights, trust=trust, normalise=normalise)
    found = audit(folder, source.model.to(place), device=place)
    out.print(f"{found.held} of {found.reported} reported successes hold")
    for words in found.words():
        out.print(words, soft_wrap=True)
    if not found.sound:
        raise typer.Exit(1)


@dataclass(eq=False)
class _Plan:
    """What `evaluate` does for each seed."""

    attacks: Sequence[tuple[str, Attacker]]  # with their titles
    pairs: Sequence[tuple[Source, Data]]  # the models, each with its images
    data: str
    place: torch.device
    go: Callable[..., Record]
    k_max: int | None  # of a curve over k
    quiet: bool
    fresh: bool = False  # whether anything had to be done
    pages: list[Path] = field(default_factory=list)  # folders that have one

    def introduce(self) -> None:
        """What the models and the images are, before anything runs."""
        models: dict[str, list[str]] = {}  # by what their images are
        for source, images in self.pairs:
            out.print(source.about, soft_wrap=True)
            models.setdefault(images.about, []).append(source.name)
        for words, names in models.items():
            whose = f" for {', '.join(names)}" if len(models) > 1 else ""
            out.print(f"{self.data}{whose}: {words}", soft_wrap=True)
        warn_of_classes(self.pairs)

    def with_seeds(self, seeds: Sequence[int], base: Path | None) -> None:
        """Once for each seed, and if there are several, how far they agree."""
        several = len(seeds) > 1
        found = [self.with_seed(seed, base / f"seed-{seed}" if base and several else base) for seed in seeds]
        for j, (title, _) in enumerate(self.attacks if several else ()):
            rows = [(source.name, [of_seed[j][i] for of_seed in found]) for i, (source, _) in enumerate(self.pairs)]
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
        names = [source.name for source, _ in self.pairs]
        x = self.pairs[0][1].x  # all have as many, of one kind
        thing, point = nouns_of(x)
        caption = (
            f"{counted(len(x), f'{thing}s')} of {self.data}, seed {seed}, {self.place}; changed ({point}s) and steps: "
            f"median of the fooled{'; time: of all workers together' if Workers.here().world > 1 else ''}"
        )
        found = []
        folders = runs.folders(base, names, [attack.name for _, attack in self.attacks])
        for (title, attack), places in zip(self.attacks, folders, strict=True):
            records = [self.run(attack, *pair, folder, seed) for pair, folder in zip(self.pairs, places, strict=True)]
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

    def run(self, attack: Attacker, source: Source, images: Data, folder: Path | None, seed: int) -> Record:
        """One attack on one model; an interrupt says how to go on."""
        self.fresh |= folder is None or not (folder / "run.json").is_file()
        names = {"model": source.name, "data": self.data}
        about = About(class_names=images.names_for(source.classes), command=command())
        try:
            with progress(f"{source.name}, {attack.name}", self.quiet) as report:
                net = source.model.to(self.place)
                return self.go(folder, attack, net, images, names, seed=seed, progress=report, about=about)
        except KeyboardInterrupt:
            how = "" if folder is None else f"; what is finished is in {folder}: run the same command again to go on"
            err.print(f"interrupted{how}", soft_wrap=True)
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
        out.print(f"warning: {name}: {notice.message}")
