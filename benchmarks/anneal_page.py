"""The measurements of anneal.py, as docs/anneal.md shows them."""

from typing import Any

from records import Record, Records

MARKED = (30, 100, 300, 1000, 1600, 6000, 10_000)  # passes


def annealed(records: Records, kind: str) -> list[Record]:
    """The records of one command of anneal.py: run, structures or ablation."""
    return [record for record in records.of("anneal").values() if kind in record["command"].split()]


def by_model(found: list[Record]) -> dict[str, list[Record]]:
    """The records of each model, those of SparseAnneal first."""
    models: dict[str, list[Record]] = {}
    for record in sorted(found, key=lambda one: all(run["attack"] != "anneal" for run in one["runs"])):
        models.setdefault(record["model"], []).append(record)
    return models


def marks(found: list[Record]) -> list[int]:
    longest = max(run["length"] for record in found for run in record["runs"] if "passes" in run)
    return [mark for mark in MARKED if mark <= longest]


def over_passes(found: list[Record]) -> list[list[Any]]:
    """Robust accuracy of one model at each mark of passes, as the mean over the seeds."""
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for record in found:
        for run in record["runs"]:
            commit = "" if run["attack"].startswith("official") else record["commit"]
            groups.setdefault((run["attack"], run["length"], commit), []).append(run)
    attacks, shown = [group[:2] for group in groups], []
    for (name, length, commit), runs in groups.items():
        again = f", commit {commit}" if attacks.count((name, length)) > 1 else ""
        images, cells = runs[0]["images"], []
        for mark in marks(found):
            left = [_reached(run, mark) for run in runs if mark <= length + 1]  # sPGD also evaluates its random start
            cells.append(100 * (sum(left) / len(left) / images) if left and None not in left else "")
        few = "" if images == found[0]["images"] else f", first {images} images"
        last = 100 * (sum(run["left"] for run in runs) / len(runs) / images)
        seconds = sum(run["seconds"] for run in runs) / len(runs)
        shown.append([f"{name}, {length:,} steps{few}{again}", *cells, last, seconds, len(runs)])
    return shown


def _reached(run: Record, mark: int) -> int | None:
    """The robust images after `mark` passes; for the authors' code only the end is known."""
    if "passes" not in run:
        return run["left"] if mark == run["length"] else None
    return min(left for passes, left in run["passes"] if passes <= mark)
