"""Write docs/results.md from the records in benchmarks/results: python benchmarks/results_page.py [--check]

Every kind of record has its section, which is there if such a record is. --check writes nothing and fails if the page
is not what the records say, or if a figure is missing.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from records import PAIR, RESULTS, beside_official

from sparsepgd.report.style import svg
from sparsepgd.reproduce.curves import over
from sparsepgd.reproduce.parts import Number, Outcome
from sparsepgd.reproduce.show import grids
from sparsepgd.tables import markdown

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CARDS = (ROOT / "src" / "sparsepgd" / "zoo" / "bundled", ROOT / "weights")
INTRODUCTION = """<!-- written by benchmarks/results_page.py from the records, do not edit -->
# Results

What was measured with this package, from the records in `benchmarks/results`. The [list at the end](#all-records) has
the command and the hardware of each, where the record names them; most hold versions and seeds, too. What a robust
accuracy says and what it does not: [Reading the numbers](interpreting.md).
"""
CURVES = {"iterations": ("T=", "iterations"), "sparsity": ("k=", "k, pixels")}  # recipes that are drawn
Records = dict[str, dict[str, Any]]  # by the name of the file, without .json


def read(results: Path, kind: str) -> Records:
    """All records whose name begins so."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(results.glob(f"{kind}-*.json"))}


def page(results: Path = RESULTS, cards: tuple[Path, ...] = CARDS) -> str:
    """All of it."""
    sections: dict[str, Callable[[Records], Iterator[str]]] = {
        "small": tables_of_the_paper,
        "train": trainings,
        "ablation": ablations,
        "saa": cascades,
        "speed": speeds,
        "growth": growths,
        "compare": comparisons,
        "deviations": variants,
        "detection": detections,
    }
    parts = [INTRODUCTION, *models(cards)]
    for kind, section in sections.items():
        if records := read(results, kind):
            parts += section(records)
    parts += sources(results)
    return "\n".join(parts)


def figures(results: Path = RESULTS) -> dict[str, bytes]:
    """The curves of the paper's figures by the name of their file."""
    found = {}
    for name, record in read(results, "small").items():
        for recipe, (before, words) in CURVES.items():
            if recipe in record["recipes"]:
                drawn = over(before, words, numbers(record["recipes"][recipe]))
                found[_figure(name, recipe)] = svg(drawn)
    return found


def _figure(record: str, recipe: str) -> str:
    return f"results-{record}-{recipe}.svg"


def models(folders: tuple[Path, ...]) -> Iterator[str]:
    """The models of the zoo, from their cards."""
    found = [json.loads(file.read_text()) for folder in folders for file in sorted(folder.glob("*.json"))]
    cards = [card for card in found if "clean_accuracy" in card]
    if cards:
        yield "## The models\n"
        yield markdown(MODEL, [_model(card) for card in cards]) + "\n"
        yield "Measured: " + "; ".join(dict.fromkeys(card["measured"] for card in cards)) + ".\n"


MODEL = ["model", "network", "trained by", "epochs", "seconds", "clean", "robust"]


def _model(card: dict[str, Any]) -> list[str]:
    robust = "; ".join(f"{100 * value:.1f} under {attack}" for attack, value in card["robust_accuracy"].items())
    seconds = f"{card['training_seconds']:,.0f}, {card['hardware']}"
    words = (card["name"], card["architecture"], card["method"], str(card["epochs"]), seconds)
    return [*words, f"{100 * card['clean_accuracy']:.1f}", robust or "-"]


def tables_of_the_paper(records: Records) -> Iterator[str]:
    """Ours beside the paper's."""
    for name, record in records.items():
        yield f"## The paper's CIFAR-10 tables, scale {record['scale']}{_which(name, records)}\n"
        yield (
            f"`{record['command']}`: {record['images']} images ({record['data']}), seed {record['seed']}, "
            f"{record['hardware']}, torch {_version(record)}, {record['seconds']:.0f} s in {record['processes']} "
            f"processes. Record: `benchmarks/results/{name}.json`. `spgd reproduce` makes the same tables one by one "
            "([Reproducing the paper](reproducing.md)).\n"
        )
        yield from _in_short(record["recipes"])
        common = _common(record)
        yield "### Why the numbers differ from the paper's\n"
        yield _listed([*_trained(record), *common])
        for recipe, made in record["recipes"].items():
            yield f"### {made['source']}: {made['about']}\n"
            outcome = Outcome(made["unit"], numbers(made), made["reasons"])
            yield f"{made['unit'].capitalize()}; the second line of a model is its 95 % interval.\n"
            for grid in grids(outcome):
                yield f"**{grid.title}**\n\n{markdown(grid.header, grid.rows)}\n"
            if recipe in CURVES:
                yield f"![{made['about']}](images/{_figure(name, recipe)})\n"
            if own := [reason for reason in made["reasons"] if reason not in common]:
                yield _listed(own)
        if record["notices"]:
            yield "### What the runs warned of\n"
            yield _listed(record["notices"])


def numbers(made: dict[str, Any]) -> list[Number]:
    return [Number(**number) for number in made["numbers"]]


def _in_short(recipes: dict[str, Any]) -> Iterator[str]:
    """Clean and under sAA, of every model and budget."""
    rows = []
    for name in ("unstructured", "structured"):
        found = numbers(recipes[name]) if name in recipes else []
        for section, row in dict.fromkeys((number.section, number.row) for number in found):
            cells = {one.column: one for one in found if (one.section, one.row) == (section, row)}
            place = recipes[name]["places"].get(row, "")
            rows.append([section, f"{row} ({place})", *(_pair(cells[column]) for column in ("clean", "sAA"))])
    if rows:
        yield "In short, here / in the paper:\n"
        yield markdown(["budget", "model", "clean", "under sAA"], rows) + "\n"


def _pair(number: Number) -> str:
    return " / ".join("-" if value is None else f"{value:.1f}" for value in (number.here, number.paper))


def _common(record: dict[str, Any]) -> list[str]:
    """The reasons that hold for every table."""
    every = [made["reasons"] for made in record["recipes"].values()]
    return [reason for reason in dict.fromkeys(chain(*every)) if all(reason in one for one in every)]


def _trained(record: dict[str, Any]) -> Iterator[str]:
    used = {model for made in record["recipes"].values() for model in made["places"].values()}
    epochs = [f"{name} {card['epochs']}" for name, card in record["models"].items() if name in used]
    yield f"epochs of training: {', '.join(epochs)}; the paper's own models 100"


def trainings(records: Records) -> Iterator[str]:
    """What was trained by recipe, and what withstands Sparse-AutoAttack."""
    yield "## Training\n"
    yield "Accuracy in percent; sAA: of the first test images, in the order of its members, each on what is left.\n"
    rows, notes = [], []
    for name, record in records.items():
        saa = record["saa"]
        cells = ["not run", "-"]
        if saa is not None:
            low, high = (f"{100 * share:.1f}" for share in saa["interval"])
            cells = [
                f"{100 * saa['robust_accuracy']:.1f} ({low}-{high})",
                f"{saa['images']:,} images, {saa['steps']:,} steps, {saa['queries']:,} queries",
            ]
        rate = f"{record['seconds']:.0f}, {record['seconds an epoch']:.1f} an epoch"
        words = [record["recipe"], str(record["epochs"]), rate, f"{100 * record['clean']:.1f}", *cells, _file(name)]
        rows.append(words)
        notes += [f"{name}: {record['note']}"] if "note" in record else []
        notes += [f"{name}: {notice}" for notice in record["notices"]]
    yield markdown(["recipe", "epochs", "seconds", "clean", "under sAA (95 %)", "sAA", "record"], rows) + "\n"
    yield f"{_on(next(iter(records.values())))}; curves are in the records.\n"
    if notes:
        yield _listed(notes)


def ablations(records: Records) -> Iterator[str]:
    """Recipes of `spgd reproduce` that were run alone."""
    yield "## Ablations of training\n"
    for name, record in records.items():
        yield f"### {record['source']}: {record['about']}\n"
        yield (
            f"{record['unit'].capitalize()}; scale {record['scale']}, {record['images']} images of {record['data']}, "
            f"seed {record['seed']}, {_on(record)}, {record['seconds']:.0f} s. Record: {_file(name)}.\n"
        )
        for grid in grids(Outcome(record["unit"], numbers(record), record["reasons"])):
            yield f"{markdown(grid.header, grid.rows)}\n"
        yield _listed([*record["reasons"], *([record["note"]] if "note" in record else [])])


def cascades(records: Records) -> Iterator[str]:
    """Sparse-AutoAttack at its full length."""
    yield "## Sparse-AutoAttack\n"
    yield (
        "Accuracy in percent after each member of the cascade, each on the images that withstood those before it; "
        "seconds from a cold start.\n"
    )
    rows = []
    for name, record in records.items():
        left = ", ".join(f"{member} {100 * value:.1f}" for member, value in record["accuracy"].items())
        length = f"{record['steps']:,} steps, {record['queries']:,} queries"
        images = f"{record['images']:,}, k = {record['k']}"
        rows.append([record["model"], images, length, left, f"{record['seconds']:,.0f}", _on(record), _file(name)])
    yield markdown(["model", "images", "length", "left", "seconds", "hardware", "record"], rows) + "\n"


def speeds(records: Records) -> Iterator[str]:
    """Ours beside the authors' code, in one run."""
    yield "## Speed beside the official code\n"
    yield "Means over the seeds, warm-up apart, of attacks of equal length in one run; left: images still right.\n"
    rows = [
        [record["model"], f"{pair.attack}, {pair.images:,} images", *pair.cells, _on(record), _file(name)]
        for name, record in records.items()
        for pair in beside_official(record)
    ]
    yield markdown(["model", "attack", *PAIR, "hardware", "record"], rows) + "\n"


def growths(records: Records) -> Iterator[str]:
    """Seconds against one quantity at a time."""
    yield "## How the time grows\n"
    for name, record in records.items():
        how = record.get("note", "without early stop, after a warm-up")
        yield (
            f"sPGD on {record['model']}, {record['steps']} steps, {how}, {record['precision']}"
            f"{', compiled' if record['compiled'] else ''}; {_on(record)}. The exponent is 1 where the time is "
            f"proportional. Record: {_file(name)}.\n"
        )
        rows = []
        for what in dict.fromkeys(row["what"] for row in record["rows"]):
            mine = [row for row in record["rows"] if row["what"] == what]
            values, seconds, us = ([row[key] for row in mine] for key in ("value", "seconds", "us"))
            cells = [", ".join(f"{value:,}" for value in values), ", ".join(f"{value:.2f}" for value in seconds)]
            rows.append([what, *cells, ", ".join(f"{value:.1f}" for value in us), _exponent(values, seconds)])
        yield markdown(["what", "values", "seconds", "us an evaluation", "exponent"], rows) + "\n"


def _exponent(values: list[float], seconds: list[float]) -> str:
    if len(values) < 2 or min(values) <= 0 or values[0] == values[-1]:
        return "-"
    return f"{math.log(seconds[-1] / seconds[0]) / math.log(values[-1] / values[0]):.2f}"


def comparisons(records: Records) -> Iterator[str]:
    """Every attack at the same cost."""
    yield "## All attacks at equal cost\n"
    for name, record in records.items():
        yield (
            f"{record['model']}, {record['n']} images ({record['data']}), {record['budget']}, {record['how']}, seed "
            f"{record['seed']}, {record['device']}, torch {_version(record)}. Record: {_file(name)}.\n"
        )
        rows = []
        for line in sorted(record["lines"], key=lambda line: (line["robust_accuracy"], line["attack"])):
            low, high = (f"{100 * share:.0f}" for share in line["interval"])
            passes = line["forwards"] + line["backwards"]
            rows.append([line["attack"], f"{100 * line['robust_accuracy']:.1f}", f"{low}-{high}", f"{passes:.0f}"])
        yield markdown(["attack", "robust accuracy, %", "95 %", "passes for an image, as taken"], rows) + "\n"


def variants(records: Records) -> Iterator[str]:
    """What each choice that the paper leaves open is worth."""
    yield "## Variants of sPGD\n"
    yield "Images left robust, means over the seeds; fewer: stronger. What they are: [Deviations](deviations.md).\n"
    for name, record in records.items():
        kinds = list(dict.fromkeys(row["gradient"] for row in record["rows"]))
        left = {(row["variant"], row["gradient"]): statistics.mean(row["robust"]) for row in record["rows"]}
        rows = [
            [variant, *(f"{left[variant, kind]:.1f}" if (variant, kind) in left else "-" for kind in kinds)]
            for variant in dict.fromkeys(row["variant"] for row in record["rows"])
        ]
        yield (
            f"{record['model']}, {record['clean']} of {record['images']:,} images right when clean, k = {record['k']} "
            f"({record.get('pattern', 'pixel')}), {record['steps']} steps, {len(record['seeds'])} seeds, {_on(record)}."
            f" Record: {_file(name)}.\n"
        )
        yield markdown(["variant", *kinds], rows) + "\n"
        if "note" in record:
            yield f"Note: {record['note']}\n"


def detections(records: Records) -> Iterator[str]:
    """mAP of detectors, from the lines of detection.py."""
    yield "## Detectors\n"
    for name, record in records.items():
        lines = [line for line in record["lines"] if "boxes" in line]
        scores = list(lines[0]["boxes"])
        rows = [
            [
                line["line"],
                *(f"{100 * line['boxes'][score]:.1f}" for score in scores),
                str(line.get("evaluations", "-")),
            ]
            for line in lines
        ]
        yield f"{record['model']}, {lines[0]['images']} images of {lines[0]['size']} pixels. Record: {_file(name)}.\n"
        yield markdown(["attack", *(f"{score}, %" for score in scores), "evaluations"], rows) + "\n"


def sources(results: Path) -> Iterator[str]:
    """Every record with the command that made it, if it holds one."""
    rows = []
    for file in sorted(results.glob("*.json")):
        record = json.loads(file.read_text())
        commands = record.get("commands", [record["command"]] if "command" in record else [])
        rows.append([_file(file.stem), "; ".join(f"`{one}`" for one in commands) or "-", _on(record)])
    if rows:
        yield "## All records\n"
        yield markdown(["record", "command", "hardware"], rows) + "\n"


def _on(record: dict[str, Any]) -> str:
    return str(record.get("hardware") or record.get("device") or "-")


def _version(record: dict[str, Any]) -> str:
    return str(record["torch"]).split("+")[0]


def _file(name: str) -> str:
    return f"`{name}.json`"


def _which(name: str, records: Records) -> str:
    return f" ({name})" if len(records) > 1 else ""


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) + "\n"


def main() -> int:
    text, target = page(), DOCS / "results.md"
    if "--check" in sys.argv:
        wanted = [
            _figure(name, one)
            for name, made in read(RESULTS, "small").items()
            for one in made["recipes"]
            if one in CURVES
        ]
        return int(target.read_text() != text or not all((DOCS / "images" / name).is_file() for name in wanted))
    target.write_text(text)
    for name, data in figures().items():
        (DOCS / "images" / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
