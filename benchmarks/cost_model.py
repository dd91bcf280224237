"""Numbers of docs/cost.md that need more than a lookup: fits, passes, and the model of a large run."""

import math
import statistics
from collections.abc import Iterable

from records import Record, Records

import sparsepgd as sp
from sparsepgd.evaluation import QUERIES, STEPS

Range = tuple[float, float]
IMAGES, CHUNK, GPUS = 50_000, 200, (1, 8, 64)  # of the large run


def rows_of(records: Records, name: str, what: str) -> list[Record]:
    return [row for row in records[name]["rows"] if row["what"] == what]


def fit(rows: Iterable[Record], quantity: str) -> Range:
    """A line by least squares: its slope, and its value at 0."""
    points = [(row["value"], row[quantity]) for row in rows]
    each, none = statistics.linear_regression(*zip(*points, strict=True))
    return each, none


def workers(records: Records) -> list[list[str]]:
    """The processor time of all workers, measured and fitted, and the fitted time of each, by their number."""
    found = {row["value"]: row["seconds"] for row in rows_of(records, "cost-cpu", "workers")}
    start, work = fit(rows_of(records, "cost-cpu", "workers"), "seconds")
    return [
        ["seconds, all together", *(f"{seconds:.0f}" for seconds in found.values())],
        [f"{start:.1f} W + {work:.0f}", *(f"{start * count + work:.0f}" for count in found)],
        [f"{start:.1f} + {work:.0f} / W", *(f"{start + work / count:.0f}" for count in found)],
    ]


def slower(records: Records) -> list[tuple[str, float]]:
    """The phases of cold.py in which a first call takes most seconds more than a second one."""
    phases = records["cold-phases-prn18-fast-ls"]["jobs"]["phases spgd"]
    first, second = phases["first"], phases["second"]
    lost = {name: seconds - second["phases"].get(name, (0,))[0] for name, (seconds, _) in first["phases"].items()}
    lost["what else torch does for the first time"] = first["rest"] - second["rest"]
    return sorted(lost.items(), key=lambda one: -one[1])[:5]


def passes_of(row: Record) -> Range:
    """Passes with gradient and queries, for each image."""
    return row["backwards"] / row["images"], (row["forwards"] - row["backwards"]) / row["images"]


def most_passes(steps: int = STEPS, queries: int = QUERIES) -> Range:
    """The same for an image that no attack fools."""
    members = sp.SparseAutoAttack(sp.Budget(k=1), steps, queries, version="standard").members
    gradient, none = (sum(one.evaluations for one in members if one.needs_gradient == kind) for kind in (True, False))
    return gradient, none


def parameters(records: Records) -> dict[str, Range]:
    """The lower and upper values of the parameters in docs/cost.md: seconds, and for r a ratio."""
    growth = rows_of(records, "growth-prn18-strades", "images")
    start = fit(growth, "seconds")[1]
    query = next(run for run in records["anneal-others-prn18-fast-ls"]["runs"] if run["attack"] == "cluster-rs")
    bare = next(row["us"] for row in records["speed-prn18-strades"]["spgd"]["bare"] if row["work"] == "forward")
    slow = max(run["seconds"] / run["forwards"] for run in records["anneal-prn18-fast-ls"]["runs"])
    small, large = records["cost-cpu"]["networks"]
    low, high = sorted(large[what] / small[what] for what in ("multiply-adds", "outputs"))
    fast = next(row["us"] for row in growth if row["value"] == 10_000)
    return {
        "a": (start, start),
        "g": (fast / 1e6, slow),
        "f": (bare / 1e6, query["seconds"] / query["forwards"]),
        "r": (low, high),
    }


def on_gpus(records: Records, passes: Range) -> list[str]:
    """The time of the large run, by the number of GPUs."""
    a, g, f, r = parameters(records).values()
    chunk = [4 * a[i] + CHUNK * r[i] * (passes[0] * g[i] + passes[1] * f[i]) for i in (0, 1)]
    return [span(*(math.ceil(IMAGES / CHUNK / gpus) * one for one in chunk)) for gpus in GPUS]


def span(low: float, high: float) -> str:
    unit, name = next((unit, name) for unit, name in ((3600, "h"), (60, "min"), (1, "s")) if high >= 2 * unit)
    return " to ".join(f"{float(f'{value / unit:.2g}'):g}" for value in (low, high)) + f" {name}"
