"""What minimum_norm.py measured, for readers: the tables of docs/minimum-k.md, and a figure of each record."""

import math
from collections.abc import Iterator
from typing import Any

from minimum_norm_attacks import ATTACKS, PATTERNS
from minimum_norm_numbers import CUT, WITHIN, Record, rows
from provenance import ROOT
from records import RESULTS, read, rewritten, torch_version

from sparsepgd.report.style import colour, dash, figure_style, new_figure, svg
from sparsepgd.tables import markdown

MARKS = "<!-- results: written by benchmarks/minimum_norm.py page, do not edit -->\n", "<!-- end of results -->"
OURS = "sparse-anneal"
BETTER = {"median": -1, "mean": -1, "optimality": 1}  # the sign of what is better


def records() -> dict[str, Record]:
    """Those of few passes first."""
    return dict(sorted(read(RESULTS, "minimum-norm").items(), key=lambda item: item[1]["passes"]))


def page(check: bool) -> int:
    """With `check`, 1 if the page is not that of the records."""
    text = "\n".join(of_record(name, record) for name, record in records().items())
    return rewritten(ROOT / "docs" / "minimum-k.md", MARKS, text, check)


def of_record(name: str, record: Record) -> str:
    models = ", ".join(f"{model['right']} of `{model['model']}`" for model in record["models"])
    parts = [
        f"{record['passes']:,} passes per image. Of the first {record['images']} test images, those that the model "
        f"classifies correctly are attacked: {models}. In the mean, larger numbers than {CUT} and images that are not "
        f"fooled count as {CUT}.\n",
        *(part for counts in PATTERNS for part in (table(record, counts), *findings(record, counts))),
        f"![The share of images that each attack does not fool within k](images/{name}.svg)\n",
        *(f"More than {record['passes']:,} passes: {words}.\n" for words in beyond(record)),
        *(f"Failed: {words}.\n" for words in failures(record)),
        f"{record['hardware']}, torch {torch_version(record)}, {packages(record)}, {commits(record)}: "
        f"`{record['command']}`\n",
    ]
    return "\n".join(parts)


def table(record: Record, counts: str) -> str:
    """Median and mean of each attack on each model, the best attack first."""
    models, means = record["models"], record["global optimality"][counts]
    titles = [counts, "passes", *(f"`{model['model']}`" for model in models), "optimality (%)"]
    shown = []
    for name in sorted(means, key=lambda name: -math.inf if means[name] is None else means[name], reverse=True):
        runs = {model["sha256"]: run for model in models for run in rows(model, counts) if run["attack"] == name}
        finished = [run for run in runs.values() if "error" not in run]
        if not finished:
            continue
        passes = [run["passes"] for run in finished]
        cells = [both(runs.get(model["sha256"], {}), counts) for model in models]
        mark = "" if counts in ATTACKS[name].counts else " *"
        optimality = "-" if means[name] is None else f"{100 * means[name]:.1f}"
        shown.append([name + mark, f"{sum(passes) / len(passes):.0f}", *cells, optimality])
    return markdown(titles, shown) + "\n"


def both(run: Record, counts: str) -> str:
    found = run.get("numbers", {}).get(counts)
    if found is None:
        return "-"
    median = "none" if found["median"] is None else f"{found['median']:g}"
    return f"{median} / {found['mean']:.1f}"


def findings(record: Record, counts: str) -> Iterator[str]:
    """Where SparseAnneal is not the best, in words."""
    if not any(run["attack"] == OURS and "error" not in run for model in record["models"] for run in model["runs"]):
        return
    said = [
        f"by {measure}, {', '.join(better)}"
        for measure in BETTER
        if (better := [words for model in record["models"] if (words := rival(model, counts, measure))])
    ]
    if said:
        yield f"In {counts}, SparseAnneal is not the best on every model: {'; '.join(said)}.\n"
    else:
        yield f"In {counts}, no other attack has a lower median or mean, or a higher optimality, on any model.\n"


def rival(model: Record, counts: str, measure: str) -> str | None:
    """The best attack on a model by median, mean or optimality, if it is better than SparseAnneal."""
    sign = BETTER[measure]
    found = {
        run["attack"]: -math.inf if (one := run["numbers"][counts][measure]) is None else sign * one
        for run in rows(model, counts)
        if "error" not in run
    }
    best = max(found, key=lambda name: found[name])
    if OURS not in found or found[best] == found[OURS]:
        return None
    values = (f"{sign * found[name]:.4g}" for name in (best, OURS))
    return f"{best} on `{model['model']}` ({' against '.join(values)})"


def beyond(record: Record) -> list[str]:
    """What used more passes than it was given."""
    return [
        f"{run['attack']} on `{model['model']}`, {run['counts']} ({run['passes']:.1f})"
        for model in record["models"]
        for run in model["runs"]
        if run.get("passes", 0) > record["passes"]
    ]


def failures(record: Record) -> list[str]:
    return [
        f"{run['attack']} on `{model['model']}` ({run['error']})"
        for model in record["models"]
        for run in model["runs"]
        if "error" in run
    ]


def commits(record: Record) -> str:
    """That of the record, and which attacks were run at others."""
    others = dict.fromkeys(
        f"{run['attack']}: {run['commit']}"
        for model in record["models"]
        for run in model["runs"]
        if run["commit"] != record["commit"]
    )
    return f"commit {record['commit']}" + (f" ({', '.join(others)})" if others else "")


def packages(record: Record) -> str:
    return ", ".join(f"{name} {version}" for name, version in record["packages"].items())


def draw() -> None:
    """A figure of each record."""
    for name, record in records().items():
        (ROOT / "docs" / "images" / f"{name}.svg").write_bytes(svg(figure(record)))


def figure(record: Record) -> Any:
    """The share of images not fooled within k: a column for each model, a row for each way of counting."""
    with figure_style():
        drawn = new_figure(3.2 * len(record["models"]) + 2, 6)
        panels = drawn.subplots(len(PATTERNS), len(record["models"]), sharex=True, sharey=True, squeeze=False)
        for panel_row, counts in zip(panels, PATTERNS, strict=True):
            for panel, model in zip(panel_row, record["models"], strict=True):
                for run in rows(model, counts):
                    if "error" not in run:
                        draw_curve(panel, run, counts)
                panel.set(xscale="log", xlim=(1, CUT), ylim=(0, 100), xlabel=f"k {counts}")
                panel.set_xticks(WITHIN, [str(k) for k in WITHIN])
                panel.minorticks_off()
            panel_row[0].set_ylabel(f"not fooled within k {counts} (%)")
        for panel, model in zip(panels[0], record["models"], strict=True):
            panel.set_title(model["model"])
        lines = {one.get_label(): one for panel in panels.flat for one in panel.get_lines()}
        drawn.legend(lines.values(), lines.keys(), loc="outside right upper")
    return drawn


def draw_curve(panel: Any, run: Record, counts: str) -> None:
    sizes = [math.inf if size is None else size for size in run["sizes"][counts]]
    shares = [100 * sum(size > k for size in sizes) / len(sizes) for k in range(1, CUT + 1)]
    place = list(ATTACKS).index(run["attack"])
    panel.plot(
        range(1, CUT + 1),
        shares,
        drawstyle="steps-post",
        color=colour(place),
        linestyle=dash(place),
        label=run["attack"],
    )
