"""The records in benchmarks/results, for the pages that are written from them."""

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Record = dict[str, Any]
Records = dict[str, Record]  # by the name of the file, without .json
NONE: Record = {"attacks": []}


def load(name: str) -> Record:
    record: Record = json.loads((RESULTS / f"{name}.json").read_text())
    return record


def read(results: Path, kind: str) -> Records:
    """All records whose name begins so."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(results.glob(f"{kind}-*.json"))}


@dataclass(frozen=True)
class Pair:
    """One attack by the authors' code and by ours, in one run; means over the seeds."""

    attack: str
    images: int
    seconds: tuple[float, float]  # theirs, ours
    left: tuple[float, float]  # images still right

    @property
    def cells(self) -> list[str]:
        both = [f"{s:.2f} s, {left:.1f} left" for s, left in zip(self.seconds, self.left, strict=True)]
        return [*both, f"{self.seconds[0] / self.seconds[1]:.1f}"]


PAIR = ["official code", "here", "times as fast"]  # above the cells


def beside_official(record: Record) -> Iterator[Pair]:
    """From a record of speed.py or of `spgd bench --official`."""
    parts = [record] if "attacks" in record else [record.get(part, NONE) for part in ("spgd", "sparse-rs")]
    found = {row["name"]: row for part in parts for row in part["attacks"]}
    for attack, row in found.items():
        if official := found.get(f"official {attack}"):
            seconds, left = (
                (statistics.mean(official[key]), statistics.mean(row[key])) for key in ("seconds", "robust")
            )
            yield Pair(attack, row["images"], seconds, left)


def hardware(record: Record) -> str:
    return str(record.get("hardware") or record.get("device") or "-")


def torch_version(record: Record) -> str:
    return str(record["torch"]).split("+")[0]


def file_of(name: str) -> str:
    return f"`{name}.json`"


def told(pairs: Iterable[tuple[str, str]], between: str = ", ") -> list[str]:
    """``one, another: words``; what is said of several, once."""
    who: dict[str, list[str]] = {}
    for name, words in pairs:
        who.setdefault(words, []).append(name)
    return [f"{between.join(names)}: {words}" for words, names in who.items()]


def listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) + "\n"
