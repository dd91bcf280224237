"""The members of a cascade, from its record: the images that each attacked and fooled, and its passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsepgd.errors import SparsePGDError
from sparsepgd.runs.identity import budget_of
from sparsepgd.runs.records import Record, Row
from sparsepgd.search.ensemble import SparseAutoAttack, Version

SLACK = 1.02  # confirming successes found in low precision takes a few more passes


@dataclass(frozen=True)
class Member:
    """Passes are forward and backward passes. If `pass_range` is None they are unknown: ignore the last two fields."""

    name: str
    given: int  # images that it attacked
    broken: int
    robust_accuracy: float  # after it
    pass_range: tuple[int, int] | None  # passes of a survivor before this member and after it
    own_passes: tuple[int, ...]  # of this member until success, one for each image that it fooled, sorted
    total_passes: int  # of this member, over all images


def members_of(record: Record) -> tuple[Member, ...]:
    """() if the attack is not a cascade. A record does not name the members of a custom cascade; only those that
    fooled an image are then listed, in their order."""
    settings = record.configuration["attack"]
    if settings.get("kind") != "SparseAutoAttack":
        return ()
    rows = [row for row in record.rows if row.clean_correct]
    broken, left, members = Counter(row.broken_by for row in rows), len(rows), []
    ranges = _pass_ranges(settings, rows) or dict.fromkeys(_in_order(rows))
    for name, pass_range in ranges.items():
        start, stop = pass_range or (0, 0)
        own = tuple(sorted(max(min(_passes(row), stop) - start, 1) for row in rows if row.broken_by == name))
        total = sum(max(min(_passes(row), stop) - start, 0) for row in rows)
        left -= broken[name]
        after = left / max(record.images, 1)
        members.append(Member(name, left + broken[name], broken[name], after, pass_range, own, total))
    return tuple(members)


def _pass_ranges(settings: Mapping[str, Any], rows: list[Row]) -> dict[str, tuple[int, int] | None]:
    """The pass ranges of the members, from the settings; {} for a custom cascade, or if the rows contradict them."""
    if settings.get("attacks") is not None:
        return {}
    version: Version = settings.get("version") or ("standard" if settings["name"] == "saa+" else "paper")
    try:
        budget = budget_of({**settings, "budget": {**settings["budget"], "allowed": None}}, None)
        options = {name: settings[name] for name in ("steps", "queries", "targeted") if name in settings}
        cascade = SparseAutoAttack(budget, version=version, **options)
    except SparsePGDError:
        return {}
    ranges: dict[str, tuple[int, int] | None] = {}
    stop = 0
    for name, member in zip(cascade.names, cascade.members, strict=True):
        start, stop = stop, stop + member.evaluations * (1 + member.needs_gradient)
        ranges[name] = (start, stop)
    if not set(_in_order(rows)) <= set(ranges):
        return {}
    for row in rows:
        first, last = ranges[row.broken_by] or (0, 0) if row.broken_by else (stop / SLACK, stop)
        if not first <= _passes(row) <= SLACK * last:
            return dict.fromkeys(ranges)  # the members are known, their passes are not
    return ranges


def _in_order(rows: list[Row]) -> list[str]:
    """The members that fooled an image, ordered by passes: each member starts after those before it."""
    first: dict[str, int] = {}
    for row in rows:
        if row.broken_by is not None:
            first[row.broken_by] = min(_passes(row), first.get(row.broken_by, _passes(row)))
    return sorted(first, key=lambda name: first[name])


def _passes(row: Row) -> int:
    return row.forwards + row.backwards
