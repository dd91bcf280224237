"""`spgd bench`: speed against the bare model and against other implementations, in one run."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Annotated

from sparsepgd import atomic, options, tables
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import command, device_named, err, one_model, out, suggest
from sparsepgd.errors import UnsupportedError, counted
from sparsepgd.problem.engine import PRECISIONS, Precision, cpu_has_bf16
from sparsepgd.problem.oracle import logits_of
from sparsepgd.problem.shapes import shape_of
from sparsepgd.speed import bench, rivals
from sparsepgd.threat import Budget, Pixels


def measure(
    model: arg.Model = "zoo:small-strades",
    weights: arg.Weights = None,
    trust: arg.Trust = False,
    normalise: arg.Normalise = None,
    data: arg.DataName = "bundled",
    n: Annotated[
        int | None,
        arg.of_input("-n", min=1, help="Images. Default: 64 on a CPU, 500 on a GPU, or all if there are fewer."),
    ] = None,
    choose: arg.Choose = None,
    size: arg.Side = None,
    k: arg.K = 20,
    pattern: arg.PatternName = "pixel",
    steps: Annotated[int | None, arg.of_attack(min=2, help="Default: 20 on a CPU, 300 on a GPU.")] = None,
    queries: Annotated[int | None, arg.of_attack(min=1, help="Default: the number of steps.")] = None,
    precision: Annotated[
        str | None, arg.of_performance(help=f"{', '.join(PRECISIONS)}; separate several with commas.")
    ] = None,
    compiled: Annotated[bool | None, arg.of_performance("--compile/--no-compile", help="Default: on a GPU.")] = None,
    seed: arg.Seed = 0,
    seeds: arg.Seeds = 1,
    batch_size: Annotated[int | None, arg.of_performance(min=1, help="Batch size of the bare model.")] = None,
    official: Annotated[Path | None, arg.of_attack(help="A checkout of the authors' code, to compare with.")] = None,
    sparse_rs: Annotated[Path | None, arg.of_attack(help="A checkout of the Sparse-RS code, to compare with.")] = None,
    others: Annotated[bool, arg.of_attack("--others", help="Also attacks of other installed packages.")] = False,
    below: Annotated[
        float | None,
        arg.of_attack(min=0, max=1, help="Also measure the time until robust accuracy is below this, such as 0.69."),
    ] = None,
    out_file: Annotated[Path | None, arg.of_output("--out", help="FILE.json; a plot is written to FILE.png.")] = None,
    device: arg.Device = None,
    quiet: arg.Quiet = False,
) -> None:
    """Measure speed in microseconds per image and step: the bare model, our attacks and those of others."""
    where = device_named(device)
    on_cpu = where.type == "cpu"
    if out_file is not None:
        if out_file.suffix == ".png":
            raise UnsupportedError(f"--out {out_file} is where the plot goes; name the record FILE.json")
        atomic.check(out_file)
    default = 64 if on_cpu else 500
    steps = steps or (20 if on_cpu else 300)
    queries = queries or steps
    source, (x, y) = one_model(
        model, data, n, default, where, choose=choose, size=size, weights=weights, trust=trust, normalise=normalise
    )
    budget = Budget(k=k, pattern=options.pattern(pattern))
    budget.resolve(shape_of(x))
    others_by_name = _rivals(budget, steps, queries, official, sparse_rs, others)
    logits_of(source.model, x[:1], 1)  # raises if the model does not take such images
    at_once = batch_size or (64 if on_cpu else 512)
    record = bench.measure(
        bench.Bench(source.model, x, y, budget, steps, queries, range(seed, seed + seeds), at_once, below),
        _settings(precision, compiled, on_cpu),
        others_by_name,
        on_row=lambda row: None if quiet else err.print(_in_words(row), soft_wrap=True),
        command=command(),
        model=source.name,
        data=data,
    )
    out.print(tables.bare_model(record), tables.timed_attacks(record))
    if out_file is not None:
        atomic.write(out_file, (json.dumps(record, indent=1) + "\n").encode())
        bench.draw(record, out_file.with_suffix(".png"))
        out.print(f"record in {out_file}, plot in {out_file.with_suffix('.png')}", soft_wrap=True)
    elif not quiet:
        suggest("save these numbers and plot them: --out speed.json")


def _settings(given: str | None, compiled: bool | None, on_cpu: bool) -> list[tuple[Precision, bool]]:
    """The precisions to measure, and whether to compile; on a GPU, fp16 both ways unless `compiled` is set."""
    default = ("fp32,bf16" if cpu_has_bf16() else "fp32") if on_cpu else "tf32,fp16"
    names = [name.strip() for name in (given or default).split(",")]
    unknown = next((name for name in names if name not in PRECISIONS), None)
    if unknown is not None:
        raise UnsupportedError(f"precision {unknown!r}; use one of {', '.join(PRECISIONS)}")
    if compiled and on_cpu:
        raise UnsupportedError(options.NO_COMPILER)
    settings: list[tuple[Precision, bool]] = [(name, bool(compiled)) for name in names]  # type: ignore[misc]
    if compiled is None and not on_cpu and "fp16" in names:
        settings.append(("fp16", True))
    return settings


def _rivals(
    budget: Budget, steps: int, queries: int, official: Path | None, sparse_rs: Path | None, others: bool
) -> dict[str, rivals.Rival]:
    if (official or sparse_rs or others) and budget.pattern != Pixels():
        raise UnsupportedError(
            f"other implementations are compared on pixels, not on {budget.pattern!r}; omit --pattern"
        )
    attacks: dict[str, rivals.Rival] = {}
    if official is not None:
        attacks |= rivals.official(official, budget.k, steps, queries)
    if sparse_rs is not None:
        attacks |= rivals.sparse_rs(sparse_rs, budget.k, queries)
    if others:
        attacks |= rivals.installed(budget.k, steps)
    return attacks


def _in_words(row: bench.Bare | bench.Timed) -> str:
    if isinstance(row, bench.Bare):
        return f"model, {row.work}, {tables.how(row.precision, row.compiled)}: {row.us:.1f} us an image"
    left = counted(row.robust[0], "images")
    return f"{row.name}, {tables.how(row.precision, row.compiled)}: {mean(row.seconds):.2f} s, {left} left"
