"""What the templates look up in the records and in the paper's tables; robust accuracies are in percent."""

import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from provenance import RUNS_AT, SINCE, missing, values_at
from records import SECTIONS, Budget, Made, Measured, Record, Records, hardware, trained_by

from sparsepgd.reproduce.experiments.ratio import MEAN
from sparsepgd.reproduce.recipe import table
from sparsepgd.zoo import Card

TASKS = ("detection", "segmentation")
BUDGETS = {  # of Table VII
    "l0_1600": "1,600 pixels", "l0_3200": "3,200 pixels", "patch4x4_100": "100 patches", "patch4x4_200": "200 patches",
}  # fmt: skip
COMMITS = ("commit", "commit of attacks", "models.*.runs.*.commit")  # where a record names what it measured
PACES = ("0.0125, 50", "0.05, 16", "0.1, 8", "0.1, 16", "0.2, 4", "default")  # of pace.py: alpha = beta, tolerance
USUAL = "100 images and 300 steps"  # as docs/results.md says of the tables that name no length


def holds(statement: bool) -> None:
    """Fail if a statement of a template is no longer true; the traceback names its line."""
    if not statement:
        raise ValueError("the records say otherwise now; write this statement anew")


def paper(label: str) -> dict[str, dict[str, dict[str, float]]]:
    """The numbers of a table of the paper, by section, row and column."""
    return table(label).cells


# Single measurements


def measured(records: Records, recipe: str, budget: Budget = (20, "pixel"), attack: str | None = None) -> Measured:
    """The lowest robust accuracy of a model in any record, under any attack or under one."""
    found = records.strongest(recipe, budget, attack)
    if found is None:
        raise ValueError(f"no record of {attack or 'any attack'} on {recipe} with {budget}")
    return found


def low(records: Records, recipe: str, budget: Budget = (20, "pixel"), attack: str | None = None) -> float:
    return measured(records, recipe, budget, attack).percent


def saa(records: Records, recipe: str, budget: Budget = (20, "pixel")) -> float:
    return low(records, recipe, budget, "sAA")


def lowest(records: Records, name: str, *attacks: str, pattern: str | None = None) -> float:
    """The lowest robust accuracy under some attacks, of all seeds and paces, in a record of anneal.py."""
    runs = [run for run in records[name]["runs"] if run["attack"].partition(",")[0] in attacks]
    left = [run["left"] / run.get("images", records[name]["images"]) for run in runs if run.get("pattern") == pattern]
    return 100 * min(left)


def after(records: Records, name: str, attack: str, passes: int) -> list[float]:
    """Robust accuracy after `passes` passes, one value for each seed, in a record of anneal.py."""
    runs = [run for run in records[name]["runs"] if run["attack"] == attack]
    return [100 * min(left for at, left in run["passes"] if at <= passes) / run["images"] for run in runs]


def variant(records: Records, name: str, variant: str) -> float:
    """Robust accuracy under a variant of unprojected sPGD, in a record of deviations.py."""
    rows = records[name]["rows"]
    (row,) = (row for row in rows if (row["variant"], row["gradient"]) == (variant, "unprojected"))
    return 100 * statistics.fmean(row["robust"]) / records[name]["images"]


def ablation(records: Records, variant: str) -> float:
    """Robust accuracy, under 300 steps of SparseAnneal, of the variant of training whose name begins with `variant`."""
    found = [run for run in records["training-ablation"]["runs"] if run["variant"].startswith(variant)]
    return float(100 * found[0]["robust"]["300"])


def ratios(one: Made, k: int) -> list[float]:
    """The values of Figure 1 at one k, for all sizes of patches and images."""
    return [row["here"] for row in one.numbers if row["section"] == MEAN and row["column"] == f"k={k}"]


def transferred(one: Made, section: str = "all steps on the source") -> dict[str, float]:
    """The mean success rate on other networks, by attack."""
    attacks = dict.fromkeys(row["row"] for row in one.numbers if row["section"] == section)
    return {attack: statistics.fmean(one.cells(section, attack).values()) for attack in attacks}


def transfers(one: Made) -> "Pairs":
    """The same of the three attacks that docs/results.md shows, beside the paper's means."""
    theirs = table("trans").cells["success rate"]
    ours = transferred(one)
    return Pairs({name: (statistics.fmean(theirs[name].values()), ours[name]) for name in ("sPGD_u", "sPGD_p", "RS")})


def on_tasks(records: Records, budget: str) -> list[dict[str, float]]:
    """The scores of Table VII under one budget, by attack, for each task of each record."""
    return [one.cells(task, budget) for one in records.by_recipe["detection"] for task in one.places]


def task(records: Records, name: str) -> Made | None:
    """The record of detection or segmentation with most images."""
    return next((one for one in records.by_recipe["detection"] if name in one.places), None)


def not_detected(records: Records) -> list[str]:
    """The tasks and budgets of Table VII that were not measured yet."""
    tasks = {name: one for name in TASKS if (one := task(records, name))}
    done = {row for name, one in tasks.items() for row in BUDGETS if one.cells(name, row).keys() > {"clean"}}
    return [
        *(name for name in TASKS if name not in tasks),
        *(words for row, words in BUDGETS.items() if row not in done),
    ]


# Rows of tables


def grouped(rows: Iterable[Record], key: str, value: str) -> dict[str, list[Any]]:
    """All values of one key, by those of another."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row[value])
    return found


def detected(lines: list[Record]) -> list[list[Any]]:
    """The rows of a record of detection.py: attack, scores in percent, evaluations."""
    scores = [[100 * score for score in line["boxes"].values()] for line in lines]
    return [[line["line"], *each, line.get("evaluations")] for line, each in zip(lines, scores, strict=True)]


def paced(records: Records) -> list[list[str]]:
    """The images still classified correctly at each length, by pace, from the records of pace.py."""
    found: dict[tuple[str, ...], dict[str, dict[str, int]]] = {}
    for name, record in records.of("pace").items():
        for row in record["rows"]:
            pace = f"{row['alpha']}, {row['tolerance']}" if row["pace"] == "fixed" else "default"
            place = name, record["model"], str(record["right"]), row["pattern"], row["gradient"]
            found.setdefault(place, {}).setdefault(pace, {}).update(row["left"])
    return [
        [*place[1:], ", ".join(left["default"]), *(", ".join(map(str, left[pace].values())) for pace in PACES)]
        for place, left in found.items()
    ]


def withstood(cards: list[Card]) -> list[list[Any]]:
    """The rows of the table of cards: an attack, and the robust accuracy of each model under it."""
    found = [{str(one): 100 * one.robust_accuracy for one in card.robust} for card in cards]
    return [
        [attack, *(one.get(attack) for one in found)] for attack in dict.fromkeys(name for one in found for name in one)
    ]


def sources(records: Records) -> list[list[str]]:
    """Every record with its origin, as far as it is known."""
    rows = []
    for name, record in records.items():
        commands = "; ".join(record.get("commands") or values_at(record, "command"))
        told = " ".join(one for place in COMMITS for one in values_at(record, place))
        measured = dict.fromkeys(re.findall(r"\b[0-9a-f]{7,}(?:-dirty)?\b", told))
        commits = ", ".join(measured) or (f"at the latest {record[SINCE]}" if SINCE in record else "-")
        commits += f"; the command runs at {record[RUNS_AT]}" if RUNS_AT in record else ""
        command = f"`{commands}`" if commands else "-"
        rows.append([f"`{name}.json`", command, commits, hardware(record), ", ".join(missing(record))])
    return rows


# Beside the paper


class Pairs(dict[str, tuple[float, float]]):
    """The paper's number and ours, by name."""

    def only(self, *names: str) -> "Pairs":
        return Pairs({name: both for name, both in self.items() if name in names})

    @property
    def theirs(self) -> str:
        return ", ".join(f"{name} {number:.1f}" for name, (number, _) in self.items())

    @property
    def ours(self) -> str:
        return ", ".join(f"{number:.1f}" for _, number in self.values())

    @property
    def order(self) -> str:
        same = all((a - c) * (b - d) >= 0 for (a, b), (c, d) in combinations(self.values(), 2))
        return "is the same" if same else "differs"


@dataclass(frozen=True)
class Row:
    """A row of the list at the end of docs/results.md: the paper's models under sAA, and the lowest numbers of ours."""

    link: str
    theirs: str
    ours: str
    order: str
    models: str  # ours: one, or what their names have in common
    have: str  # how many of the paper's models
    size: str


def accuracies(records: Records, one: Made, label: str, section: str, *rows: str) -> Row:
    """Our model in the place of one of the paper's may have a lower robust accuracy in another record than `one`."""
    theirs, found, lengths = paper(label)[section], Pairs(), set()
    for row in rows:
        recipe = trained_by(one.record, one.places.get(row, ""))
        if recipe and section in SECTIONS and (low := records.strongest(recipe, SECTIONS[section])):
            found[row] = theirs[row]["sAA"], low.percent
            lengths.add((low.images, low.steps))
        elif left := [value for column, value in one.cells(section, row).items() if column != "clean"]:
            found[row] = theirs[row]["sAA"], min(left)
            lengths.add((one.record["images"], one.steps))
    models = dict.fromkeys(one.places[row] for row in found if row in one.places) or one.places.values()
    kinds = dict.fromkeys(f"{model.partition('-')[0]}-..." for model in models)
    return Row(
        one.link,
        found.theirs,
        found.ours,
        found.order,
        models=", ".join(models if len(models) == 1 else kinds),
        have=f"{len(theirs.keys() & one.places.keys())} of {len(theirs)}",
        size=sized(lengths),
    )


def sized(lengths: Iterable[tuple[int, int | None]]) -> str:
    """The numbers of images and steps of some measurements, unless they are the usual ones."""
    images, steps = (sorted({one for one in each if one is not None}) for each in zip(*lengths, strict=True))
    counts = [" or ".join(f"{one:,}" for one in each) for each in (images, steps)]
    words = f"{counts[0]} images" + f" and {counts[1]} steps" * bool(steps)
    return "" if words == USUAL else f" ({words})"


def pairs(one: Made, section: str, row: str | None = None, column: str | None = None) -> Pairs:
    """The numbers of a section that the paper and we have: of one row by column, or of one column by row."""
    found = [n for n in one.numbers if n["section"] == section and None not in (n["paper"], n["here"])]
    found = [n for n in found if row in (None, n["row"]) and column in (None, n["column"])]
    return Pairs({n["row" if column else "column"]: (n["paper"], n["here"]) for n in found})


def size(one: Made) -> str:
    return "" if one.length == USUAL else f" ({one.length})"


def best(row: dict[str, float], choose: Callable[..., float]) -> str:
    """The strongest attack (min) or the most robust network (max) of a scan of settings."""
    value = choose(row.values())
    return f"{value:.1f} with {' or '.join(column for column, one in row.items() if one == value)}"


def spread(row: dict[str, float]) -> float:
    return max(row.values()) - min(row.values())


def ends(one: Made, model: str, label: str, section: str) -> tuple[Pairs, float | None]:
    """What our curves end with, their values at k = 20, or success rates, beside the paper's tables, because the paper
    does not print numbers of its curves. The second result is the number of SparseAnneal."""
    rates, found = one.cells("success rate, %", model), {}
    for attack in rates or ("sPGD_p", "sPGD_u", "RS", "anneal"):
        if values := rates or one.cells(attack, model):
            found[attack] = values[attack] if rates else values.get("k=20", list(values.values())[-1])
    both = Pairs()
    for attack, here in found.items():
        if (left := table(label).value(section, model, attack)) is not None:
            both[attack] = 100 - left if rates else left, here
    return both, found.get("anneal")
