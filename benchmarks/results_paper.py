"""Sections of docs/tables.md: the paper's tables and figures, ours beside the paper's, from records of small.py."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from records import (
    RESULTS,
    SECTIONS,
    Record,
    Records,
    anchor,
    file_of,
    hardware,
    listed,
    read,
    strongest,
    told,
    torch_version,
    trained_by,
)

from sparsepgd.report.style import svg
from sparsepgd.reproduce.experiments.curves import over
from sparsepgd.reproduce.jobs import Scale, scale
from sparsepgd.reproduce.parts import Outcome
from sparsepgd.reproduce.show import Grid, grids
from sparsepgd.tables import markdown

RETIRED = "sPGD from near the clean image"  # a trial of six steps that warned of more than it knew; not made any more
WORDING = {  # of reasons in older records, as they are written now
    "so that a share near 50 % is known to 10 points either way": "so a share near 50 % is accurate to +-10 points",
    "passes for an image, not the settings of the paper": "passes per image, not the paper's settings",
    "a dash: not finished in the time that there was": "a dash means that the run did not finish within the time limit",
    "stand in its picture alone": "are shown only in the figure",
    "a short run prefers larger ones": "short runs need larger ones",
    "RS 1000 queries; the paper 10,000": "RS 1,000 queries; the paper uses 10,000",
    "are more than a network learns to withstand": "are too many for a network to learn to withstand",
}
CURVES = {"iterations": ("T=", "iterations"), "sparsity": ("k=", "k, pixels")}  # recipes that are drawn


def tables_of_the_paper(records: Records) -> Iterator[str]:
    """Ours beside the paper's."""
    for name, record in records.items():
        yield f"## The paper's CIFAR-10 tables, scale {record['scale']}{which(name, records)}\n"
        yield (
            f"`{record['command']}`: {record['images']} images ({record['data']}), seed {record['seed']}, "
            f"{record['hardware']}, torch {torch_version(record)}, {record['seconds']:.0f} s in {record['processes']} "
            f"processes{_noted(record)}. Record: `benchmarks/results/{name}.json`. `spgd reproduce` computes "
            "the same tables one by one ([Reproducing the paper](reproducing.md)).\n"
        )
        yield from _in_short(record)
        common = _common(record)
        yield "### Why the numbers differ from the paper's\n"
        yield listed([*_trained(record), *_worded(common)])
        for recipe, made in record["recipes"].items():
            yield f"### {titled(made, which(name, records))}\n"
            outcome = Outcome.recorded(made)
            words = [made["unit"]] if made["unit"] not in ("", "as said") else []
            if any(number.low is not None for number in outcome.numbers):
                words.append("the line below a model gives its 95 % interval")
            if words:
                yield f"{'; '.join(words).capitalize()}.\n"
            for grid in grids(outcome):
                yield f"**{grid.title}**\n\n{_by_model(grid, made['places']).markdown}\n"
            if recipe in CURVES:
                yield f"![{made['about']}](images/{_figure(name, recipe)})\n"
            if own := [reason for reason in made["reasons"] if reason not in common]:
                yield listed(_worded(own))
        if record["not finished"]:
            yield f"Not finished within the time limit: {', '.join(record['not finished'])}.\n"
        if notices := [notice for notice in record["notices"] if RETIRED not in notice]:
            yield "### Warnings of the runs\n"
            yield listed(told((notice.split(": ", 1) for notice in notices), "; "))


def titled(made: Record, which: str = "") -> str:
    """The heading of what a recipe made."""
    return f"{made['source']}: {made['about']}{which}"


@dataclass(frozen=True)
class Made:
    """What a recipe of `spgd reproduce` made, and where docs/tables.md shows it."""

    record: Record
    values: Record  # of this recipe, in the record
    title: str

    @property
    def link(self) -> str:
        return f"tables.md#{anchor(self.title)}"

    @property
    def length(self) -> Scale:
        return scale(self.record["scale"])

    @property
    def images(self) -> str:
        return f"{self.record['images']:,} images"

    def row(self, whose: str) -> dict[str, float]:
        """Of a table of one row: the numbers here or in the paper, by column."""
        return {one["column"]: one[whose] for one in self.values["numbers"] if one[whose] is not None}


def made(results: Path = RESULTS) -> dict[str, Made]:
    """By the name of the recipe; of two records the one with more images."""
    alone = {record["recipe"]: Made(record, record, titled(record)) for record in read(results, "ablation").values()}
    together = read(results, "small")
    return alone | {
        recipe: Made(record, values, titled(values, which(name, together)))
        for name, record in sorted(together.items(), key=lambda item: int(item[1]["images"]))
        for recipe, values in record["recipes"].items()
    }


def _noted(record: Record) -> str:
    return f" ({record['note']})" if "note" in record else ""


def ablations(records: Records) -> Iterator[str]:
    """Recipes of `spgd reproduce` that were run alone."""
    yield "## Ablations of training\n"
    for name, record in records.items():
        yield f"### {titled(record)}\n"
        yield (
            f"{record['unit'].capitalize()}; scale {record['scale']}, {record['images']} images of {record['data']}, "
            f"seed {record['seed']}, {hardware(record)}, {record['seconds']:.0f} s. Record: {file_of(name)}.\n"
        )
        for grid in grids(Outcome.recorded(record)):
            yield f"{grid.markdown}\n"
        yield listed(_worded([*record["reasons"], *([record["note"]] if "note" in record else [])]))


def _worded(reasons: list[str]) -> list[str]:
    for older, now in WORDING.items():
        reasons = [reason.replace(older, now) for reason in reasons]
    return reasons


def _by_model(grid: Grid, places: dict[str, str]) -> Grid:
    """What is ours under the name of our model, not of the paper's in whose place it stands."""
    ours = {f"{role}, here": f"{model}, here" for role, model in places.items()}
    return replace(grid, rows=[[ours.get(first, first), *rest] for first, *rest in grid.rows])


def _in_short(record: Record) -> Iterator[str]:
    """Clean and under sAA, of every model and budget, and the strongest measurement in all records."""
    rows, recipes = [], record["recipes"]
    for name in ("unstructured", "structured"):
        found = Outcome.recorded(recipes[name]).numbers if name in recipes else []
        for section, row in dict.fromkeys((number.section, number.row) for number in found):
            cells = {one.column: one for one in found if (one.section, one.row) == (section, row)}
            place = recipes[name]["places"].get(row, "")
            lowest = strongest(RESULTS, trained_by(record, place), SECTIONS[section])
            clean = record["models"].get(place, {}).get("clean_accuracy")
            ours = [_percent(clean and 100 * clean), str(lowest) if lowest else _percent(cells["sAA"].here)]
            rows.append([section, place, *ours, row, *(_percent(cells[column].paper) for column in ("clean", "sAA"))])
    if rows:
        yield (
            "The table compares the lowest robust accuracy of our models, under any attack in any record, with the "
            "paper's models under sAA. Clean accuracy is measured on 10,000 test images. Each of our models is trained "
            "for one budget: k = 20, a row or a 5x5 patch. The paper trains its l0-trained models for each k.\n"
        )
        yield (
            markdown(["budget", "our model", "clean", "lowest, %", "the paper's model", "clean", "under sAA"], rows)
            + "\n"
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _common(record: Record) -> list[str]:
    """The reasons that hold for every table."""
    every = [made["reasons"] for made in record["recipes"].values()]
    return [reason for reason in dict.fromkeys(chain(*every)) if all(reason in one for one in every)]


def _trained(record: Record) -> Iterator[str]:
    used = {model for made in record["recipes"].values() for model in made["places"].values()}
    epochs = [f"{name} {card['epochs']}" for name, card in record["models"].items() if name in used]
    yield f"epochs of training: {', '.join(epochs)}; the paper's models were trained for 100"


def which(name: str, records: Records) -> str:
    return f" ({name})" if len(records) > 1 else ""


def figures(results: Path = RESULTS) -> dict[str, bytes]:
    """The curves of the paper's figures as SVG, by the name of their file."""
    found = {file: (CURVES[recipe], Outcome.recorded(made)) for file, (recipe, made) in curves(results).items()}
    return {file: svg(over(*words, outcome.numbers)) for file, (words, outcome) in found.items()}


def curves(results: Path = RESULTS) -> dict[str, tuple[str, Record]]:
    """What is drawn, the recipe and what it made, by the name of the file."""
    return {
        _figure(name, recipe): (recipe, record["recipes"][recipe])
        for name, record in read(results, "small").items()
        for recipe in CURVES
        if recipe in record["recipes"]
    }


def _figure(record: str, recipe: str) -> str:
    return f"results-{record}-{recipe}.svg"
