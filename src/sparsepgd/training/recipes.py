"""Recipes: the settings of a training run in a TOML file, and default settings for the digits."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.training.settings import FIELDS, Settings, with_tuples
from sparsepgd.validation import check_some


@dataclass(frozen=True)
class Sources:
    data: str
    model: str
    size: int
    k: int
    pattern: str
    eps: Any
    others: tuple[str, ...]


SOURCES = tuple(field.name for field in fields(Sources))
KNOWN = tuple(dict.fromkeys((*SOURCES, "method", *FIELDS)))
QUICK = {"schedule": "one-cycle", "clip": 1.0}
STARTS: dict[str, dict[str, Any]] = {  # one to two minutes on a CPU
    "digits": {"model": "digits_resnet", "k": 3, "multi_eps": 3, "epochs": 20, "batch": 100, "lr": 0.1, **QUICK},
    "bundled": {
        "model": "zoo:small-plain",
        "k": 5,
        "multi_eps": 4,
        "epochs": 8,
        "batch": 50,
        "lr": 0.03,
        "steps": 7,
        "watch_steps": 0,
        **QUICK,
    },
}


def read(path: str | Path) -> dict[str, Any]:
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{str(path)!r} cannot be read: {error.strerror}; use one of the files in recipes/") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} is not a valid recipe: {error}") from None
    return _checked(values, str(path))


def assignments(assigned: Sequence[str]) -> dict[str, Any]:
    """Parse ``lam=6`` and so on. Values are in TOML syntax, or True and False; text needs no quotes."""
    values: dict[str, Any] = {}
    for word in assigned:
        name, equals, value = word.partition("=")
        if not equals:
            raise UnsupportedError(f"--set {word!r}; use NAME=VALUE, e.g. --set lam=6")
        if name in values:
            raise UnsupportedError(f"--set has {name!r} twice; set it once")
        value = {"True": "true", "False": "false"}.get(value, value)
        try:
            values[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[name] = value
    return _checked(values, "--set")


def _checked(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check each setting alone; combinations are checked later."""
    if wrong := [name for name in values if name not in KNOWN]:
        raise UnsupportedError(f"{where} has an unknown setting {wrong[0]!r}; use one of {', '.join(KNOWN)}")
    values = with_tuples(values)
    try:
        check_some(Sources, values)
        check_some(Settings, {name: value for name, value in values.items() if name not in SOURCES})
    except ValueError as error:
        raise UnsupportedError(str(error)) from None
    return values
