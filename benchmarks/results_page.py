"""Write docs/results.md and docs/tables.md from the records: python benchmarks/results_page.py [--check]

The first says what was found, the second has all tables: every kind of record has its section, which is there if such
a record is. --check writes nothing and fails if a page is not what the records say, or if a figure is missing.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from records import RESULTS, SINCE, Record, Records, file_of, hardware, listed, missing, read, told, values_at
from results_contents import contents
from results_findings import findings
from results_models import models as models_beside_the_papers
from results_paper import figures, shown, tables_of_the_paper
from results_sections import cascades, comparisons, detections, other_seeds, speeds, subjects, trainings, variants

from sparsepgd.reproduce.recipe import facts
from sparsepgd.tables import markdown
from sparsepgd.zoo import Card

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CARDS = (ROOT / "src" / "sparsepgd" / "zoo" / "bundled", ROOT / "weights")
WRITTEN = "<!-- written by benchmarks/results_page.py from the records, do not edit -->\n"
SUMMARY = f"""{WRITTEN}# Results

This page compares our measurements with those of the paper: {facts()["source"]}.

Every number of ours comes from a record. Of several measurements the lowest robust accuracy counts
([what it means](interpreting.md)). [All tables](tables.md) have lengths, intervals, commands and hardware.
"""
INTRODUCTION = f"""{WRITTEN}# All tables

This page shows all measurements with this package, from the records in `benchmarks/results`; [Results](results.md) sums
them up. The [list at the end](#all-records) gives the command, the commit and the hardware of each record, and what an
older record does not say. [Reading the numbers](interpreting.md) explains what a robust accuracy means.
"""
SECTIONS: dict[str, Callable[[Records], Iterator[str]]] = {  # by the kind of record, in the order of the page
    "train": trainings,
    "seed": other_seeds,
    "subject": subjects,
    "saa": cascades,
    "speed": speeds,
    "compare": comparisons,
    "deviations": variants,
    "detection": detections,
}
COMMITS = ("commit", "commit of attacks", "models.*.runs.*.commit")  # where a record names the commits that it measured
MODEL = ["model", "network", "trained by", "epochs", "seconds", "hardware", "clean, %"]  # above what `_model` says


def summary() -> str:
    """docs/results.md."""
    return "\n".join([SUMMARY, *models_beside_the_papers(), *findings(), *contents()])


def page(results: Path = RESULTS, cards: tuple[Path, ...] = CARDS) -> str:
    """docs/tables.md."""
    parts = [INTRODUCTION, *models(cards), *tables_of_the_paper(results)]
    for kind, section in SECTIONS.items():
        if records := read(results, kind):
            parts += section(records)
    parts += sources(results)
    return "\n".join(parts)


def models(folders: tuple[Path, ...]) -> Iterator[str]:
    """The models of the zoo, from their cards."""
    found = [json.loads(file.read_text()) for folder in folders for file in sorted(folder.glob("*.json"))]
    cards = [Card.of(card) for card in found if "clean_accuracy" in card]
    if cards:
        yield "## The models\n"
        yield markdown(MODEL, [_model(card) for card in cards]) + "\n"
        yield "Robust accuracy, %, by attack:\n"
        attacks = dict.fromkeys(str(one) for card in cards for one in card.robust)
        yield markdown(["", *(card.name for card in cards)], [_withstood(cards, attack) for attack in attacks]) + "\n"
        yield "How these numbers were measured:\n"
        yield listed(told((card.name, card.measured) for card in cards))


def _model(card: Card) -> list[str]:
    seconds, clean = f"{card.training_seconds:,.0f}", f"{100 * card.clean_accuracy:.1f}"
    return [card.name, card.architecture, card.method, str(card.epochs), seconds, card.hardware, clean]


def _withstood(cards: list[Card], attack: str) -> list[str]:
    found = [{str(one): one.robust_accuracy for one in card.robust}.get(attack) for card in cards]
    return [attack, *("-" if value is None else f"{100 * value:.1f}" for value in found)]


def sources(results: Path) -> Iterator[str]:
    """Every record with its origin, as far as it is known."""
    rows = []
    for name, record in read(results, "").items():
        commands = record.get("commands") or values_at(record, "command")
        command = f"`{'; '.join(commands)}`" if commands else "-"
        rows.append([file_of(name), command, _commits(record), hardware(record), ", ".join(missing(record))])
    if rows:
        yield "## All records\n"
        yield (
            "*Commit* is the state of this repository that was measured. Where it was not recorded, the column gives "
            "the commit with which the numbers came into the repository; they were measured then or before.\n"
        )
        yield markdown(["record", "command", "commit", "hardware", "not recorded"], rows) + "\n"


def _commits(record: Record) -> str:
    measured = [one[:7] for place in COMMITS for one in values_at(record, place)]
    return ", ".join(dict.fromkeys(measured)) or (f"at the latest {record[SINCE]}" if SINCE in record else "-")


def main() -> int:
    pages = {DOCS / "results.md": summary(), DOCS / "tables.md": page()}
    if "--check" in sys.argv:
        current = all(file.read_text() == text for file, text in pages.items())
        return int(not current or not all((DOCS / "images" / name).is_file() for name in shown()))
    for file, text in pages.items():
        file.write_text(text)
    for name, data in figures().items():
        (DOCS / "images" / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
