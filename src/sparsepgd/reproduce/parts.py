"""Parts of a recipe: attacks whose results are kept in folders and reused, their cost, and their outcome."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparsepgd import atomic
from sparsepgd.reproduce.jobs import Job, Subject, passes
from sparsepgd.runs import identity, runs
from sparsepgd.runs.records import About, Record
from sparsepgd.search.contract import Attacker
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Budget, Pattern, Pixels

CASES = "cases"  # the folder of all attacks: tables that need the same one share it


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished attack."""

    record: Record
    folder: Path


class Part(ABC):
    """An attack on a subject, whose result is kept in a folder."""

    subject: Subject
    attack: Attacker

    @property
    def passes(self) -> int:
        """Upper estimate of the passes of the model for all images."""
        return len(self.subject.x) * passes(self.attack)

    @property
    def decided(self) -> dict[str, str]:
        """The values that determine the result in addition to the attack, the model, the images and the seed."""
        return {}

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def run(self, job: Job, progress: Progress | None) -> Any:
        """Run it, or read a finished result."""


@dataclass(frozen=True, eq=False)
class Case(Part):
    """One attack on one model: one number of a table."""

    section: str
    row: str
    column: str
    subject: Subject
    attack: Attacker
    cost: int | None = None  # passes per image; None: from the attack

    @property
    def passes(self) -> int:
        return super().passes if self.cost is None else len(self.subject.x) * self.cost

    @property
    def title(self) -> str:
        return f"{self.subject.name}, {self.attack.name}, {self.section}"

    def run(self, job: Job, progress: Progress | None) -> Finished:
        """Attack, resume, or read a finished result."""
        subject = self.subject
        _, digest = identified(self, job)
        name = re.sub(r"[^\w.-]+", "-", f"{subject.name}-{self.attack.name}")
        folder = job.out / CASES / f"{name}-{digest}"
        record = runs.run(
            folder, self.attack, subject.model, (subject.x, subject.y), _names(subject), seed=job.seed,
            chunk=job.chunk, progress=progress, about=About(class_names=subject.classes),
        )  # fmt: skip
        return Finished(record, folder)


def cases(
    job: Job, subject: Subject, columns: Sequence[str], budget: Budget, section: str, row: str | None = None
) -> list[Case]:
    """The attacks of these columns on one model, in the row of the model unless `row` is given."""
    attacks = [(column, job.scale.attack(column, budget)) for column in columns]
    on = {column: subject.first(images) for column, images in job.few}
    return [
        Case(section, row or subject.role, column, on.get(column, subject), attack, job.scale.cost(column, attack))
        for column, attack in attacks
    ]


def _names(subject: Subject) -> dict[str, str]:
    return {"model": subject.name, "data": subject.data}


def identified(part: Part, job: Job) -> tuple[dict[str, Any], str]:
    """The values that determine the result of a part, and their digest, which is part of file and folder names."""
    subject, names = part.subject, _names(part.subject) | part.decided
    configuration = identity.configuration(part.attack, subject.model, subject.x, subject.y, names, job.seed)
    configuration["model"].pop("digest", None)  # so that files of 0.2.0 are found
    return configuration, hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:10]


def kept(part: Part, job: Job, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a part that is not a run, from its file; they are computed and written if there is none."""
    configuration, digest = identified(part, job)
    file = job.out / CASES / f"{name}-{digest}.json"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(file, (json.dumps({"configuration": configuration, **compute()}) + "\n").encode())
    numbers: dict[str, Any] = json.loads(file.read_text())
    return numbers


@dataclass(frozen=True)
class Number:
    """Our number and the paper's."""

    section: str
    row: str
    column: str
    here: float | None
    paper: float | None
    low: float | None = None  # 95 %
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a recipe."""

    unit: str  # of all numbers; empty if the sections name their units
    numbers: Sequence[Number]
    reasons: Sequence[str]  # why they may differ
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # by file name; drawn when called

    def record(self, digits: int | None = None, **more: object) -> dict[str, Any]:
        """As plain values: `more`, then unit, reasons and numbers, rounded if requested."""
        numbers = [asdict(number) for number in self.numbers]
        if digits is not None:
            numbers = [{k: round(v, digits) if isinstance(v, float) else v for k, v in one.items()} for one in numbers]
        return {**more, "unit": self.unit, "reasons": list(self.reasons), "numbers": numbers}

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Outcome:
        """The outcome in a record, without figures."""
        return cls(record["unit"], [Number(**number) for number in record["numbers"]], record["reasons"])


@dataclass(frozen=True, eq=False)
class Plan:
    """The parts of a recipe, and the function that combines their results."""

    parts: Sequence[Part]
    finish: Callable[[Sequence[Any]], Outcome]
    gaps: bool = False  # whether `finish` accepts None for an unfinished part


@dataclass(frozen=True)
class Cost:
    """Upper estimate of the cost of a plan: forward and backward passes, and seconds on this machine."""

    parts: int
    passes: int
    seconds: float
    milliseconds: float  # per pass, measured; the mean over the models


def cost(plan: Plan) -> Cost:
    """Estimate the cost from the lengths of the attacks and a short measurement of each model with each pattern."""
    counts: dict[tuple[Subject, Pattern], int] = {}
    for part in plan.parts:
        key = (part.subject, part.attack.budget.pattern)
        counts[key] = counts.get(key, 0) + part.passes
    for subject in {part.subject for part in plan.parts if part.subject.training}:
        counts[subject, Pixels()] = counts.get((subject, Pixels()), 0) + subject.training
    seconds = sum(subject.seconds(pattern, count) for (subject, pattern), count in counts.items())
    total = sum(counts.values())
    return Cost(len(plan.parts), total, seconds, 1000 * seconds / max(total, 1))


def accuracy(case: Case, done: Finished | None, paper: float | None) -> Number:
    """Robust accuracy in percent; None if the case is not finished."""
    if done is None:
        return Number(case.section, case.row, case.column, None, paper)
    low, high = (100 * value for value in done.record.robust_interval)
    return Number(case.section, case.row, case.column, 100 * done.record.robust_accuracy, paper, low, high)
