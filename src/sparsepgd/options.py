"""Convert arguments of the command line to values of the package."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch

from sparsepgd.adapters import outside
from sparsepgd.analysis import summary
from sparsepgd.errors import PatternError, UnsupportedError, counted
from sparsepgd.problem.engine import COMPILED_ON, Engine
from sparsepgd.search import registry
from sparsepgd.search.contract import Attacker
from sparsepgd.sources.listings import Choice
from sparsepgd.threat import Budget, Columns, Features, Frame, Groups, Patches, Pattern, Pixels, Rows, Shape

PATTERNS = (
    "pixel, feature, row, column, patch:3, patch:3x5, frame:2, heart:20, star:25, circle:18, letter:H:60, "
    "image:FILE[:SIZE], groups:FILE"
)
SIMPLE: dict[str, Pattern] = {"pixel": Pixels(), "feature": Features(), "row": Rows(), "column": Columns()}
ATTACKS = tuple(registry.ENTRIES)
OTHERS = ", ".join(f"{package}:NAME" for package in outside.PACKAGES)  # attacks of other packages
COMPARED = tuple(name for name, entry in registry.ENTRIES.items() if entry.compared)
PRESETS = ("quick", "paper")
NO_COMPILER = "--compile is for GPUs; omit it, or choose a GPU with --device cuda"


def pattern(words: str) -> Pattern:
    """``patch:3x5`` -> Patches(3, 5), and so on for all of PATTERNS."""
    kind, *rest = words.split(":")
    try:
        match kind, rest:
            case _, [] if kind in SIMPLE:
                return SIMPLE[kind]
            case "patch", [size]:
                return Patches(*map(int, size.split("x", 1)))
            case "frame", [width]:
                return Frame(int(width))
            case (("heart" | "star" | "circle"), [size]):
                shape: Shape = getattr(Shape, kind)(int(size))
                return shape
            case "letter", [character, size]:
                return Shape.letter(character, int(size))
            case "image", [file]:
                return Shape.from_image(file)
            case "image", [file, size]:
                return Shape.from_image(file, int(size))
            case "groups", [file]:
                return _groups(file)
    except ValueError as error:
        if type(error) is not ValueError:
            raise
    raise PatternError(f"pattern {words!r}; use one of {PATTERNS}")


def budget(words: str, eps: float = 1.0) -> Budget:
    """``1 patch:5`` -> Budget(k=1, Patches(5))."""
    k, _, kind = words.strip().partition(" ")
    if not (k.isdecimal() and kind):
        raise UnsupportedError(f"budget {words!r}; use the number of groups and their pattern, e.g. '1 row'")
    return Budget(int(k), pattern(kind.strip()), eps)


def _groups(file: str) -> Groups:
    try:
        return Groups(json.loads(Path(file).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise PatternError(f"groups of {file!r}: {error}; expected JSON, a list of lists of indices") from None


def choice(words: str | None) -> Choice | None:
    if words not in (None, "first", "balanced"):
        raise UnsupportedError(f"choose {words!r}; use first or balanced")
    return words  # type: ignore[return-value]


def eps(words: str) -> float:
    try:
        return float(Fraction(words))
    except (OverflowError, ValueError, ZeroDivisionError):
        raise UnsupportedError(f"eps {words!r}; use a number or a fraction such as 8/255") from None


def attack(name: str, budget: Budget, steps: int, quantize: bool = False, queries: int = 10_000) -> Attacker:
    """One of ATTACKS, or an attack of another package. `steps` is used by gradient attacks, `queries` by black-box
    attacks."""
    if outside.is_outside(name):
        told = steps if outside.takes_steps(name) else None
        return outside.Outside(budget, name, steps=told, quantize=quantize)
    known = entry(name)
    made: Attacker = known.kind.of_length(budget, steps, queries, quantize=quantize, **known.settings)
    return made


def preset(name: str, budget: Budget, which: str) -> Attacker:
    """An attack with the settings of its paper, or with settings that take seconds."""
    if which not in PRESETS:
        raise UnsupportedError(f"preset {which!r}; use one of {', '.join(PRESETS)}")
    if outside.is_outside(name):
        return attack(name, budget, 60) if which == "quick" else outside.Outside(budget, name)
    known = entry(name)
    made: Attacker = known.kind(budget) if which == "paper" else known.kind.quick(budget)
    return replace(made, **known.settings)  # type: ignore[type-var]


def at_cost(name: str, budget: Budget, passes: int) -> Attacker:
    """An attack with about `passes` passes per image, forward and backward passes together."""
    if passes < 10:
        raise UnsupportedError(f"{passes} passes are too few to compare attacks; use at least 10")
    if outside.is_outside(name):
        if not outside.takes_steps(name):
            raise UnsupportedError(f"{name} has no number of steps, so its cost cannot be set; omit it")
        return attack(name, budget, passes // 2 - 1)
    known = entry(name)
    made: Attacker = known.kind.at_cost(budget, passes, **known.settings)
    return made


def entry(name: str) -> registry.Entry:
    """The entry registered under a name or an alias, such as rs for sparse-rs."""
    known = registry.find(name)
    if known is None:
        raise UnsupportedError(f"attack {name!r}; use one of {', '.join(ATTACKS)}, {OTHERS}")
    return known


def named(names: str) -> list[str]:
    """``spgd-projected,sparse-rs`` -> the names; no attack may occur twice."""
    words = [name.strip() for name in names.split(",")]
    if not all(words):
        raise UnsupportedError(
            f"attack {names!r} contains an empty name; separate names with single commas, e.g. spgd,sparse-rs"
        )
    found = [name if outside.is_outside(name) else entry(name).name for name in words]
    for i, name in enumerate(found):
        first, again = words[found.index(name)], words[i]
        if found.index(name) < i:
            same = f"{first!r} and {again!r} in {names!r} are the same attack"
            twice = f"attack {first!r} is named twice in {names!r}"
            raise UnsupportedError(f"{twice if first == again else same}; name it once")
    return found


def engine(precision: str | None, compiled: bool, device: torch.device) -> Engine | None:
    """How to run the model; None for the default."""
    if precision is None and not compiled:
        return None
    if compiled and device.type not in COMPILED_ON:
        raise UnsupportedError(NO_COMPILER)
    return Engine(precision, compiled)  # type: ignore[arg-type]  # Engine checks it


def length(search: Attacker) -> str:
    """``100 steps``, ``1,000 queries`` or both."""
    if counts := summary.length(vars(search)):
        return counts
    if isinstance(search, outside.Outside):
        return "its own length"
    return counted(search.evaluations, "queries")


def run_folder(parts: Sequence[object], words: object) -> Path:
    """A folder named after `parts` and a digest of `words`, so that the same command has the same folder."""
    digest = hashlib.sha256(repr(words).encode()).hexdigest()[:8]
    return Path("runs") / re.sub(r"[^\w.,+-]+", "-", "-".join(map(str, (*parts, digest))))
