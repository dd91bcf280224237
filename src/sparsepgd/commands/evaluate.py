"""`spgd evaluate` and `spgd verify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sparsepgd import options, tables, zoo
from sparsepgd.analysis import sanity
from sparsepgd.analysis.curves import Smallest
from sparsepgd.analysis.summary import describe_budget
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import (
    Interrupted,
    command,
    command_line,
    device_named,
    out,
    print_json,
    progress,
    suggest,
    warn_of_classes,
)
from sparsepgd.distributed import Workers, joined
from sparsepgd.errors import UnsupportedError, counted
from sparsepgd.evaluation import QUERIES, STEPS, Evaluation
from sparsepgd.evaluation import evaluate as run_evaluation
from sparsepgd.problem.shapes import shape_of
from sparsepgd.report import PAGE, refresh_page
from sparsepgd.report.entries import nouns_of
from sparsepgd.runs import identity, runs
from sparsepgd.runs.audit import audit
from sparsepgd.runs.folders import load
from sparsepgd.search.contract import Attacker
from sparsepgd.sources import Data, Source, load_model, load_pairs
from sparsepgd.threat import Budget

Pairs = Sequence[tuple[Source, Data]]  # models, each with its images


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
        arg.of_attack(
            help=f"{', '.join(options.ATTACKS)}, {options.OTHERS}; separate several with commas. "
            "Default: saa+, or anneal with --k-curve."
        ),
    ] = None,
    steps: arg.Steps = STEPS,
    queries: arg.Queries = QUERIES,
    seed: arg.Seed = 0,
    seeds: arg.Seeds = 1,
    k_curve: Annotated[
        bool, arg.of_attack("--k-curve", help="Robust accuracy over k: the smallest k up to --k for each image.")
    ] = False,
    batch_size: arg.BatchSize = None,
    precision: arg.PrecisionName = None,
    compiled: arg.CompiledCode = False,
    out_dir: Annotated[
        Path | None, arg.of_output("--out", help="Folder of the run; the same command resumes it. Default: runs/...")
    ] = None,
    save: Annotated[bool, arg.of_output(help="Save the run.")] = True,
    chunk: Annotated[int | None, arg.of_output(help="Save after this many images.")] = None,
    device: arg.Device = None,
    quiet: arg.Quiet = False,
    as_json: arg.Json = False,
) -> None:
    """Measure clean and robust accuracy. Without arguments: the shipped models on bundled CIFAR-10 test images."""
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    attack = ("anneal" if k_curve else "saa+") if attack is None else attack
    searches = [options.attack(name, budget, steps, queries=queries) for name in options.named(attack)]
    titles = [
        f"{search.name}, {options.length(search)}, {describe_budget(identity.plain(budget))}" for search in searches
    ]
    names = model or [f"zoo:{name}" for name in zoo.bundled_names()]
    if not save and out_dir is not None:
        raise UnsupportedError(f"--no-save with --out {out_dir}; omit one of them")
    if save and out_dir is None:
        given = (data, n, size, k, pattern, eps, attack, steps, queries, seed, seeds, k_curve, *map(str, model or []))
        given += tuple(str(option) for option in (weights, normalise, choose) if option is not None)
        out_dir = options.run_folder((attack, pattern, f"k{k}"), given)
    workers = Workers.here()
    out.quiet = not workers.first
    where = device_named(device or workers.device)
    engine = options.engine(precision, compiled, where)
    pairs = load_pairs(
        names, data, n, size=size, choose=options.choice(choose), device=where, weights=weights, trust=trust,
        normalise=normalise,
    )  # fmt: skip
    for _, images in pairs:  # errors come before any output
        runs.chunk_size(len(images.x), chunk, workers.world, where)
        budget.resolve(shape_of(images.x))
    attackers = [Smallest(search, budget) for search in searches] if k_curve else searches
    named = list(zip(titles, attackers, strict=True))
    _introduce(pairs, data)
    run = partial(_run, data=data, quiet=quiet, where=where, chunk=chunk, batch_size=batch_size, engine=engine)
    rounds = []  # by seed, attack and model
    for number in range(seed, seed + seeds):
        base = out_dir / f"seed-{number}" if out_dir and seeds > 1 else out_dir
        caption = _caption(pairs, data, number, where)
        rounds.append(_round(run, named, pairs, number, base, caption, k if k_curve else None))
    if seeds > 1:
        for j, title in enumerate(titles):
            rows = [
                (source.name, [by_attack[j][i].record for by_attack in rounds]) for i, (source, _) in enumerate(pairs)
            ]
            out.print(tables.over_seeds(rows, f"robust accuracy over {seeds} seeds: {title}"))
    every = [one for by_attack in rounds for by_model in by_attack for one in by_model]
    _conclude(every, out_dir)
    if not (quiet or as_json):
        _suggest(every, searches, model=names[0], weights=weights, trust=trust, normalise=normalise)
    if as_json:
        print_json([_numbers(one) for one in every])


def _numbers(one: Evaluation) -> dict[str, Any]:
    """The output of --json."""
    configuration = one.record.configuration
    return {
        "model": configuration["model"]["name"],
        "data": configuration["data"]["name"],
        "attack": configuration["attack"],
        "seed": configuration["seed"],
        "images": one.record.images,
        "clean_accuracy": one.clean_accuracy,
        "robust_accuracy": one.robust_accuracy,
        "robust_interval": list(one.robust_interval),
        "warnings": [notice.message for notice in one.warnings],
        "folder": None if one.folder is None else str(one.folder),
    }


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder with run.json and adversarial.safetensors.")],
    model: arg.Model,
    weights: arg.Weights = None,
    trust: arg.Trust = False,
    normalise: arg.Normalise = None,
    data: Annotated[
        str | None,
        arg.of_input("--data", help="Images of the run, as for spgd evaluate. Default: those stored in the folder."),
    ] = None,
    choose: arg.Choose = None,
    size: arg.Side = None,
    device: arg.Device = None,
) -> None:
    """Check every reported success of a finished run again, from its files and the model alone. With --data, also
    check that the run used these images and labels."""
    where = device_named(device)
    record = load(folder)  # raises before the model is loaded
    how: dict[str, Any] = {"weights": weights, "trust": trust, "normalise": normalise}
    if data is not None:
        pairs = load_pairs(
            [model], data, record.images, size=size, choose=options.choice(choose), fewer=True, device=where, **how
        )
        source, images = pairs[0]  # too few images are refused by the audit
    elif choose is not None or size is not None:
        raise UnsupportedError("--choose and --size describe the images of --data; add --data or omit them")
    else:
        source, images = load_model(model, **how), None
    result = audit(folder, source.model.to(where), images, device=where)
    out.print(f"{result.held} of {result.reported} reported successes confirmed")
    for message in result.messages():
        out.print(message, soft_wrap=True)
    if not result.sound:
        raise typer.Exit(1)


def _introduce(pairs: Pairs, data: str) -> None:
    """Describe the models and the images before anything runs."""
    models: dict[str, list[str]] = {}  # by the description of their images
    for source, images in pairs:
        out.print(source.about, soft_wrap=True)
        models.setdefault(images.about, []).append(source.name)
    for description, names in models.items():
        whose = f" for {', '.join(names)}" if len(models) > 1 else ""
        out.print(f"{data}{whose}: {description}", soft_wrap=True)
    warn_of_classes(pairs)


def _caption(pairs: Pairs, data: str, seed: int, where: torch.device) -> str:
    x = pairs[0][1].x  # the number and kind of images is the same for all
    thing, point = nouns_of(x)
    return (
        f"{counted(len(x), f'{thing}s')} of {data}, seed {seed}, {where}; changed ({point}s) and steps: "
        f"median over fooled images{'; time: all workers together' if Workers.here().world > 1 else ''}"
    )


def _round(
    run: Callable[..., Evaluation],
    attacks: Sequence[tuple[str, Attacker]],  # with their titles
    pairs: Pairs,
    seed: int,
    base: Path | None,
    caption: str,
    k_max: int | None,  # of a curve over k
) -> list[list[Evaluation]]:
    """By attack and model: all attacks on all models with one seed, each printed as soon as it is finished."""
    names, by_attack = [source.name for source, _ in pairs], []
    folders = runs.folders(base, names, [attack.name for _, attack in attacks])
    for (title, attack), paths in zip(attacks, folders, strict=True):
        by_model = [run(*pair, attack, folder, seed) for pair, folder in zip(pairs, paths, strict=True)]
        by_attack.append(by_model)
        named = [(name, one.record) for name, one in zip(names, by_model, strict=True)]
        out.print(tables.accuracies([(name, record.summary()) for name, record in named], title, caption))
        for name, record in named:
            _warn(name, record.warnings)
        if k_max is not None:
            out.print(tables.over_k(named, k_max, "robust accuracy over k"))
        if base is not None and not out.quiet:  # only the first worker writes reports
            for evaluation in by_model:
                evaluation.report()
    for i, name in enumerate(names):
        robust = {a.name: by_model[i].robust_accuracy for (_, a), by_model in zip(attacks, by_attack, strict=True)}
        _warn(name, sanity.compare(robust))
    return by_attack


def _run(
    source: Source, images: Data, attack: Attacker, folder: Path | None, seed: int, *,
    data: str, quiet: bool, where: torch.device, **how: Any,
) -> Evaluation:  # fmt: skip
    """One attack on one model; on an interrupt, the message says how to resume."""
    names, classes = {"model": source.name, "data": data}, images.names_for(source.classes)
    try:
        with progress(f"{source.name}, {attack.name}", quiet) as report:
            return run_evaluation(
                source.model.to(where), *images, attack=attack, out=folder, seed=seed, names=names,
                class_names=classes, command=command(), progress=report, **how,
            )  # fmt: skip
    except KeyboardInterrupt:
        resume = "" if folder is None else f"; finished images are in {folder}; run the same command again to resume"
        raise Interrupted(f"interrupted{resume}") from None


def _conclude(every: Sequence[Evaluation], base: Path | None) -> None:
    """Write a page of all runs, if there are several, and print where everything is."""
    if base is not None:
        if len(every) > 1 and not out.quiet:
            refresh_page({one.folder: one.written for one in every if one.folder is not None}, base / PAGE)
        out.print(f"report in {base / PAGE}", soft_wrap=True)
        out.print(f"records in {base}", soft_wrap=True)
    if all(one.only_read for one in every):
        which = "this run was" if len(every) == 1 else "these runs were"
        out.print(f"{which} already finished and only read; delete the folder to run again")


def _suggest(every: Sequence[Evaluation], searches: Sequence[Attacker], **model: object) -> None:
    """Suggest what to do next; `model`: the options for the model of the first run."""
    if (folder := every[0].folder) is None:
        suggest("omit --no-save to save the run with a report")
    else:
        which = "the run" if len(every) == 1 else "the first run"
        suggest(f"verify {which}: {command_line('verify', folder, **model)}")
    longer = " ".join(
        f"--{unit} {long}"
        for unit, long in sanity.LONG.items()
        if any((vars(search).get(unit) or long) < long for search in searches)
    )
    if not longer:
        return
    if any(notice.code == "too-short" for one in every for notice in one.warnings):
        suggest(f"robust accuracy was still falling: use {longer} or more")
    else:
        suggest(f"to publish numbers, use {longer} and more images (-n)")


def _warn(name: str, notices: Sequence[sanity.Notice]) -> None:
    for notice in notices:
        out.print(f"warning: {name}: {notice.message}")
