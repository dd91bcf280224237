"""`spgd reproduce`: the paper's tables and figures, at a chosen scale."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsepgd import tables
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import Interrupted, device_named, out, progress
from sparsepgd.errors import SourceError, UnsupportedError, counted
from sparsepgd.report.page import duration
from sparsepgd.reproduce.jobs import SCALES, Job, scale
from sparsepgd.reproduce.parts import Outcome, cost
from sparsepgd.reproduce.recipe import Recipe
from sparsepgd.reproduce.recipes import RECIPES, recipe
from sparsepgd.reproduce.show import grids, heading, write


def reproduce(
    table: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE", help="Names, or all. Without a name, the recipes are listed."),
    ] = None,
    effort: Annotated[
        str, typer.Option("--scale", help="smoke: seconds to minutes; small: about an hour; paper: days on a CPU.")
    ] = "smoke",
    model: Annotated[
        list[str] | None,
        arg.of_input(help="ROLE=SOURCE replaces one of the paper's models; SOURCE alone replaces the first."),
    ] = None,
    data: arg.DataName = "bundled",
    n: Annotated[int | None, arg.of_input("-n", min=1, help="Number of images. Default: set by --scale.")] = None,
    size: arg.Side = None,
    seed: arg.Seed = 0,
    out_dir: Annotated[
        Path | None, arg.of_output("--out", help="Folder for records, tables and figures; the same command resumes.")
    ] = None,
    dry: Annotated[bool, arg.of_output("--dry-run", help="Only estimate the cost.")] = False,
    device: arg.Device = None,
    quiet: arg.Quiet = False,
) -> None:
    """Reproduce a table or figure of the paper, and print it beside the paper's numbers."""
    chosen, names = scale(effort), table or []
    if not names:
        out.print("spgd reproduce RECIPE --scale " + "|".join(SCALES))
        for one in RECIPES.values():
            out.print(f"  {one.name:<21}{one.about} ({one.source})", soft_wrap=True)
        return
    recipes = list(RECIPES.values()) if names == ["all"] else [recipe(name) for name in names]
    folder = out_dir or Path("runs") / f"reproduce-{chosen.name}"
    where, made = device_named(device), 0
    for one in recipes:
        job = Job(chosen, folder, _models(model or [], one), data, n, size, where, seed)
        try:
            _make(one, job, dry, quiet)
            made += 1
        except (SourceError, UnsupportedError) as error:
            if names != ["all"]:
                raise
            out.print(f"{one.name} was skipped: {error}", soft_wrap=True)
    if made < len(recipes):
        out.print(f"{made} of {len(recipes)} recipes were run")


def _models(given: list[str], one: Recipe) -> dict[str, str]:
    """Sources by role, from ``ROLE=SOURCE``; a source alone takes the first role."""
    models: dict[str, str] = {}
    for text in given:
        role, equals, source = text.partition("=")
        if not equals:
            role, source = next(iter(one.roles), ""), text
        if role in models:
            raise UnsupportedError(f"two models for {role}; give each a role: --model ROLE=SOURCE")
        models[role] = source
    return models


def _make(one: Recipe, job: Job, dry: bool, quiet: bool) -> None:
    job, plan = one.prepare(job)
    price = cost(plan)
    out.print(f"{one.name}: {one.about} ({one.source or 'the paper'}), scale {job.scale.name}")
    out.print(
        f"cost     {counted(price.parts, 'runs')}, at most about {price.passes:,} passes, "
        f"{duration(price.seconds)} here ({price.milliseconds:.2f} ms per pass, measured now); "
        "finished runs are reused",
        soft_wrap=True,
    )
    if dry:
        return
    done = []
    try:
        for i, part in enumerate(plan.parts, 1):
            with progress(f"{i}/{len(plan.parts)} {part.title}", quiet) as report:
                done.append(part.run(job, report))
    except KeyboardInterrupt:
        message = f"interrupted; finished runs are in {job.out}; run the same command again to resume"
        raise Interrupted(message) from None
    _show(one, job, plan.finish(done))


def _show(one: Recipe, job: Job, outcome: Outcome) -> None:
    for grid in grids(outcome):
        shown = grid.within(out.width)
        out.print(tables.words(shown.header, shown.rows, heading(grid.title, outcome.unit)))
    out.print("why they may differ:")
    for reason in outcome.reasons:
        out.print(f"  - {reason}", soft_wrap=True)
    files = write(one, job, outcome)
    out.print(f"in {files[0].parent}: {', '.join(file.name for file in files)}", soft_wrap=True)
    out.print()
