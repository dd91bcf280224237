"""Sections of docs/tables.md: what was measured beside the paper's tables, one kind of record each."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from records import (
    PAIR,
    RESULTS,
    Records,
    all_stages,
    beside_official,
    budget_of,
    compared,
    file_of,
    hardware,
    listed,
    load,
    recipe_of,
    strongest,
    told,
    torch_version,
)
from results_models import not_attacked

from sparsepgd.reproduce.recipe import facts
from sparsepgd.tables import markdown
from sparsepgd.zoo import Figure


def trainings(records: Records) -> Iterator[str]:
    """What was trained by recipe, and what withstands Sparse-AutoAttack."""
    yield "## Training\n"
    yield (
        "Accuracy is in percent. Epochs and seconds are given for all stages together, starting from fresh weights, "
        "and for the last stage. sAA was run on the first test images, each attack on the survivors of those before "
        "it. *Lowest* is the lowest robust accuracy of the model under any attack in any record. The recipes were "
        "chosen by their robust accuracy on these same images, with one seed, so it would be slightly lower on fresh "
        "images.\n"
    )
    rows, notes = [], []
    for name, record in records.items():
        recipe, saa = name.removeprefix("train-"), record["saa"]
        every = all_stages(records, recipe)
        spent = [
            f"{every[key]:.0f}{f', {record[key]:.0f}' if every[key] > record[key] else ''}"
            for key in ("epochs", "seconds")
        ]
        low, high = (f"{100 * share:.1f}" for share in saa["interval"])
        length = f"{saa['images']:,} images, {saa['steps']:,} steps, {saa['queries']:,} queries"
        k, pattern = budget_of(recipe)
        budget = f"{recipe_of(recipe).get('size', 32)}x{recipe_of(recipe).get('size', 32)}, k = {k} ({pattern})"
        cells = [
            f"{100 * saa['robust_accuracy']:.1f} ({low}-{high})",
            length,
            str(strongest(RESULTS, recipe, (k, pattern))),
        ]
        rows.append([record["recipe"], budget, *spent, f"{100 * record['clean']:.1f}", *cells, file_of(name)])
        sample = record["data"] if " " in record["data"] else None  # more than the name of a file
        notes += [(name, words) for words in (sample, record.get("note"), *record["notices"]) if words]
    titles = [
        "recipe",
        "images, budget",
        "epochs",
        "seconds",
        "clean",
        "under sAA (95 %)",
        "sAA",
        "lowest",
        "record",
    ]
    yield markdown(titles, rows) + "\n"
    theirs = facts()["follow_up"]
    yield (
        f"Measured on an {hardware(next(iter(records.values())))}, spgd-near on a CPU; the records hold the training "
        "curves. Of GTSRB we have only a sample. For 32x32 images and k = 12, the authors' later work reports a "
        f"robust accuracy of {theirs['sAA']['gtsrb at 32x32, k=12']['sTRADES']:.1f} % for sTRADES under sAA "
        f"({theirs['source']}).\n"
    )
    if waiting := not_attacked():
        yield (
            f"SparseAnneal has not been run yet on {', '.join(waiting)}, so their robust accuracy may be well below "
            "the lowest value.\n"
        )
    if notes:
        yield listed(told(notes))


def other_seeds(records: Records) -> Iterator[str]:
    """Trainings that were repeated with another seed, beside the first one."""
    yield "## Other training seeds\n"
    rows = []
    for name, record in records.items():
        recipe = Path(record["recipe"]).stem
        for file, one in ((f"train-{recipe}", load(f"train-{recipe}")), (name, record)):
            saa = one["saa"]
            plus = [f"{100 * figure['robust_accuracy']:.1f}" for figure in one["saa+"] if figure["attack"] == "saa+"]
            cells = [f"{100 * one['clean']:.1f}", f"{100 * saa['robust_accuracy']:.1f}", ", ".join(plus)]
            rows.append([recipe, str(one["seed"]), f"{one['all stages']['seconds']:.0f}", *cells, file_of(file)])
    yield markdown(["recipe", "training seed", "seconds", "clean", "sAA", "saa+", "record"], rows) + "\n"
    yield (
        "Accuracy is in percent, robust accuracy on the first 1,000 test images: sAA with 300 steps, saa+ with 6,000, "
        "both with 10,000 queries, one value per seed of the attack. Seconds are those of all stages; trainings that "
        "ran beside others take longer.\n"
    )


def subjects(records: Records) -> Iterator[str]:
    """The small networks of weights/subjects."""
    yield "## Subjects\n"
    first = next(iter(records.values()))
    yield (
        "The small networks in `weights/subjects` take the place of the paper's models: `spgd reproduce` uses them by "
        "default. Accuracy is in percent. Each is evaluated with the budget that it was trained for, or with k = 20. "
        "Epochs and seconds are given for all stages together, with "
        f"{first['trainings at once']} trainings at once on one {hardware(first)}.\n"
    )
    rows = []
    for name, record in records.items():
        k, pattern = budget_of(name)
        robust = "; ".join(f"{100 * one['robust_accuracy']:.1f} ({Figure(**one)})" for one in record["robust"])
        spent = [str(record["epochs"]), f"{record['seconds']:.0f}", f"{100 * record['clean']:.1f}"]
        rows.append([name, recipe_of(name)["method"], f"k = {k} ({pattern})", *spent, robust or "-", file_of(name)])
    yield markdown(["subject", "method", "budget", "epochs", "seconds", "clean", "robust", "record"], rows) + "\n"
    notes = [(name, words) for name, record in records.items() for words in record["notices"]]
    if notes:
        yield listed(told(notes))


def cascades(records: Records) -> Iterator[str]:
    """Sparse-AutoAttack at its full length."""
    yield "## Sparse-AutoAttack\n"
    yield (
        "Robust accuracy in percent after each member of the cascade, which attacks the survivors of those before it. "
        "The time includes the start of the process.\n"
    )
    rows = []
    for name, record in records.items():
        left = ", ".join(f"{member} {100 * value:.1f}" for member, value in record["accuracy"].items())
        length = f"{record['steps']:,} steps, {record['queries']:,} queries"
        images = f"{record['images']:,}, k = {record['k']}"
        seconds = f"{record['seconds']:,.0f}"
        rows.append([record["model"], images, length, left, seconds, hardware(record), file_of(name)])
    yield markdown(["model", "images", "length", "robust accuracy", "seconds", "hardware", "record"], rows) + "\n"


def speeds(records: Records) -> Iterator[str]:
    """Ours beside the authors' code, in one run."""
    yield "## Speed compared with the official code\n"
    yield (
        "Means over the seeds, with equally many steps or queries in one run, after a first call that does not count. "
        "A \\* marks runs of the official code without such a first call, which makes it look slower than it is. "
        "*Left* is the number of images that are still classified correctly.\n"
    )
    rows = [
        [record["model"], f"{pair.attack}, {pair.images:,} images", *pair.cells, hardware(record), file_of(name)]
        for name, record in records.items()
        for pair in beside_official(record)
    ]
    yield markdown(["model", "attack", *PAIR, "hardware", "record"], rows) + "\n"


def comparisons(records: Records) -> Iterator[str]:
    """Every attack at the same cost."""
    yield "## All attacks at equal cost\n"
    for name, record in records.items():
        yield (
            f"{record['model']}, {record['n']} images ({record['data']}), {record['budget']}, {record['how']}, seed "
            f"{record['seed']}, {record['device']}, torch {torch_version(record)}. Record: {file_of(name)}.\n"
        )
        yield compared(record) + "\n"


def variants(records: Records) -> Iterator[str]:
    """What each choice that the paper leaves open is worth."""
    yield "## Variants of sPGD\n"
    yield (
        "Number of images still classified correctly, as means over the seeds; lower is stronger. "
        "[Deviations](deviations.md) describes the variants.\n"
    )
    for name, record in records.items():
        kinds = list(dict.fromkeys(row["gradient"] for row in record["rows"]))
        left = {(row["variant"], row["gradient"]): statistics.mean(row["robust"]) for row in record["rows"]}
        rows = [
            [variant, *(f"{left[variant, kind]:.1f}" if (variant, kind) in left else "-" for kind in kinds)]
            for variant in dict.fromkeys(row["variant"] for row in record["rows"])
        ]
        yield (
            f"{record['model']}, {record['clean']} of {record['images']:,} images correct without an attack, k = "
            f"{record['k']} ({record.get('pattern', 'pixel')}), {record['steps']} steps, {len(record['seeds'])} seeds, "
            f"{hardware(record)}. Record: {file_of(name)}.\n"
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
        yield f"{record['model']}, {lines[0]['images']} images of {lines[0]['size']} pixels. Record: {file_of(name)}.\n"
        yield markdown(["attack", *(f"{score}, %" for score in scores), "evaluations"], rows) + "\n"
