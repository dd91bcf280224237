"""Sections of docs/tables.md: the paper's tables and figures, ours beside the paper's, one for each recipe."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from records import (
    RESULTS,
    SECTIONS,
    Made,
    every_made,
    file_of,
    hardware,
    listed,
    papers,
    strongest,
    told,
    torch_version,
    trained_by,
)

from sparsepgd.report.style import svg
from sparsepgd.reproduce.experiments import ratio
from sparsepgd.reproduce.experiments.curves import WITHIN, bins, over
from sparsepgd.reproduce.parts import Number, Outcome
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
    "passes per image; its paper has 300 steps": "passes per image; the paper 300 steps",
    "are more than a network learns to withstand": "are too many for a network to learn to withstand",
}
TITLE = "The paper's tables and figures"
DRAWN: dict[str, Callable[[Sequence[Number]], Any]] = {  # by recipe
    "iterations": partial(over, "T=", "iterations"),
    "iterations-imagenet": partial(over, "T=", "iterations"),
    "sparsity": partial(over, "k=", "k, pixels"),
    "histogram": bins,
    "ratio": ratio.drawn,
}


def tables_of_the_paper(results: Path) -> Iterator[str]:
    """Ours beside the paper's: a heading for each recipe, beneath it every record of it."""
    if not any(papers(results)):
        return
    yield f"## {TITLE}\n"
    yield (
        "The lines with our results give the name of our model, and the lines below them that of the paper's model "
        "whose place it takes. `spgd reproduce` computes these tables one by one ([Reproducing the "
        "paper](reproducing.md)).\n"
    )
    yield from _in_short(results)
    yield from _trained(results)
    for mine in every_made(results).values():
        yield f"### {mine[0].title}\n"
        for one in mine:
            yield from _table(one)
    yield from _warned(results)


def _table(one: Made) -> Iterator[str]:
    record, values = one.record, one.values
    words = [
        f"{one.images} of {record['data']}, {one.steps:,} steps, {one.queries:,} queries, seed {record['seed']}",
        hardware(record),
        f"torch {torch_version(record)}",
        f"{record['seconds']:.0f} s{f' in {n} processes' if (n := record.get('processes', 1)) > 1 else ''}",
        *([record["note"]] if "note" in record and values is not record else []),
    ]
    yield f"{', '.join(words)}. Record: {file_of(one.file)}.\n"
    outcome = Outcome.recorded(values)
    here = {number.section for number in outcome.numbers if number.here is not None}
    outcome = replace(outcome, numbers=[number for number in outcome.numbers if number.section in here])
    notes = [values["unit"]] if values["unit"] not in ("", "as said") else []
    if any(number.low is not None for number in outcome.numbers):
        notes.append("the line below a model gives its 95 % interval")
    if notes:
        yield f"{'; '.join(notes).capitalize()}.\n"
    for grid in grids(outcome):
        shown = _by_model(grid, one.places)
        yield f"**{shown.title}**\n\n{shown.markdown}\n"
    for picture in pictures(one):
        yield f"![{values['about']}](images/{picture})\n"
    rows = {number.row for number in outcome.numbers}  # which name the models, if they are the places
    named = one.places and one.places.keys() <= rows
    own = [reason for reason in values["reasons"] if not (named and reason.startswith("model: "))]
    if reasons := [*own, *([values["note"]] if "note" in values else [])]:
        yield listed(_worded(reasons))


def _worded(reasons: list[str]) -> list[str]:
    for older, now in WORDING.items():
        reasons = [reason.replace(older, now) for reason in reasons]
    return reasons


def _by_model(grid: Grid, places: dict[str, str]) -> Grid:
    """What is ours under the name of our model, not of the paper's in whose place it stands."""
    ours = {f"{role}, here": f"{model}, here" for role, model in places.items()}
    rows = [[ours.get(first, first), *rest] for first, *rest in grid.rows]
    return replace(grid, title=_place_of(grid.title, places), rows=rows)


def _place_of(section: str, places: dict[str, str]) -> str:
    role, within, rest = section.partition(WITHIN)
    return f"{places.get(role, role)}{within}{rest}" if within else section


def _in_short(results: Path) -> Iterator[str]:
    """Clean and under sAA, of every model and budget, and the strongest measurement in all records."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in (one for name in ("unstructured", "structured") for one in every_made(results).get(name, ())):
        found = Outcome.recorded(one.values).numbers
        for section, row in dict.fromkeys((number.section, number.row) for number in found):
            cells = {each.column: each for each in found if (each.section, each.row) == (section, row)}
            place = one.places.get(row, row)
            lowest = strongest(results, trained_by(one.record, place), SECTIONS[section])
            clean = one.record["models"].get(place, {}).get("clean_accuracy")
            ours = [_percent(clean and 100 * clean), str(lowest) if lowest else _percent(cells["sAA"].here)]
            theirs = [_percent(cells[column].paper) for column in ("clean", "sAA")]
            rows.setdefault((section, place), [section, place, *ours, row, *theirs])
    if rows:
        yield (
            "The table compares the lowest robust accuracy of our models, under any attack in any record, with the "
            "paper's models under sAA. Clean accuracy is measured on 10,000 test images. Each of our models is trained "
            "for one budget. The paper trains its l0-trained models for each k.\n"
        )
        header = ["budget", "our model", "clean", "lowest, %", "the paper's model", "clean", "under sAA"]
        yield markdown(header, list(rows.values())) + "\n"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _trained(results: Path) -> Iterator[str]:
    epochs = {
        name: card["epochs"]
        for one in papers(results)
        for name, card in one.record.get("models", {}).items()
        if name in one.places.values()
    }
    if epochs:
        each = ", ".join(f"{name} {count}" for name, count in epochs.items())
        yield f"Epochs of training: {each}; the paper's models were trained for 100.\n"


def _warned(results: Path) -> Iterator[str]:
    notices = dict.fromkeys(
        notice for one in papers(results) for notice in one.record.get("notices", ()) if RETIRED not in notice
    )
    if notices:
        yield "### Warnings of the runs\n"
        yield listed(told((notice.split(": ", 1) for notice in notices), "; "))


def pictures(one: Made) -> list[str]:
    """The names of the figures of what a recipe made."""
    recorded: list[str] = one.values.get("pictures", [])
    if one.recipe not in DRAWN or (one.recipe == "histogram" and not _bins(one)):
        return recorded
    return [f"results-{one.file.removeprefix('paper-')}{'' if one.values is one.record else f'-{one.recipe}'}.svg"]


def _bins(one: Made) -> bool:
    """Older records have only means."""
    return any(WITHIN in number["section"] for number in one.values["numbers"])


def figures(results: Path = RESULTS) -> dict[str, bytes]:
    """What is drawn from the numbers, as SVG, by the name of its file."""
    found = {}
    for one in papers(results):
        for name in pictures(one) if one.recipe in DRAWN else ():
            numbers = [
                replace(
                    number,
                    row=one.places.get(number.row, number.row),
                    section=_place_of(number.section, one.places),
                )
                for number in Outcome.recorded(one.values).numbers
            ]
            found[name] = svg(DRAWN[one.recipe](numbers))
    return found


def shown(results: Path = RESULTS) -> list[str]:
    """The names of all figures of the page."""
    return [name for one in papers(results) for name in pictures(one)]
