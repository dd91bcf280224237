"""The rows of the tables of models in docs/results.md: the paper's models, our full-size models and our small ones."""

from typing import Any

from records import SECTIONS, Measured, Record, Records, budget_of, recipe_of, trained_by

from sparsepgd.reproduce.experiments import accuracy
from sparsepgd.reproduce.recipe import facts, table
from sparsepgd.reproduce.recipes import STRUCTURED, UNSTRUCTURED
from sparsepgd.zoo import ALL_RUNS

PLACES = {**STRUCTURED, **UNSTRUCTURED}
SUBJECTS = {(source or "").removeprefix("zoo:subject-"): role for role, source in PLACES.items()}
ROLES = SUBJECTS | {  # the paper's model whose place a recipe takes, by the recipe's name without data or "subject"
    "strades-long": "sTRADES, longer",
    "strades-row": "sTRADES-row",
    "strades-patch": "sTRADES-p5x5",
    "strades-sn": "sTRADES+S&N",
    "anneal-searched": "SparseAnneal+RS",
}
LATER = {"k=20": "cifar10, k=20", "GTSRB, k=12": "gtsrb at 32x32, k=12"}  # budgets in the authors' later work
ORDER = [*UNSTRUCTURED, *STRUCTURED]
NAMES = {"cifar10-anneal-searched": "prn18-anneal", "cifar10-anneal": "an earlier prn18-anneal"}  # in the documents
NOT_RUN = " \\*"  # SparseAnneal has not been run on it
USUAL, FEWER, ON_FEWER = 1000, 500, " †"  # images, and the mark of a measurement on fewer


def models(records: Records) -> list[list[Any]]:
    """Every model trained by a recipe, one row per budget and defence: the paper's clean accuracy and robust accuracy
    under sAA; clean, under sAA and lowest for our full-size model; and the same for our small model."""
    ours: dict[tuple[str, str], dict[str, list[str]]] = {}
    for kind in ("train", "subject"):
        for name, record in records.of(kind).items():
            recipe = name.removeprefix("train-")
            place = _budget(recipe), _role(recipe)
            ours.setdefault(place, {})[kind] = _cells(records, recipe, record)
    budgets = [_short(section) for section in SECTIONS]
    places = sorted(ours, key=lambda place: (_rank(budgets, place[0]), _rank(ORDER, place[1]), place[1]))
    return [
        [
            place[0],
            *_paper(*place),
            *(cell for kind in ("train", "subject") for cell in ours[place].get(kind, [""] * 3)),
        ]
        for place in places
    ]


def fewer_pixels(records: Records) -> tuple[list[list[Any]], str]:
    """The rows that Tables I and VIII add, k = 10 and 15, where the paper has such a model; and our runs' lengths."""
    one, rows, lengths = records.by_recipe["unstructured"][0], [], set()
    for role, model in one.places.items():
        cells: list[float | None] = []
        for block in accuracy.PIXELS[:2]:
            recipe = trained_by(one.record, model)
            ours = [records.strongest(recipe, (block.k, block.pattern), attack) for attack in ("sAA", None)]
            cells += [
                table(block.label).value(block.section, role, "sAA"),
                *(found and found.percent for found in ours),
            ]
            lengths |= {f"{one.images:,} images, {records[one.record].get('steps')} steps" for one in ours if one}
        if cells[0] is not None:
            rows.append([role, *cells])
    return rows, "; ".join(sorted(lengths))


def _role(recipe: str) -> str:
    """The paper's model that a recipe trains; by the paper's own recipe, it has another row."""
    data, _, method = recipe.partition("-")
    if recipe == "gtsrb-anneal":
        return "SparseAnneal+RS"
    return ROLES.get(method, recipe) + ", by its recipe" * (data == "paper")


def later(budget: str, role: str) -> float | None:
    """Robust accuracy under sAA in the authors' later work."""
    value: float | None = facts()["follow_up"]["sAA"].get(LATER.get(budget), {}).get(role)
    return value


def not_attacked(records: Records) -> list[str]:
    """The full-size models that neither SparseAnneal nor an ensemble with it has attacked yet."""
    recipes = [name.removeprefix("train-") for name in records.of("train")]
    return [
        NAMES.get(one, one.replace("cifar10", "prn18"))
        for one in recipes
        if NOT_RUN in _lowest(records, _low(records, one))
    ]


def _low(records: Records, recipe: str, attack: str | None = None) -> Measured | None:
    return records.strongest(recipe, budget_of(recipe), attack)


def _rank(known: list[str], name: str) -> int:
    first = name if name in known else name.partition(",")[0]
    return known.index(first) if first in known else len(known)


def _short(section: str) -> str:
    return section.removeprefix("cifar10, ")


def _budget(recipe: str) -> str:
    k, pattern = budget_of(recipe)
    if recipe_of(recipe)["data"] != "cifar10":
        return f"{recipe_of(recipe)['data'].upper()}, k={k}"
    sections = [_short(section) for section, budget in SECTIONS.items() if budget == (k, pattern)]
    return sections[0] if sections else f"k={k}, {pattern}"


def _paper(budget: str, role: str) -> list[Any]:
    if (share := later(budget, role)) is not None:
        return [f"{role} (later work)", None, share]
    blocks = [block for block in (*accuracy.PIXELS, *accuracy.STRUCTURED) if _short(block.section) == budget]
    values = [
        table(blocks[0].label).value(blocks[0].section, role.partition(",")[0], column) if blocks else None
        for column in ("clean", "sAA")
    ]
    return [role, *values]


def _cells(records: Records, recipe: str, record: Record) -> list[Any]:
    saa = _low(records, recipe, "sAA")
    return [100 * record["clean"], _figure(saa, _few(saa)) if saa else "-", _lowest(records, _low(records, recipe))]


def fewer_images(records: Records) -> str:
    """The number of images of the measurements with a mark, and their lengths."""
    runs = [run for record in records.of("subject").values() for run in record["robust"] if run["images"] == FEWER]
    lengths = {(run["steps"], run["queries"]) for run in runs if run["attack"] != ALL_RUNS}
    words = sorted(f"{steps:,} steps and {queries:,} queries" for steps, queries in lengths)
    return f"{FEWER:,} images, with {' or '.join(words)}"


def _figure(one: Measured, words: list[str]) -> str:
    said = f"{one.percent:.1f}" + (f" ({', '.join(words)})" if words else "")
    return said + ON_FEWER * (one.images == FEWER)


def _few(one: Measured) -> list[str]:
    """The number of images, unless it is the usual one or has a mark."""
    return [] if one.images in (USUAL, FEWER) else [f"{one.images:,} images"]


def _lowest(records: Records, low: Measured | None) -> str:
    """The lowest robust accuracy, with the attack unless it is saa+, the number of images unless it is the usual one,
    and a mark if SparseAnneal has not been run."""
    if low is None:
        return "-"
    run = any(_low(records, low.recipe, attack) for attack in ("anneal", "saa+"))
    usual = low.attack in ("saa+", ALL_RUNS) or (low.attack == "sAA" and not run)
    words = [*([] if usual else [low.attack]), *_few(low)]
    return _figure(low, words) + ("" if run or not low.share else NOT_RUN)
