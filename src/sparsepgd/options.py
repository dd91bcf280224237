"""Words of the command line -> values of the package."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from sparsepgd import baselines
from sparsepgd.adapters import outside
from sparsepgd.analysis.summary import counted
from sparsepgd.errors import PatternError, UnsupportedError
from sparsepgd.problem.engine import Engine
from sparsepgd.search import Attack, ClusterRS, SparseAnneal, SparseAutoAttack, SparsePGD, SparseRS
from sparsepgd.search.ensemble import Version
from sparsepgd.sources.listings import Choice
from sparsepgd.threat import Budget, Columns, Features, Groups, Patches, Pattern, Pixels, Rows, Shape

PATTERNS = (
    "pixel, feature, row, column, patch:3, patch:3x5, heart:20, star:25, circle:18, letter:A:60, image:FILE[:SIZE], "
    "groups:FILE"
)
SIMPLE: dict[str, Pattern] = {"pixel": Pixels(), "feature": Features(), "row": Rows(), "column": Columns()}
BASELINES: dict[str, Any] = {
    "corner-search": baselines.CornerSearch,
    "cw-l0": baselines.CWL0,
    "greedy-fool": baselines.GreedyFool,
    "l1-apgd": baselines.L1APGD,
    "loap": baselines.LOAP,
    "one-pixel": baselines.OnePixel,
    "pgd0": baselines.PGD0,
    "saif": baselines.SAIF,
    "sigma-zero": baselines.SigmaZero,
    "sparse-fool": baselines.SparseFool,
}
BLACK_BOXES = tuple(name for name, kind in BASELINES.items() if not kind.needs_gradient)
ATTACKS = (
    "anneal",
    "saa+",
    "saa",
    "spgd",
    "spgd-unprojected",
    "spgd-projected",
    "spgd-random",
    "rs",
    "cluster-rs",
    *BASELINES,
)
OTHERS = ", ".join(f"{package}:NAME" for package in outside.PACKAGES)  # attacks of other packages
COMPARED = ("anneal", "spgd-unprojected", "spgd-projected", "rs", "cluster-rs", *BASELINES)
PRESETS = ("quick", "paper")
# of one attempt, so that an attack has about so many passes, forwards and backwards together
AT_COST: dict[str, Callable[[Budget, int], Any]] = {
    "anneal": lambda budget, passes: SparseAnneal(budget, passes // 2),
    "rs": lambda budget, passes: SparseRS(budget, passes),
    "cluster-rs": lambda budget, passes: ClusterRS(budget, passes),
    "saa": lambda budget, passes: SparseAutoAttack(budget, max(passes // 6 - 1, 1), passes // 3),
    "saa+": lambda budget, passes: _standard(budget, passes),
    "corner-search": baselines.CornerSearch.within,
    "cw-l0": lambda budget, _: baselines.CWL0.quick(budget),
    "greedy-fool": lambda budget, passes: baselines.GreedyFool(budget, max(passes // 2 - 1, 1)),
    "l1-apgd": lambda budget, passes: baselines.L1APGD(budget, max(passes // 3, 1), targets=0),
    "loap": lambda budget, passes: baselines.LOAP(budget, max(passes // 6, 1), restarts=1),
    "one-pixel": baselines.OnePixel.within,
    "pgd0": lambda budget, passes: baselines.PGD0(budget, max(passes // 2 - 1, 1), restarts=1, targets=0),
    "saif": lambda budget, passes: baselines.SAIF(budget, max(passes // 3, 1), targets=0),
    "sigma-zero": lambda budget, passes: baselines.SigmaZero(budget, max(passes // 3, 1)),
    "sparse-fool": lambda budget, passes: baselines.SparseFool(budget, passes, classes=3),
}


def pattern(words: str) -> Pattern:
    """``patch:3x5`` -> Patches(3, 5), and so on for all of PATTERNS."""
    kind, *rest = words.split(":")
    try:
        match kind, rest:
            case _, [] if kind in SIMPLE:
                return SIMPLE[kind]
            case "patch", [size]:
                return Patches(*map(int, size.split("x", 1)))
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


def _groups(file: str) -> Groups:
    """A JSON file: a list of lists of indices."""
    try:
        return Groups(json.loads(Path(file).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise PatternError(f"groups of {file!r}: {error}; expected JSON, a list of lists of indices") from None


def choice(words: str | None) -> Choice | None:
    """``first`` or ``balanced``."""
    if words not in (None, "first", "balanced"):
        raise UnsupportedError(f"choose {words!r}; use first or balanced")
    return words  # type: ignore[return-value]


def eps(words: str) -> float:
    """``8/255`` or ``0.03``."""
    try:
        return float(Fraction(words))
    except (OverflowError, ValueError, ZeroDivisionError):
        raise UnsupportedError(f"eps {words!r}; use a number or a fraction such as 8/255") from None


def attack(
    name: str, budget: Budget, steps: int, quantize: bool = False, queries: int = 10_000
) -> Attack | SparseAutoAttack:
    """One of ATTACKS, or of another package, with its budget. `steps` are those of gradient attacks, `queries` those
    of black boxes."""
    if outside.is_outside(name):
        told = steps if outside.takes_steps(name) else None
        return outside.Outside(budget, name, steps=told, quantize=quantize)
    _check_name(name)
    if name in BASELINES:
        kind = BASELINES[name]
        baseline: Attack = (kind.within if name in BLACK_BOXES else kind)(
            budget, queries if name in BLACK_BOXES else steps, quantize=quantize
        )
        return baseline
    if name in ("rs", "cluster-rs"):
        return (SparseRS if name == "rs" else ClusterRS)(budget, queries, quantize=quantize)
    if name in ("saa", "saa+"):
        version: Version = "paper" if name == "saa" else "standard"
        return SparseAutoAttack(budget, steps, queries, version=version, quantize=quantize)
    if name == "anneal":
        return SparseAnneal(budget, steps, quantize=quantize)
    gradient = name.partition("-")[2] or "unprojected"
    return SparsePGD(budget, steps, gradient, quantize=quantize)  # type: ignore[arg-type]


def preset(name: str, budget: Budget, which: str) -> Attack | SparseAutoAttack:
    """An attack with the settings of its paper, or with those that take seconds."""
    if which not in PRESETS:
        raise UnsupportedError(f"preset {which!r}; use one of {', '.join(PRESETS)}")
    if outside.is_outside(name):
        return attack(name, budget, 60) if which == "quick" else outside.Outside(budget, name)
    _check_name(name)
    if name in BASELINES:
        chosen: Attack = BASELINES[name].quick(budget) if which == "quick" else BASELINES[name](budget)
        return chosen
    if which == "quick":
        return attack(name, budget, 60, queries=300)
    return SparseAnneal(budget) if name == "anneal" else attack(name, budget, 10_000)


def at_cost(name: str, budget: Budget, passes: int) -> Attack | SparseAutoAttack:
    """An attack that has about so many passes of the model for an image, forwards and backwards together."""
    if outside.is_outside(name) and not outside.takes_steps(name):
        raise UnsupportedError(f"{name} takes no number of steps, so its cost cannot be set; leave it out")
    if not outside.is_outside(name):
        _check_name(name)
    if passes < 10:
        raise UnsupportedError(f"{passes} passes are too few to compare attacks; use at least 10")
    if name in AT_COST:
        chosen: Attack = AT_COST[name](budget, passes)
        return chosen
    return attack(name, budget, passes // 2 - 1)


def _standard(budget: Budget, passes: int) -> SparseAutoAttack:
    """At most half of the passes for SparseAnneal, what sPGD leaves of the others for Sparse-RS."""
    for steps in range(max(passes // 4, 2), 1, -1):
        cascade = SparseAutoAttack(budget, steps, queries=1, version="standard")
        left = passes - 2 * (cascade.evaluations - cascade.queries)
        if left > 0:
            return replace(cascade, queries=left)
    return cascade


def _check_name(name: str) -> None:
    if name not in ATTACKS:
        raise UnsupportedError(f"attack {name!r}; use one of {', '.join(ATTACKS)}, {OTHERS}")


def named(names: str) -> list[str]:
    """``spgd,rs`` -> the names, each of another attack."""
    words = [name.strip() for name in names.split(",")]
    if not all(words):
        raise UnsupportedError(f"attack {names!r} has an empty name; use names with commas, e.g. spgd,rs")
    same = {"spgd": "spgd-unprojected"}
    for place, name in enumerate(words):
        other = next((one for one in words[:place] if same.get(one, one) == same.get(name, name)), None)
        if other == name:
            raise UnsupportedError(f"attack {name!r} is named twice in {names!r}; once is enough")
        if other is not None:
            raise UnsupportedError(f"{other!r} and {name!r} in {names!r} are the same attack; once is enough")
    return words


def attacks(names: str, budget: Budget, steps: int, queries: int = 10_000) -> list[Attack | SparseAutoAttack]:
    """``spgd,rs`` -> both."""
    return [attack(name, budget, steps, queries=queries) for name in named(names)]


def engine(precision: str | None, compiled: bool | None) -> Engine | None:
    """How the model is to be run; None if nothing is asked for."""
    if precision is None and compiled is None:
        return None
    return Engine(precision, compiled)  # type: ignore[arg-type]  # it refuses what it does not know


def length(search: object) -> str:
    """``100 steps``, ``1,000 queries`` or both."""
    counts = {unit: getattr(search, unit, None) for unit in ("steps", "queries")}
    words = ", ".join(counted(count, unit) for unit, count in counts.items() if count is not None)
    if isinstance(search, outside.Outside):
        return words or "its own length"
    return words or f"{getattr(search, 'evaluations', '?')} queries"


def run_name(attack: str, pattern: str, k: int, words: tuple[object, ...]) -> str:
    """A folder's name for these words of the command line: the same words, the same folder."""
    digest = hashlib.sha256(repr(words).encode()).hexdigest()[:8]
    return re.sub(r"[^\w.,+-]+", "-", f"{attack}-{pattern}-k{k}-{digest}")
