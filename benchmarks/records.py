"""The records in benchmarks/results, for the pages that are written from them."""

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsepgd.tables import markdown

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


def compared(record: Record) -> str:
    """A record of `spgd compare` as a table, the strongest attack first."""
    rows = []
    for line in sorted(record["lines"], key=lambda line: (line["robust_accuracy"], line["attack"])):
        low, high = (f"{100 * share:.0f}" for share in line["interval"])
        passes = line["forwards"] + line["backwards"]
        rows.append([line["attack"], f"{100 * line['robust_accuracy']:.1f}", f"{low}-{high}", f"{passes:.0f}"])
    return markdown(["attack", "robust accuracy, %", "95 %", "passes for an image, as taken"], rows)


def rewritten(page: Path, marks: tuple[str, str], text: str, check: bool) -> int:
    """What stands between the two marks of a page becomes `text`; with `check` only 1 if it is not that already."""
    before = page.read_text()
    head, rest = before.split(marks[0])
    after = head + marks[0] + text + marks[1] + rest.split(marks[1])[1]
    if not check:
        page.write_text(after)
    return int(check and after != before)


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
