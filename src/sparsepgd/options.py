"""Words of the command line -> values of the package."""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction

from sparsepgd.errors import PatternError, UnsupportedError
from sparsepgd.search import Attack, SparsePGD, SparseRS
from sparsepgd.search.ensemble import SparseAutoAttack
from sparsepgd.threat import Budget, Columns, Features, Patches, Pattern, Pixels, Rows, Shape

PATTERNS = (
    "pixel, feature, row, column, patch:3, patch:3x5, heart:20, star:25, circle:18, letter:A:60, image:FILE[:SIZE]"
)
SIMPLE: dict[str, Pattern] = {"pixel": Pixels(), "feature": Features(), "row": Rows(), "column": Columns()}
ATTACKS = ("spgd", "spgd-unprojected", "spgd-projected", "spgd-random", "rs", "saa")


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
    except ValueError as error:
        if type(error) is not ValueError:
            raise
    raise PatternError(f"pattern {words!r}; use one of {PATTERNS}")


def eps(words: str) -> float:
    """``8/255`` or ``0.03``."""
    try:
        return float(Fraction(words))
    except (ValueError, ZeroDivisionError):
        raise UnsupportedError(f"eps {words!r}; use a number or a fraction such as 8/255") from None


def attack(
    name: str, budget: Budget, steps: int, quantize: bool = False, queries: int = 10_000
) -> Attack | SparseAutoAttack:
    """One of ATTACKS with its budget. `steps` are those of gradient attacks, `queries` those of black boxes."""
    if name not in ATTACKS:
        raise UnsupportedError(f"attack {name!r}; use one of {', '.join(ATTACKS)}")
    if name == "rs":
        return SparseRS(budget, queries, quantize=quantize)
    if name == "saa":
        return SparseAutoAttack(budget, steps, queries, quantize=quantize)
    gradient = name.partition("-")[2] or "unprojected"
    return SparsePGD(budget, steps, gradient, quantize=quantize)  # type: ignore[arg-type]


def attacks(names: str, budget: Budget, steps: int, queries: int = 10_000) -> list[Attack | SparseAutoAttack]:
    """``spgd,rs`` -> both."""
    words = [name.strip() for name in names.split(",")]
    twice = next((name for name in words if words.count(name) > 1), None)
    if twice is not None:
        raise UnsupportedError(f"attack {twice!r} is named twice in {names!r}; once is enough")
    return [attack(name, budget, steps, queries=queries) for name in words]


def length(search: object) -> str:
    """``100 steps``, ``1000 queries`` or both."""
    counts = {unit: getattr(search, unit, None) for unit in ("steps", "queries")}
    return ", ".join(f"{count} {unit}" for unit, count in counts.items() if count is not None)


def run_name(attack: str, pattern: str, k: int, words: tuple[object, ...]) -> str:
    """A folder's name for these words of the command line: the same words, the same folder."""
    digest = hashlib.sha256(repr(words).encode()).hexdigest()[:8]
    return re.sub(r"[^\w.,-]+", "-", f"{attack}-{pattern}-k{k}-{digest}")
