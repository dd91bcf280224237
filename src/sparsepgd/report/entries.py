"""Runs as they are shown: read from their folders, with labels that distinguish them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsepgd.analysis import sanity
from sparsepgd.analysis.summary import UNITS, describe_budget, length
from sparsepgd.errors import SourceError
from sparsepgd.report.members import Member, members_of
from sparsepgd.runs.chunks import decoded
from sparsepgd.runs.folders import RECORD, load, load_adversarial, unfinished
from sparsepgd.runs.records import Record, Row
from sparsepgd.search import registry
from sparsepgd.sources.data import class_name
from sparsepgd.threat import LEVELS

ROUND_OFF = 1e-5
NOUNS = {2: ("input", "feature"), 4: ("image", "pixel")}  # by number of dimensions: an input, and one of its parts


@dataclass(frozen=True, eq=False)
class Entry:
    position: int  # among the runs shown
    label: str  # distinguishes it from the other runs
    record: Record
    x: Tensor  # images (B, C, H, W) in [0, 1], feature vectors (B, F) or signals (B, C, L)
    x_adv: Tensor

    @property
    def pictures(self) -> bool:
        """Whether the inputs are images."""
        return self.x.dim() == 4

    @property
    def letter(self) -> str:
        """A, B, ..., Z, A2, B2, ..."""
        again = self.position // 26
        return chr(ord("A") + self.position % 26) + (str(again + 1) if again else "")

    @property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.record.configuration["attack"]
        return settings

    @property
    def over_k(self) -> bool:
        return self._settings.get("kind") == "Smallest"

    @property
    def smallest_k(self) -> bool:
        """Whether the number of groups in a row is the smallest k found, not only one within the budget."""
        known = registry.find(self.attack_name)
        minimum_norm = known is not None and known.kind.minimum_norm
        return self.over_k or (minimum_norm and self._settings.get("early_stop") is False)

    @property
    def least_k(self) -> list[int]:
        """The smallest k found for each fooled image; [] if the run did not search for it."""
        return [row.groups for row in self.record.rows if row.fooled] if self.smallest_k else []

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """The members of a cascade; () for other attacks."""
        return members_of(self.record)

    @property
    def _budget(self) -> dict[str, Any]:
        """The budget as recorded; {} if the attack has none."""
        budget = self._settings.get("budget")
        return budget if isinstance(budget, dict) else {}

    @property
    def k(self) -> int | None:
        return self._budget.get("k")

    @property
    def eps(self) -> float:
        return float(self._budget.get("eps", 1))

    @property
    def unit(self) -> str:
        """What k counts: pixels, rows, patches."""
        kind = self._budget["pattern"]["kind"] if self._budget else "Pixels"
        return UNITS.get(kind, kind.lower())

    @property
    def threat(self) -> str:
        """The budget without k: runs that share it can be compared over k."""
        return json.dumps({**self._budget, "k": None}) if self._budget else ""

    @property
    def comparison_key(self) -> tuple[str, ...]:
        """What attacks must have in common to be compared: the model, the images and the budget."""
        digest = str(self.record.configuration["model"]["sha256"])
        return self.model_name, digest, self.data_digest, self.threat, str(self.k)

    @property
    def structured(self) -> bool:
        return bool(self._budget) and self._budget["pattern"]["kind"] not in ("Pixels", "Features")

    @property
    def model_name(self) -> str:
        return str(self.record.configuration["model"]["name"])

    @property
    def attack_name(self) -> str:
        return str(self._settings["name"])

    @property
    def data_name(self) -> str:
        return str(self.record.configuration["data"]["name"])

    @property
    def data_digest(self) -> str:
        return str(self.record.configuration["data"]["sha256"])

    @property
    def budget(self) -> str:
        return describe_budget(self._settings.get("budget"))

    @property
    def length(self) -> str:
        attack = self._settings["attack"] if self.over_k else self._settings  # over k: the attack that is repeated
        return length(attack)

    @cached_property
    def changed(self) -> Tensor:
        """(B, H, W) bool for images; otherwise (B, features or places of a signal)."""
        differ = self._differ
        if self.pictures:
            return differ.any(1)
        return differ if differ.dim() == 2 else differ.any(1).flatten(1)

    @cached_property
    def _differ(self) -> Tensor:
        return self.x != self.x_adv

    @cached_property
    def searched(self) -> Tensor:
        """(B,) bool: which images were attacked, namely those classified correctly when clean."""
        return torch.tensor([row.clean_correct for row in self.record.rows], dtype=torch.bool)

    @cached_property
    def sizes(self) -> Tensor:
        """|x_adv - x| of all changed values of the attacked images."""
        return (self.x_adv - self.x)[self.searched][self._differ[self.searched]].abs()

    @cached_property
    def extreme(self) -> float:
        """The share of the changed values that are at a limit: 0, 1 or eps away from x. NaN if none changed."""
        low, high = (self.x - self.eps).clamp(min=0), (self.x + self.eps).clamp(max=1)
        at_end = (self.x_adv < low + ROUND_OFF) | (self.x_adv > high - ROUND_OFF)
        return float(at_end[self.searched][self._differ[self.searched]].double().mean())

    def class_name(self, number: int) -> str:
        return class_name(self.record.about.class_names, number)

    def outcome(self, row: Row) -> str:
        return "fooled" if row.fooled else "withstood" if row.clean_correct else "wrong"


def collect(folders: Sequence[str | Path]) -> list[Entry]:
    """The runs in these folders and their sub-folders."""
    runs: list[Path] = []
    for folder in map(Path, folders):
        inside = sorted(file.parent for file in folder.rglob(RECORD))
        runs += inside or unfinished(folder) or [folder]  # if there is no record, `load` raises the error
    return entries_of(records_of(runs))


def records_of(folders: Sequence[Path]) -> dict[Path, Record]:
    return {folder: load(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)}


def entries_of(records: Mapping[Path, Record]) -> list[Entry]:
    labels = _labels(list(records.values()))
    return [
        Entry(position, label, record, *_images(folder, record))
        for position, ((folder, record), label) in enumerate(zip(records.items(), labels, strict=True))
    ]


def entry_of(record: Record, x: Tensor, x_adv: Tensor) -> Entry:
    """The entry of a run without a folder."""
    (label,) = _labels([record])
    return Entry(0, label, record, x, x_adv)


def unbroken(records: Sequence[Record]) -> int:
    """The number of images that are robust in all of these runs, which must be on the same images."""
    outcomes = zip(*(record.rows for record in records), strict=True)
    return sum(all(row.robust for row in image) for image in outcomes)


def nouns_of(x: Tensor) -> tuple[str, str]:
    """The nouns for an input and one of its parts: image and pixel, input and feature, signal and place."""
    return NOUNS.get(x.dim(), ("signal", "place"))


def nouns(entries: Sequence[Entry]) -> tuple[str, str]:
    """The same for runs that are shown together."""
    kinds = {nouns_of(entry.x) for entry in entries}
    return kinds.pop() if len(kinds) == 1 else ("input", "value")


def notices(entries: Sequence[Entry]) -> list[tuple[str, sanity.Notice]]:
    """The warnings of each run and those from comparing runs, each with the letters of its runs."""
    with_letters = [(entry.letter, notice) for entry in entries for notice in entry.record.warnings]
    groups: dict[tuple[str, ...], dict[str, Entry]] = {}  # of comparable runs: the strongest run of each attack
    for entry in entries:
        group = groups.setdefault(entry.comparison_key, {})
        strongest = group.setdefault(entry.attack_name, entry)
        if entry.record.robust_accuracy < strongest.record.robust_accuracy:
            group[entry.attack_name] = entry
    for group in groups.values():
        letters = ", ".join(entry.letter for entry in group.values())
        robust = {name: entry.record.robust_accuracy for name, entry in group.items()}
        with_letters += [(letters, notice) for notice in sanity.compare(robust)]
    if len({entry.data_digest for entry in entries}) > 1:
        with_letters.append(
            ("", sanity.Notice("other-images", "the runs are on different images: compare them with care"))
        )
    return with_letters


def short_digest(value: object) -> str:
    """Eight characters that distinguish values too long to be shown."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]


def _images(folder: Path, record: Record) -> tuple[Tensor, Tensor]:
    tensors = load_adversarial(folder, record)
    if "x" not in tensors:
        raise SourceError(f"{folder} does not hold the clean images; run it again with this version, in a new folder")
    x = tensors["x"].float() / LEVELS if tensors["x"].dtype == torch.uint8 else tensors["x"]
    return x, decoded(tensors["x_adv"], x)


def _labels(records: Sequence[Record]) -> list[str]:
    """Labels of the model and the attack, followed by the budget, data and seed where they differ between runs."""
    parts = [
        (
            str(record.configuration["model"]["name"]),
            str(record.configuration["attack"]["name"]),
            describe_budget(record.configuration["attack"].get("budget")),
            str(record.configuration["data"]["name"]),
            f"seed {record.configuration['seed']}",
        )
        for record in records
    ]
    differ = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    return [" · ".join(text for i, text in enumerate(texts) if i < 2 or differ[i]) for texts in parts]
