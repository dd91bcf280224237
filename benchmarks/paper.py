"""The results of recipes of `spgd reproduce`, as docs/tables.md shows them: tables, reasons, figures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from records import SECTIONS, Made, Records, trained_by

from sparsepgd.report.style import svg
from sparsepgd.reproduce.experiments import ratio
from sparsepgd.reproduce.experiments.curves import WITHIN, bins, over
from sparsepgd.reproduce.parts import Number, Outcome
from sparsepgd.reproduce.show import Grid
from sparsepgd.reproduce.show import grids as grids_of

RETIRED = "sPGD from near the clean image"  # an unreliable warning, no longer made
WORDING = {  # reasons in older records -> their present wording
    "so that a share near 50 % is known to 10 points either way": "so a share near 50 % is accurate to +-10 points",
    "passes for an image, not the settings of the paper": "passes per image, not the paper's settings",
    "a dash: not finished in the time that there was": "a dash means that the run did not finish within the time limit",
    "stand in its picture alone": "are shown only in the figure",
    "a short run prefers larger ones": "short runs need larger ones",
    "RS 1000 queries; the paper 10,000": "RS 1,000 queries; the paper uses 10,000",
    "passes per image; its paper has 300 steps": "passes per image; the paper 300 steps",
    "are more than a network learns to withstand": "are too many for a network to learn to withstand",
}
DRAWN: dict[str, Callable[[Sequence[Number]], Any]] = {  # by recipe
    "iterations": partial(over, "T=", "iterations"),
    "iterations-imagenet": partial(over, "T=", "iterations"),
    "sparsity": partial(over, "k=", "k, pixels"),
    "histogram": bins,
    "ratio": ratio.drawn,
}


def told(pairs: Iterable[tuple[str, str]], between: str = ", ") -> list[str]:
    """``one, another: words``: the same words appear once, after all names."""
    who: dict[str, list[str]] = {}
    for name, words in pairs:
        who.setdefault(words, []).append(name)
    return [f"{between.join(names)}: {words}" for words, names in who.items()]


def in_short(records: Records) -> list[list[Any]]:
    """For every model and budget: our clean accuracy and the lowest robust accuracy of all records; the paper's clean
    accuracy and robust accuracy under sAA."""
    rows: dict[tuple[str, str], list[Any]] = {}
    for one in (one for name in ("unstructured", "structured") for one in records.by_recipe.get(name, ())):
        for section, row in dict.fromkeys((number["section"], number["row"]) for number in one.numbers):
            paper = {n["column"]: n["paper"] for n in one.numbers if (n["section"], n["row"]) == (section, row)}
            if "sAA" not in paper:  # only some columns were measured; another record has the model
                continue
            place = one.places.get(row, row)
            lowest = records.strongest(trained_by(one.record, place), SECTIONS[section])
            clean = one.record["models"].get(place, {}).get("clean_accuracy")
            ours = [clean and 100 * clean, lowest or one.cells(section, row).get("sAA")]
            rows.setdefault((section, place), [section, place, *ours, row, paper["clean"], paper["sAA"]])
    return list(rows.values())


def epochs(records: Records) -> dict[str, int]:
    """The epochs of all models that take the place of one of the paper's."""
    models = [(one, one.record.get("models", {})) for one in records.papers]
    return {name: cards[name]["epochs"] for one, cards in models for name in cards if name in one.places.values()}


def notices(records: Records) -> list[str]:
    found = [notice for one in records.papers for notice in one.record.get("notices", ()) if RETIRED not in notice]
    return told((notice.split(": ", 1) for notice in dict.fromkeys(found)), "; ")


def notes(one: Made) -> list[str]:
    """Notes on the numbers of all tables of a recipe."""
    unit = one.values["unit"]
    measured = [number for number in one.numbers if number["here"] is not None]
    intervals = any(number.get("low") is not None for number in measured)
    return [
        *([unit] if unit not in ("", "as said") else []),
        *(["the line below a model gives its 95 % interval"] if intervals else []),
    ]


def grids(one: Made) -> list[Grid]:
    """The tables, with our numbers under the name of our model instead of the paper's model whose place it takes."""
    outcome = Outcome.recorded(one.values)
    here = {number.section for number in outcome.numbers if number.here is not None}
    found = grids_of(replace(outcome, numbers=[number for number in outcome.numbers if number.section in here]))
    ours = {f"{role}, here": f"{model}, here" for role, model in one.places.items()}
    return [
        replace(grid, title=_placed(one, grid.title), rows=[[ours.get(row[0], row[0]), *row[1:]] for row in grid.rows])
        for grid in found
    ]


def _placed(one: Made, section: str) -> str:
    role, within, rest = section.partition(WITHIN)
    return f"{one.places.get(role, role)}{within}{rest}" if within else section


def reasons(one: Made) -> list[str]:
    """Why the numbers may differ. Reasons about models are left out if the rows name the models."""
    named = not one.places.keys().isdisjoint(number["row"] for number in one.numbers)
    found = [reason for reason in one.values["reasons"] if not (named and reason.startswith("model: "))]
    found += [one.values["note"]] if "note" in one.values else []
    return [worded(reason, WORDING) for reason in found]


def worded(text: str, words: dict[str, str]) -> str:
    """Replace the wording of older records by the present one."""
    for older, now in words.items():
        text = text.replace(older, now)
    return text


def pictures(one: Made) -> list[str]:
    """The names of its figures."""
    recorded: list[str] = one.values.get("pictures", [])
    older = one.recipe == "histogram" and not any(WITHIN in number["section"] for number in one.numbers)  # only means
    if one.recipe not in DRAWN or older:
        return recorded
    return [f"results-{one.file.removeprefix('paper-')}{'' if one.values is one.record else f'-{one.recipe}'}.svg"]


def drawn(records: Records) -> dict[str, bytes]:
    """The figures drawn from the numbers, as SVG, by file name."""
    found = {}
    for one in (one for mine in records.by_recipe.values() for one in mine):
        for name in pictures(one) if one.recipe in DRAWN else ():
            numbers = [
                replace(number, row=one.places.get(number.row, number.row), section=_placed(one, number.section))
                for number in Outcome.recorded(one.values).numbers
            ]
            found[name] = svg(DRAWN[one.recipe](numbers))
    return found
