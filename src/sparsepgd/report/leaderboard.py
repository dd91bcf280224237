"""A leaderboard in the manner of RobustBench: one JSON record per model and budget, and tables made from the records.

A record is made from run folders and stores which images are robust against each attack. Its robust accuracy is the
share that is robust against all of them, so a further attack on the same images can only lower it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sparsepgd import atomic
from sparsepgd.analysis.summary import describe_budget, length, wilson
from sparsepgd.errors import SourceError, UnsupportedError, counted
from sparsepgd.report.entries import short_digest
from sparsepgd.runs.folders import load, load_adversarial
from sparsepgd.runs.records import BudgetPart, Record, Strict, like, read

HEADER = ["model", "clean", "robust", "95 %", "strongest alone", "each attack alone"]


class Attempt(Strict):
    attack: str
    settings: dict[str, Any]  # hyper-parameters, without the budget
    seed: int
    standing: str = Field(pattern="^[01]*$")  # one character per image: 1 if it is robust
    seconds: float
    environment: dict[str, str]
    created: str
    warnings: tuple[str, ...] = ()

    @property
    def robust_accuracy(self) -> float:
        return self.standing.count("1") / max(len(self.standing), 1)

    @property
    def length(self) -> str:
        """``spgd-projected (100 steps)``."""
        counts = length(self.settings)
        return f"{self.attack} ({counts})" if counts else self.attack


class Contender(Strict):
    version: Literal[1] = 1
    model: str
    model_sha256: str | None
    model_digest: str | None = None  # the same for all versions of torch; None: an older record, or a plain function
    data: str
    data_sha256: str
    images: int
    budget: Annotated[dict[str, Any], like(lambda value: BudgetPart)]
    clean_accuracy: float = Field(ge=0, le=1)
    attempts: tuple[Attempt, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> Contender:
        if not self.attempts or any(len(attempt.standing) != self.images for attempt in self.attempts):
            raise ValueError(f"expected one letter for each of {self.images} images in every attempt")
        return self

    @property
    def robust(self) -> int:
        """The number of images that are robust against all attacks."""
        columns = zip(*(attempt.standing for attempt in self.attempts), strict=True)
        return sum(all(character == "1" for character in image) for image in columns)

    @property
    def robust_accuracy(self) -> float:
        return self.robust / max(self.images, 1)

    @property
    def strongest(self) -> Attempt:
        return min(self.attempts, key=lambda attempt: attempt.robust_accuracy)

    @property
    def words(self) -> str:
        return describe_budget(self.budget)

    @property
    def file(self) -> str:
        sets = self.budget["pattern"].get("sets")  # of a Groups pattern, whose description does not include them
        words = self.words if sets is None else f"{self.words}-{short_digest(sets)}"
        name = f"{self.model}-{words}-{self.data}-{self.images}".replace(" = ", "")
        return re.sub(r"[^\w.]+", "-", name).strip("-") + ".json"

    def row(self) -> list[str]:
        low, high = wilson(self.robust, self.images)
        alone = self.strongest
        return [
            self.model,
            f"{self.clean_accuracy:.1%}",
            f"{self.robust_accuracy:.1%}",
            f"{100 * low:.1f}-{100 * high:.1f}",
            f"{alone.robust_accuracy:.1%}, {alone.attack}",
            "; ".join(f"{name} {', '.join(shares)}" for name, shares in self._alone().items()),
        ]

    def _alone(self) -> dict[str, list[str]]:
        """The different robust accuracies of each attack at each length, over seeds and versions of the attack."""
        shares: dict[str, list[str]] = {}
        for attempt in sorted(self.attempts, key=lambda attempt: attempt.robust_accuracy):
            shares.setdefault(attempt.length, []).append(f"{attempt.robust_accuracy:.1%}")
        return {name: list(dict.fromkeys(shares[name])) for name in sorted(shares)}


def from_run(record: Record) -> Contender:
    written = dict(record.configuration["attack"])
    budget = written.pop("budget", None)
    if not isinstance(budget, dict) or written.get("kind") == "Smallest":
        raise UnsupportedError(f"{written.get('name')} has no single budget; use a run of one attack at one k")
    attempt = Attempt(
        attack=str(written.pop("name")),
        settings={name: value for name, value in written.items() if name != "kind" and value is not None},
        seed=record.configuration["seed"],
        standing="".join("1" if row.robust else "0" for row in record.rows),
        seconds=round(record.seconds, 1),
        environment={name: record.environment[name] for name in ("hardware", "torch", "sparsepgd")},
        created=record.created,
        warnings=tuple(notice.message for notice in record.warnings),
    )
    model, data = record.configuration["model"], record.configuration["data"]
    return Contender(
        model=model["name"],
        model_sha256=model["sha256"],
        model_digest=model.get("digest"),
        data=data["name"],
        data_sha256=data["sha256"],
        images=record.images,
        budget=budget,
        clean_accuracy=record.clean_accuracy,
        attempts=(attempt,),
    )


def add(folder: Path, run: Path) -> Contender:
    """Add a run to the record of its model and budget in `folder`, which is created if there is none."""
    record = load(run)
    load_adversarial(run, record)  # raises if the images are missing or damaged
    new = from_run(record)
    if (file := folder / new.file).is_file():
        new = joined(read(file, Contender), new)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(file, (json.dumps(new.model_dump(mode="json"), indent=1) + "\n").encode())
    return new


def joined(old: Contender, new: Contender) -> Contender:
    """One record with the attempts of both; a new attempt replaces an earlier one with the same settings and seed."""
    digests = "model_sha256" if None in (old.model_digest, new.model_digest) else "model_digest"
    for name in (digests, "data_sha256", "budget"):
        if getattr(old, name) != getattr(new, name):
            raise UnsupportedError(
                f"{old.file} holds another {name.partition('_')[0]} of the same name; rename one, or delete it"
            )
    fresh = new.attempts[0]
    key = attrgetter("attack", "settings", "seed")
    kept = [attempt for attempt in old.attempts if key(attempt) != key(fresh)]
    attempts = sorted([*kept, fresh], key=lambda attempt: (attempt.attack, attempt.seed, str(attempt.settings)))
    return old.model_copy(update={"attempts": tuple(attempts), "model_digest": old.model_digest or new.model_digest})


def contenders(folder: Path) -> list[Contender]:
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise SourceError(f"no records in {folder}; make one from a run: spgd leaderboard --add RUN")
    return [read(file, Contender) for file in files]


def boards(every: Sequence[Contender]) -> Iterator[tuple[str, list[list[str]]]]:
    """(title, rows) for each budget on each set of images: large budgets and large sets first. In each table the most
    robust model is first."""
    groups: dict[tuple[str, str, str], list[Contender]] = {}
    digests: dict[str, set[str]] = {}  # of the images, by title
    for contender in every:
        title = f"{contender.words}, {counted(contender.images, 'images')} of {contender.data}"
        groups.setdefault((title, contender.data_sha256, json.dumps(contender.budget)), []).append(contender)
        digests.setdefault(title, set()).add(contender.data_sha256)
    for (title, digest, _), group in sorted(groups.items(), key=_order):
        ranked = sorted(group, key=lambda contender: (-contender.robust_accuracy, contender.model))
        which = f" ({digest[:8]})" if len(digests[title]) > 1 else ""
        yield title + which, [contender.row() for contender in ranked]


def _order(entry: tuple[tuple[str, str, str], list[Contender]]) -> tuple[Any, ...]:
    key, (first, *_) = entry
    return -first.budget["k"], first.words, -first.images, key
