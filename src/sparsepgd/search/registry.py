"""The registry of attacks: one name for each, on the command line, in folders, records and tables.

What an attack needs and costs is declared by its class: `needs_gradient`, `minimum_norm`, `passes_per_step`,
`of_length`, `quick`, `at_cost`. A new attack is a class under ``@registered()`` in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sparsepgd.search.contract import Attacker

K = TypeVar("K", bound=type[Attacker])


@dataclass(frozen=True)
class Entry:
    """A class under a name, with the settings that the name stands for."""

    name: str
    kind: Any  # a class with `of_length`, `quick` and `at_cost`
    aliases: tuple[str, ...]  # older names, and those of the paper's tables
    compared: bool  # by default in comparisons of attacks
    settings: Mapping[str, Any]


ENTRIES: dict[str, Entry] = {}


def registered(*aliases: str, name: str | None = None, compared: bool = True, **settings: Any) -> Callable[[K], K]:
    """Register a class of attacks under its `name`, or under another one with settings."""

    def put(kind: K) -> K:
        known: Any = kind
        entry = Entry(name or known.name, kind, aliases, compared, settings)
        ENTRIES[entry.name] = entry
        return kind

    return put


def find(name: str) -> Entry | None:
    """The entry with this name or alias."""
    return next((one for one in ENTRIES.values() if name in (one.name, *one.aliases)), None)


def black_box(name: str) -> bool:
    """Whether an attack needs no gradient, from its name in a record: sparse-rs, sparse-rs-2, sparse-rs-smallest-k."""
    boxes = (one.name for one in ENTRIES.values() if one.kind.needs_gradient is False)
    return any(name == box or name.startswith(f"{box}-") for box in boxes)
