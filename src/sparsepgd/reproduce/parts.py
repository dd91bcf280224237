"""Parts of a recipe: attacks in folders that a second run only reads, what they cost, and what comes of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sparsepgd import atomic
from sparsepgd.reproduce.scales import passes
from sparsepgd.reproduce.subjects import Job, Subject
from sparsepgd.runs import identity, runs
from sparsepgd.runs.records import About, Record
from sparsepgd.search.contract import Attacker
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Pattern

CASES = "cases"  # the folder of all attacks: tables that need the same one share it


@dataclass(frozen=True, eq=False)
class Finished:
    """An attack that is done."""

    record: Record
    folder: Path


class Asked(Protocol):
    """What is attacked, as far as its cost goes."""

    @property
    def training(self) -> int: ...
    def seconds(self, pattern: Pattern, passes: int) -> float: ...
    def seconds_of_training(self) -> float: ...


class Part(Protocol):
    """A piece of work whose result is kept in a folder."""

    @property
    def subject(self) -> Asked: ...
    @property
    def attack(self) -> Attacker: ...
    @property
    def passes(self) -> int: ...
    @property
    def title(self) -> str: ...
    def run(self, job: Job, progress: Progress | None) -> Any: ...


@dataclass(frozen=True, eq=False)
class Case:
    """One attack on one model: a number of a table."""

    section: str
    row: str
    column: str
    subject: Subject
    attack: Attacker
    cost: int | None = None  # passes for an image; None: from the attack

    @property
    def passes(self) -> int:
        return len(self.subject.x) * (passes(self.attack) if self.cost is None else self.cost)

    @property
    def title(self) -> str:
        return f"{self.subject.name}, {self.attack.name}, {self.section}"

    def run(self, job: Job, progress: Progress | None) -> Finished:
        """Attack, or go on, or read what was finished before: the folder is named after all that decides the run."""
        subject, names = self.subject, {"model": self.subject.name, "data": self.subject.data}
        decided = identity.configuration(self.attack, subject.model, subject.x, subject.y, names, job.seed)
        digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:10]
        word = re.sub(r"[^\w.-]+", "-", f"{subject.name}-{self.attack.name}")
        folder = job.out / CASES / f"{word}-{digest}"
        record = runs.run(
            folder, self.attack, subject.model, (subject.x, subject.y), names, seed=job.seed, progress=progress,
            about=About(class_names=subject.classes),
        )  # fmt: skip
        return Finished(record, folder)


def finished(job: Job, name: str) -> Path:
    """Where a part that is no attack keeps its numbers."""
    return job.out / CASES / f"{name}.json"


@dataclass(frozen=True)
class Number:
    """A number here, beside that of the paper."""

    section: str
    row: str
    column: str
    here: float | None
    paper: float | None
    low: float | None = None  # 95 %
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a recipe shows."""

    unit: str  # of all numbers; none, if the sections name theirs
    numbers: Sequence[Number]
    reasons: Sequence[str]  # why they may differ
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # by their file; drawn when called

    def record(self, digits: int | None = None, **more: object) -> dict[str, Any]:
        """As plain values: `more`, then unit, reasons and numbers, rounded if asked for."""
        numbers = [asdict(number) for number in self.numbers]
        if digits is not None:
            numbers = [{k: round(v, digits) if isinstance(v, float) else v for k, v in one.items()} for one in numbers]
        return {**more, "unit": self.unit, "reasons": list(self.reasons), "numbers": numbers}

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Outcome:
        """What `record` wrote down, without figures."""
        return cls(record["unit"], [Number(**number) for number in record["numbers"]], record["reasons"])


@dataclass(frozen=True, eq=False)
class Plan:
    """The parts of a recipe, and what is made of their results."""

    parts: Sequence[Part]
    finish: Callable[[Sequence[Any]], Outcome]
    gaps: bool = False  # whether `finish` takes None for a part that is not finished


@dataclass(frozen=True)
class Cost:
    """What a plan takes at most: passes of models, forwards and backwards, and seconds on this machine."""

    parts: int
    passes: int
    seconds: float
    milliseconds: float  # for a pass, measured; the mean of the models


def cost(plan: Plan) -> Cost:
    """From the lengths of the attacks and a short measurement of each model with each pattern."""
    counts: dict[tuple[Asked, Pattern], int] = {}
    for part in plan.parts:
        key = (part.subject, part.attack.budget.pattern)
        counts[key] = counts.get(key, 0) + part.passes
    subjects = {part.subject for part in plan.parts}
    seconds = sum(subject.seconds(pattern, count) for (subject, pattern), count in counts.items())
    seconds += sum(subject.seconds_of_training() for subject in subjects)
    total = sum(counts.values()) + sum(subject.training for subject in subjects)
    return Cost(len(plan.parts), total, seconds, 1000 * seconds / max(total, 1))


def accuracy(case: Case, done: Finished | None, paper: float | None) -> Number:
    """Robust accuracy in percent; None if the case is not finished."""
    if done is None:
        return Number(case.section, case.row, case.column, None, paper)
    low, high = (100 * value for value in done.record.robust_interval)
    return Number(case.section, case.row, case.column, 100 * done.record.robust_accuracy, paper, low, high)


def keep(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, (json.dumps(content) + "\n").encode())
