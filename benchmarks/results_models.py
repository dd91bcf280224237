"""The table of models of docs/results.md: the paper's, and ours of full size and small ones, with one budget a row."""

from collections.abc import Iterator

from records import (
    RESULTS,
    SECTIONS,
    Made,
    Measured,
    Record,
    Records,
    anchor,
    budget_of,
    load,
    made,
    read,
    recipe_of,
    strongest,
    trained_by,
)

from sparsepgd.reproduce.experiments import accuracy
from sparsepgd.reproduce.recipe import facts, table
from sparsepgd.reproduce.recipes import STRUCTURED, UNSTRUCTURED
from sparsepgd.tables import markdown
from sparsepgd.zoo import ALL_RUNS

ROLES = {  # the paper's model whose place a recipe takes; of subjects, `spgd reproduce` says it
    "cifar10-plain": "Vanilla",
    "cifar10-linf": "GD",
    "cifar10-sat": "sAT",
    "cifar10-strades": "sTRADES",
    "cifar10-strades-long": "sTRADES, longer",
    "cifar10-strades-row": "sTRADES-row",
    "cifar10-strades-patch": "sTRADES-p5x5",
    "cifar10-fast-ls": "Fast-LS-l0",
    "cifar10-strades-sn": "sTRADES+S&N",
    "cifar10-anneal": "SparseAnneal",
    "cifar10-anneal-searched": "SparseAnneal+RS",
    "cifar10-anneal-row": "SparseAnneal-row",
    "cifar10-anneal-patch": "SparseAnneal-p5x5",
    "cifar10-anneal-union": "SparseAnneal-all",
    "gtsrb-plain": "Vanilla",
    "gtsrb-strades": "sTRADES",
    "gtsrb-anneal": "SparseAnneal+RS",
} | {(source or "").removeprefix("zoo:"): role for role, source in {**STRUCTURED, **UNSTRUCTURED}.items()}
LATER = {"k=20": "cifar10, k=20", "GTSRB, k=12": "gtsrb at 32x32, k=12"}  # what the authors' later work calls a budget
ORDER = [*UNSTRUCTURED, *STRUCTURED]
TRAINING, SUBJECTS = (f"tables.md#{anchor(title)}" for title in ("Training", "Subjects"))
NOT_RUN = " \\*"  # SparseAnneal has not been run on it
USUAL = 1000  # images
COLUMNS = ["clean", "sAA", "lowest"]
KINDS = {"full": "PRN-18", "small": "small"}  # of our models
NONE = ["", "", ""]


def models() -> Iterator[str]:
    """Every model that was trained by a recipe."""
    yield "## Our models beside the paper's\n"
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, record in _records().items():
        recipe = name.removeprefix("train-")
        kind = "small" if recipe == name else "full"
        found.setdefault((_budget(recipe), ROLES.get(recipe, recipe)), {})[kind] = _cells(recipe, record)
    budgets = [_of_section(section) for section in SECTIONS]
    places = sorted(found, key=lambda place: (_rank(budgets, place[0]), _rank(ORDER, place[1]), place[1]))
    rows = [
        [budget, *_paper(budget, role), *(found[budget, role].get(kind, NONE)[i] for kind in KINDS for i in range(3))]
        for budget, role in places
    ]
    ours = [f"{kind}: clean" if i == 0 else words for kind in KINDS.values() for i, words in enumerate(COLUMNS)]
    yield markdown(["budget", "defence", "paper: clean", COLUMNS[1], *ours], rows) + "\n"
    yield _explained(any(NOT_RUN in cell for row in rows for cell in row))
    yield from _over_k()


def _over_k() -> Iterator[str]:
    """What Tables I and VIII add: k = 10 and 15, where the paper has such a model."""
    one, rows, short = made()["unstructured"], [], set()
    blocks = [block for block in accuracy.PIXELS if block.section != "k=20"]
    for role, model in one.places.items():
        cells = []
        for block in blocks:
            paper, recipe = table(block.label).value(block.section, role, "sAA"), trained_by(one.record, model)
            ours = [strongest(RESULTS, recipe, (block.k, block.pattern), attack) for attack in ("sAA", None)]
            cells += [paper, *(found and found.percent for found in ours)]
            short |= {f"{found.images:,} images, {load(found.record).get('steps')} steps" for found in ours if found}
        if cells[0] is not None:
            rows.append([role, *("-" if value is None else f"{value:.1f}" for value in cells)])
    titles = [words for block in blocks for words in (f"{block.section}, paper: sAA", "ours: sAA", "lowest")]
    yield markdown(["defence", *titles], rows) + "\n"
    yield (
        f"With fewer pixels ([all attacks]({one.link})): `{_common(one)}`, trained for k = 20, in short runs "
        f"({'; '.join(sorted(short))}).\n"
    )


def _common(one: Made) -> str:
    kinds = dict.fromkeys(name.partition("-")[0] for name in one.places.values())
    return ", ".join(f"{kind}-..." for kind in kinds)


def name_of(recipe: str) -> str:
    """What our documents call a model of full size."""
    named = {"cifar10-anneal-searched": "prn18-anneal", "cifar10-anneal": "an earlier prn18-anneal"}
    return named.get(recipe, recipe.replace("cifar10", "prn18"))


def later(budget: str, role: str) -> float | None:
    """Under sAA in the authors' later work."""
    value: float | None = facts()["follow_up"]["sAA"].get(LATER.get(budget), {}).get(role)
    return value


def not_attacked() -> list[str]:
    """The models of full size that SparseAnneal, or an ensemble with it, has not attacked yet."""
    found = [_low(name.removeprefix("train-")) for name in read(RESULTS, "train")]
    return [name_of(one.recipe) for one in found if one and NOT_RUN in _lowest(one)]


def _records() -> Records:
    return {**read(RESULTS, "train"), **read(RESULTS, "subject")}


def _low(recipe: str, attack: str | None = None) -> Measured | None:
    return strongest(RESULTS, recipe, budget_of(recipe), attack)


def _rank(known: list[str], name: str) -> int:
    first = name if name in known else name.partition(",")[0]
    return known.index(first) if first in known else len(known)


def _of_section(section: str) -> str:
    return section.removeprefix("cifar10, ")


def _budget(recipe: str) -> str:
    k, pattern = budget_of(recipe)
    if recipe_of(recipe)["data"] != "cifar10":
        return f"{recipe_of(recipe)['data'].upper()}, k={k}"
    sections = [_of_section(section) for section, budget in SECTIONS.items() if budget == (k, pattern)]
    return sections[0] if sections else f"k={k}, {pattern}"


def _paper(budget: str, role: str) -> list[str]:
    if (share := later(budget, role)) is not None:
        return [f"{role} (later work)", "-", f"{share:.1f}"]
    blocks = [block for block in (*accuracy.PIXELS, *accuracy.STRUCTURED) if _of_section(block.section) == budget]
    known = role.partition(",")[0]
    cells = [table(block.label).cells[block.section].get(known, {}) for block in blocks]
    values = [cells[0].get(column) if cells else None for column in ("clean", "sAA")]
    return [role, *("-" if value is None else f"{value:.1f}" for value in values)]


def _cells(recipe: str, record: Record) -> list[str]:
    """As in COLUMNS."""
    saa = _low(recipe, "sAA")
    return [f"{100 * record['clean']:.1f}", _figure(saa, _few(saa)) if saa else "-", _lowest(_low(recipe))]


def _figure(one: Measured, words: list[str]) -> str:
    return f"{one.percent:.1f}" + (f" ({', '.join(words)})" if words else "")


def _few(one: Measured) -> list[str]:
    """The number of images, if they are fewer than usual."""
    return [] if one.images == USUAL else [f"{one.images:,} images"]


def _lowest(low: Measured | None) -> str:
    """With the attack unless it is saa+, the number of images if they are few, and a mark if SparseAnneal has not been
    run."""
    if low is None:
        return "-"
    run = any(_low(low.recipe, attack) for attack in ("anneal", "saa+"))
    usual = low.attack in ("saa+", ALL_RUNS) or (low.attack == "sAA" and not run)
    words = [*([] if usual else [low.attack]), *_few(low)]
    return _figure(low, words) + ("" if run or not low.share else NOT_RUN)


def _explained(marked: bool) -> str:
    if not all(record["recipe"].startswith("recipes/quick/") for record in read(RESULTS, "train").values()):
        raise ValueError("not all models were trained by short recipes any more; write this statement anew")
    mark = " \\* SparseAnneal has not been run: the value may be far too high." if marked else ""
    paper = facts()["follow_up"]["source"].rpartition("arXiv:")[2]
    return (
        f"In percent; robust accuracy on {USUAL:,} images unless a number is given. *Lowest*: in "
        f"any record, under `saa+` or of all runs together unless an attack is named.{mark} PRN-18 (`prn18-...`, "
        f"[training]({TRAINING})) and *small* (`subject-...`, [subjects]({SUBJECTS})) are ours, trained by short "
        "recipes; the paper's, with 100 epochs, has not been run. Later work is"
        f" [arXiv:{paper}](https://arxiv.org/abs/{paper}).\n"
    )
