"""`spgd compare`: all attacks beside each other on the same images."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from sparsepgd import options
from sparsepgd.commands.common import (
    Choose,
    Count,
    DataName,
    Device,
    Eps,
    K,
    Model,
    Normalise,
    PatternName,
    Quiet,
    Seed,
    Side,
    Trust,
    Weights,
    command,
    counted,
    device_named,
    out,
    progress,
    warn_of_classes,
)
from sparsepgd.errors import UnsupportedError
from sparsepgd.evaluation import atomic
from sparsepgd.evaluation.identity import hardware
from sparsepgd.evaluation.sources import load_pairs
from sparsepgd.evaluation.summary import wilson
from sparsepgd.problem import Result
from sparsepgd.threat import Budget


@dataclass(frozen=True)
class Line:
    """One attack in the table."""

    attack: str
    clean_accuracy: float
    robust_accuracy: float
    interval: tuple[float, float]  # 95 %
    median_groups: float | None  # of the fooled
    forwards: float  # for an attacked image, on average
    backwards: float
    seconds: float


def compare(
    model: Model = "zoo:small-plain",
    weights: Weights = None,
    trust: Trust = False,
    normalise: Normalise = None,
    data: DataName = "bundled",
    n: Count = 24,
    choose: Choose = None,
    size: Side = None,
    k: K = 20,
    pattern: PatternName = "pixel",
    eps: Eps = "1",
    attack: Annotated[str | None, typer.Option(help="Names with commas; left out: all that take the pattern.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="quick, if left out: seconds for each; paper: the settings of each paper.")
    ] = None,
    equal_cost: Annotated[
        int | None,
        typer.Option(min=10, help="Passes for an image, both ways together; later successes do not count."),
    ] = None,
    seed: Seed = 0,
    out_file: Annotated[Path | None, typer.Option("--out", help="The table as JSON, too.")] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Robust accuracy, passes of the model and time of all attacks, at their presets or at equal cost."""
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    if preset is not None and equal_cost is not None:
        raise UnsupportedError(f"--preset {preset} with --equal-cost {equal_cost}; either sets the length: use one")
    preset = preset or "quick"
    searches, refused = _searches(attack, budget, preset, equal_cost)
    if out_file is not None:
        atomic.check(out_file)
    place = device_named(device)
    pairs = load_pairs(
        [model], data, n, size=size, choose=options.choice(choose), device=place, weights=weights, trust=trust,
        normalise=normalise,
    )  # fmt: skip
    warn_of_classes(pairs)
    source, (x, y) = pairs[0]
    net = source.model.to(place).eval()
    lines = []
    for name, search in searches.items():
        with progress(f"{source.name}, {name}", quiet) as report:
            start = time.perf_counter()
            result = search(net, x, y, seed=seed, progress=report)
            lines.append(_line(name, result, time.perf_counter() - start, equal_cost))
    how = f"{preset} presets" if equal_cost is None else f"{equal_cost} passes for an image"
    caption = f"{counted(len(x), 'image')} of {data}, seed {seed}, {place}; passes: mean of the attacked images"
    if refused:
        caption += f"; not for {budget.pattern.unit}: {', '.join(refused)}"
    out.print(_table(lines, f"{source.name}, {budget}, {how}", caption))
    if out_file is not None:
        content = {
            "command": command(),
            "model": source.name,
            "data": data,
            "n": len(x),
            "budget": repr(budget),
            "how": how,
            "seed": seed,
            "torch": torch.__version__,
            "device": str(place),
            "hardware": hardware(place),
            "lines": [asdict(one) for one in lines],
        }
        atomic.write(out_file, (json.dumps(content, indent=2) + "\n").encode())


def _searches(
    names: str | None, budget: Budget, preset: str, equal_cost: int | None
) -> tuple[dict[str, Any], list[str]]:
    """The attacks by name; if none is named, all that take the pattern, and the names of those that do not."""
    found: dict[str, Any] = {}
    refused = []
    for name in options.COMPARED if names is None else options.named(names):
        try:
            if equal_cost is None:
                found[name] = options.preset(name, budget, preset)
            else:
                found[name] = options.at_cost(name, budget, equal_cost)
        except UnsupportedError:
            if names is not None or not found:  # SparsePGD comes first and takes every pattern
                raise
            refused.append(name)
    return found, refused


def _line(name: str, result: Result, seconds: float, most: int | None) -> Line:
    passes = result.forwards + result.backwards
    fooled = result.fooled if most is None else result.fooled & (passes <= most)
    robust, attacked = result.clean_correct & ~fooled, passes > 0
    groups = result.groups[fooled].double()
    return Line(
        attack=name,
        clean_accuracy=result.clean_accuracy,
        robust_accuracy=float(robust.double().mean()),
        interval=wilson(int(robust.sum()), len(result)),
        median_groups=float(groups.median()) if len(groups) else None,
        forwards=float(result.forwards[attacked].double().mean()) if bool(attacked.any()) else 0.0,
        backwards=float(result.backwards[attacked].double().mean()) if bool(attacked.any()) else 0.0,
        seconds=seconds,
    )


def _table(lines: Sequence[Line], title: str, caption: str) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in ("attack", "robust", "95 %", "groups", "forward", "backward", "time"):
        named = column == "attack"
        table.add_column(column, justify="left" if named else "right", no_wrap=not named, overflow="fold")
    for one in sorted(lines, key=lambda line: line.robust_accuracy):
        table.add_row(
            one.attack,
            f"{one.robust_accuracy:.1%}",
            f"{100 * one.interval[0]:.0f}-{one.interval[1]:.0%}",
            "-" if one.median_groups is None else f"{one.median_groups:.0f}",
            f"{one.forwards:.0f}",
            f"{one.backwards:.0f}",
            f"{one.seconds:.1f} s",
        )
    return table
