"""`spgd compare`: attacks compared on the same images."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch

from sparsepgd import atomic, options, tables
from sparsepgd.analysis.summary import describe_budget, line
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import command, command_line, device_named, one_model, out, print_json, progress, suggest
from sparsepgd.errors import UnsupportedError, counted
from sparsepgd.runs.identity import hardware, plain
from sparsepgd.search.contract import Attacker
from sparsepgd.threat import Budget

IMAGES = 24


def compare(
    model: arg.Model = "zoo:small-plain",
    weights: arg.Weights = None,
    trust: arg.Trust = False,
    normalise: arg.Normalise = None,
    data: arg.DataName = "bundled",
    n: Annotated[
        int | None, arg.of_input("-n", min=1, help=f"Images. Default: {IMAGES}, or all if there are fewer.")
    ] = None,
    choose: arg.Choose = None,
    size: arg.Side = None,
    k: arg.K = 20,
    pattern: arg.PatternName = "pixel",
    eps: arg.Eps = "1",
    attack: Annotated[
        str | None, arg.of_attack(help="Names, separated by commas. Default: all attacks that support the pattern.")
    ] = None,
    preset: Annotated[
        str | None, arg.of_attack(help="quick: seconds for each attack; paper: settings of each paper. Default: quick.")
    ] = None,
    equal_cost: Annotated[
        int | None,
        arg.of_attack(min=10, help="Give every attack this many forward and backward passes per image."),
    ] = None,
    seed: arg.Seed = 0,
    out_file: Annotated[Path | None, arg.of_output("--out", help="Also write the table to this JSON file.")] = None,
    device: arg.Device = None,
    quiet: arg.Quiet = False,
    as_json: arg.Json = False,
) -> None:
    """Compare attacks on the same images: robust accuracy, passes and time, at presets or at equal cost."""
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    if preset is not None and equal_cost is not None:
        raise UnsupportedError(
            f"--preset {preset} with --equal-cost {equal_cost}; both set the length of the attacks; use one of them"
        )
    preset = preset or "quick"
    searches, refused = _searches(attack, budget, preset, equal_cost)
    if out_file is not None:
        atomic.check(out_file)
    where = device_named(device)
    source, (x, y) = one_model(
        model, data, n, IMAGES, where, choose=choose, size=size, weights=weights, trust=trust, normalise=normalise
    )
    how = f"{preset} presets" if equal_cost is None else f"{equal_cost} passes per image"
    head = {"model": source.name, "data": data, "n": len(x), "budget": repr(budget), "how": how, "seed": seed}
    here = {"torch": torch.__version__, "device": str(where), "hardware": hardware(where)}
    record: dict[str, Any] = {"command": command(), **head, **here, "lines": []}
    lines = []
    for name, search in searches.items():
        with progress(f"{source.name}, {name}", quiet) as report:
            start = time.perf_counter()
            result = search(source.model, x, y, seed=seed, progress=report)
            lines.append(line(name, result, time.perf_counter() - start, equal_cost))
        record["lines"].append(asdict(lines[-1]))
        if out_file is not None:  # after every attack, so that a run that is stopped keeps the finished ones
            atomic.write(out_file, (json.dumps(record, indent=2) + "\n").encode())
    caption = (
        f"{counted(len(x), 'images')} of {data}, clean accuracy {lines[0].clean_accuracy:.1%}, seed {seed}, {where}; "
        "passes: mean over the attacked images"
    )
    if refused:
        caption += f"; do not support {budget.pattern.unit}: {', '.join(refused)}"
    out.print(tables.compared(lines, f"{source.name}, {describe_budget(plain(budget))}, {how}", caption))
    if as_json:
        print_json(record)
    if out_file is not None:
        out.print(f"table in {out_file}", soft_wrap=True)
    if not (quiet or as_json):
        best = min(lines, key=lambda one: one.robust_accuracy).attack
        of_model = {"model": model, "weights": weights, "trust": trust, "normalise": normalise}
        evaluate = command_line("evaluate", **of_model, data=data, attack=best, k=k, pattern=pattern, eps=eps)
        suggest(f"run the strongest attack and write a report: {evaluate}")


def _searches(
    names: str | None, budget: Budget, preset: str, equal_cost: int | None
) -> tuple[dict[str, Attacker], list[str]]:
    """The attacks by name; if none is named, all that support the pattern, and the names of those that do not."""
    searches: dict[str, Attacker] = {}
    refused = []
    for name in options.COMPARED if names is None else options.named(names):
        try:
            if equal_cost is None:
                searches[name] = options.preset(name, budget, preset)
            else:
                searches[name] = options.at_cost(name, budget, equal_cost)
        except UnsupportedError:
            if names is not None or not searches:  # SparseAnneal comes first and supports every pattern
                raise
            refused.append(name)
    return searches, refused
