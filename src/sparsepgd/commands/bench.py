"""`spgd bench`: speed against the bare model and against other implementations, in one run."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from rich.table import Table

from sparsepgd import options
from sparsepgd.commands.common import (
    Choose,
    DataName,
    Device,
    K,
    Model,
    Normalise,
    PatternName,
    Quiet,
    Seed,
    Side,
    Trust,
    Weights,
    check_fit,
    command,
    counted,
    device_named,
    err,
    out,
    warn_of_classes,
)
from sparsepgd.errors import UnsupportedError
from sparsepgd.evaluation import atomic, bench, rivals
from sparsepgd.evaluation.sources import load_pairs
from sparsepgd.problem.engine import PRECISIONS, Precision
from sparsepgd.threat import Budget, Pixels


def measure(
    model: Model = "zoo:small-strades",
    weights: Weights = None,
    trust: Trust = False,
    normalise: Normalise = None,
    data: DataName = "bundled",
    n: Annotated[int | None, typer.Option("-n", min=1, help="Images; left out: 64 on a CPU, 500 elsewhere.")] = None,
    choose: Choose = None,
    size: Side = None,
    k: K = 20,
    pattern: PatternName = "pixel",
    steps: Annotated[int | None, typer.Option(min=1, help="Left out: 20 on a CPU, 300 elsewhere.")] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="Left out: as many as steps.")] = None,
    precision: Annotated[str | None, typer.Option(help=f"{', '.join(PRECISIONS)}, several with commas.")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Left out: on a GPU.")] = None,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds, from --seed on.")] = 1,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images at a time of the bare model.")] = None,
    official: Annotated[Path | None, typer.Option(help="A checkout of the authors' code, to run beside.")] = None,
    sparse_rs: Annotated[Path | None, typer.Option(help="A checkout of the code of Sparse-RS.")] = None,
    others: Annotated[bool, typer.Option("--others", help="Attacks of installed packages, too.")] = False,
    out_file: Annotated[Path | None, typer.Option("--out", help="FILE.json; a plot FILE.png beside it.")] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Microseconds an image and step: the bare model, our attacks, others' doing the same work."""
    place = device_named(device)
    on_cpu = place.type == "cpu"
    if out_file is not None:
        if out_file.suffix == ".png":
            raise UnsupportedError(f"--out {out_file} is the place of the plot; name the record, FILE.json")
        atomic.check(out_file)
    steps = steps or (20 if on_cpu else 300)
    queries = queries or steps
    pairs = load_pairs(
        [model], data, n or (64 if on_cpu else 500), size=size, choose=options.choice(choose), device=place,
        weights=weights, trust=trust, normalise=normalise,
    )  # fmt: skip
    warn_of_classes(pairs)
    source, (x, y) = pairs[0]
    budget = Budget(k=k, pattern=options.pattern(pattern))
    other = _rivals(budget, steps, queries, official, sparse_rs, others)
    net = source.model.to(place).eval()
    check_fit(net, x)
    job = bench.Bench(
        net,
        x,
        y,
        budget,
        steps,
        queries,
        range(seed, seed + seeds),
        batch_size or (64 if on_cpu else 512),
    )
    record = bench.measure(
        job,
        _settings(precision, compiled, on_cpu),
        other,
        tell=lambda row: None if quiet else err.print(_in_words(row), soft_wrap=True),
        command=command(),
        model=source.name,
        data=data,
    )
    out.print(_bare_table(record), _attack_table(record))
    if out_file is not None:
        from sparsepgd.report import speed

        atomic.write(out_file, (json.dumps(record, indent=1) + "\n").encode())
        speed.draw(record, out_file.with_suffix(".png"))
        out.print(f"record in {out_file}, plot in {out_file.with_suffix('.png')}", soft_wrap=True)


def _settings(words: str | None, compiled: bool | None, on_cpu: bool) -> list[tuple[Precision, bool]]:
    """The precisions that are measured; on a GPU compiled code in fp16 is what an attack takes by itself."""
    names = [word.strip() for word in words.split(",")] if words else ["fp32"] if on_cpu else ["tf32", "fp16"]
    unknown = next((name for name in names if name not in PRECISIONS), None)
    if unknown is not None:
        raise UnsupportedError(f"precision {unknown!r}; use one of {', '.join(PRECISIONS)}")
    found: list[tuple[Precision, bool]] = [(name, bool(compiled)) for name in names]  # type: ignore[misc]
    if compiled is None and not on_cpu and "fp16" in names:
        found.append(("fp16", True))
    return found


def _rivals(
    budget: Budget, steps: int, queries: int, official: Path | None, sparse_rs: Path | None, others: bool
) -> dict[str, rivals.Rival]:
    if (official or sparse_rs or others) and budget.pattern != Pixels():
        raise UnsupportedError(f"others are compared on pixels, not on {budget.pattern!r}; leave --pattern out")
    found: dict[str, rivals.Rival] = {}
    if official is not None:
        found |= rivals.official(official, budget.k, steps, queries)
    if sparse_rs is not None:
        found |= rivals.sparse_rs(sparse_rs, budget.k, queries)
    return found | (rivals.installed(budget.k, steps) if others else {})


def _in_words(row: bench.Bare | bench.Timed) -> str:
    if isinstance(row, bench.Bare):
        return f"model, {row.work}, {_how(row.precision, row.compiled)}: {row.us:.1f} us an image"
    left = counted(row.robust[0], "image")
    return f"{row.name}, {_how(row.precision, row.compiled)}: {mean(row.seconds):.2f} s, {left} left"


def _how(precision: str, compiled: bool) -> str:
    return f"{precision}, compiled" if compiled else precision


def _bare_table(record: dict[str, Any]) -> Table:
    title = f"{record['model']} alone, {record['hardware']}, {record['threads']} threads"
    table = Table(title=title, title_justify="left")
    table.add_column("work", no_wrap=True)
    table.add_column("precision", no_wrap=True)
    table.add_column("batch", justify="right")
    table.add_column("us an image", justify="right")
    for row in record["bare"]:
        table.add_row(row["work"], _how(row["precision"], row["compiled"]), str(row["batch"]), f"{row['us']:.1f}")
    return table


def _attack_table(record: dict[str, Any]) -> Table:
    caption = (
        f"{counted(record['images'], 'image')}, {record['budget']}, {counted(record['steps'], 'step')}, "
        f"{record['queries']} queries; us: an "
        "image and step; x: times the bare model; slots: in use; looks: times the host waited; first: with warm-up"
    )
    table = Table(title="attacks", title_justify="left", caption=caption, caption_justify="left")
    for name in ("attack", "s", "first", "left", "us", "x", "slots", "looks", "MB"):
        named = name == "attack"
        table.add_column(name, justify="left" if named else "right", no_wrap=not named, overflow="fold")
    for row in record["attacks"]:
        cells = [f"{mean(row['seconds']):.2f}", _number(row["warm_up"], ".1f"), f"{mean(row['robust']):.0f}"]
        cells += [_number(row["us"], ".1f"), _number(row["ratio"], ".2f"), _number(row["slots_used"], ".0%")]
        cells += [_number(row["looks"], "d"), _number(row["memory"] and row["memory"] / 1e6, ".0f")]
        table.add_row(f"{row['name']}\n{_how(row['precision'], row['compiled'])}", *cells)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
