"""Numbers from the sizes that minimum_norm.py measured: medians, curves, AttackBench's optimality."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from minimum_norm_attacks import ATTACKS, PATTERNS

Record = dict[str, Any]
Sizes = Sequence[int | None]  # one per image; None: not fooled
WITHIN = (1, 2, 3, 5, 10, 20, 50, 100, 200)
CUT = WITHIN[-1]  # failures and larger sizes count as this in a mean


def numbers(sizes: Sizes, best: Sizes) -> Record:
    """The numbers of one attack for one way of counting; `best`: the smallest known sizes of its images."""
    found = [math.inf if size is None else size for size in sizes]
    median = statistics.median(found)
    return {
        "median": None if math.isinf(median) else median,
        "mean": statistics.mean(min(size, CUT) for size in found),
        "not fooled": sum(map(math.isinf, found)) / len(found),
        "within": {str(k): sum(size > k for size in found) / len(found) for k in WITHIN},
        "optimality": optimality(sizes, best),
    }


def optimality(sizes: Sizes, best: Sizes) -> float | None:
    """Local optimality: (eps - A(attack)) / (eps - A(best)), where A is the area from 0 to eps under the share of
    images not fooled within k. eps is the largest size in `best`; images that no attack fools count as eps in both. A
    is then the mean of sizes cut at eps. Misclassified images, which have size 0 in AttackBench, would change nothing,
    because they scale numerator and denominator alike."""
    known = [size for size in best if size is not None]
    if not known:
        return None
    eps = max(known)

    def area(sizes: Sizes) -> float:
        return statistics.mean(eps if size is None else min(size, eps) for size in sizes)

    room = eps - area(best)
    return (eps - area(sizes)) / room if room > 0 else None


def smallest(several: Sequence[Sizes]) -> list[int | None]:
    """The smallest size of each image; the lists may have different lengths."""
    longest = max(map(len, several), default=0)
    known = [[sizes[i] for sizes in several if i < len(sizes)] for i in range(longest)]
    return [min((size for size in sizes if size is not None), default=None) for sizes in known]


def rows(model: Record, counts: str) -> list[Record]:
    """The runs that one table shows: those that count this way, and those of attacks that cannot."""
    return [run for run in model["runs"] if run["counts"] == counts or counts not in ATTACKS[run["attack"]].counts]


def finish(record: Record) -> Record:
    """Add the numbers that follow from the sizes."""
    for model in record["models"]:
        for run in model["runs"]:
            run["numbers"] = {}
        for counts in PATTERNS:
            runs = [run for run in rows(model, counts) if "error" not in run]
            best = smallest([run["sizes"][counts] for run in runs])
            for run in runs:
                sizes = run["sizes"][counts]
                run["numbers"][counts] = numbers(sizes, best[: len(sizes)])
    record["global optimality"] = {counts: overall(record, counts) for counts in PATTERNS}
    return record


def overall(record: Record, counts: str) -> dict[str, float | None]:
    """Global optimality: the mean over the models; None unless an attack has a number on each."""
    found: dict[str, list[float | None]] = {}
    for model in record["models"]:
        for run in rows(model, counts):
            found.setdefault(run["attack"], []).append(run["numbers"].get(counts, {}).get("optimality"))
    full = {name: [one for one in each if one is not None] for name, each in found.items()}
    count = len(record["models"])
    return {name: statistics.mean(each) if len(each) == count else None for name, each in full.items()}
