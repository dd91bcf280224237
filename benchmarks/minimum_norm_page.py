"""The measurements of minimum_norm.py: the rows of docs/minimum-k.md, and a figure of each record."""

import math
from typing import Any

from minimum_norm_attacks import ATTACKS, PATTERNS
from minimum_norm_numbers import CUT, WITHIN, Record, rows
from records import Records

from sparsepgd.report.style import colour, dash, figure_style, new_figure, svg

OURS = "sparse-anneal"
BETTER = {"median": -1, "mean": -1, "optimality": 1}  # 1 if larger is better, -1 if smaller is


def ranking(record: Record, counts: str) -> list[list[Any]]:
    """For each attack, the best first: mean passes, median and mean on each model, and optimality."""
    models, means, shown = record["models"], record["global optimality"][counts], []
    for name in sorted(means, key=lambda name: -math.inf if means[name] is None else means[name], reverse=True):
        runs = {model["sha256"]: run for model in models for run in rows(model, counts) if run["attack"] == name}
        if passes := [run["passes"] for run in runs.values() if "error" not in run]:
            mark = "" if counts in ATTACKS[name].counts else " *"
            cells = [_both(runs.get(model["sha256"], {}), counts) for model in models]
            optimality = None if means[name] is None else 100 * means[name]
            shown.append([name + mark, f"{sum(passes) / len(passes):.0f}", *cells, optimality])
    return shown


def _both(run: Record, counts: str) -> str | None:
    found = run.get("numbers", {}).get(counts)
    if found is None:
        return None
    median = "none" if found["median"] is None else f"{found['median']:g}"
    return f"{median} / {found['mean']:.1f}"


def rivals(record: Record, counts: str) -> list[str] | None:
    """The cases in which SparseAnneal is not the best, by measure; None if it was not run."""
    runs = [run for model in record["models"] for run in model["runs"] if "error" not in run]
    if OURS not in {run["attack"] for run in runs}:
        return None
    found = {measure: [_rival(model, counts, measure) for model in record["models"]] for measure in BETTER}
    return [f"by {measure}, {', '.join(filter(None, words))}" for measure, words in found.items() if any(words)]


def _rival(model: Record, counts: str, measure: str) -> str:
    """The best attack on a model by median, mean or optimality, if it is better than SparseAnneal."""
    sign = BETTER[measure]
    found = {
        run["attack"]: -math.inf if (one := run["numbers"][counts][measure]) is None else sign * one
        for run in rows(model, counts)
        if "error" not in run
    }
    best = max(found, key=lambda name: found[name])
    if OURS not in found or found[best] == found[OURS]:
        return ""
    values = (f"{sign * found[name]:.4g}" for name in (best, OURS))
    return f"{best} on `{model['model']}` ({' against '.join(values)})"


def other_commits(record: Record) -> list[str]:
    """The attacks that were run at another commit than that of the record, with that commit."""
    runs = [run for model in record["models"] for run in model["runs"] if run["commit"] != record["commit"]]
    return list(dict.fromkeys(f"{run['attack']}: {run['commit']}" for run in runs))


def curves(records: Records) -> dict[str, bytes]:
    """A figure of each record, as SVG, by the name of its file."""
    return {f"{name}.svg": svg(_figure(record)) for name, record in records.of("minimum-norm").items()}


def _figure(record: Record) -> Any:
    """The share of images not fooled within k: a column for each model, a row for each way of counting."""
    with figure_style():
        drawn = new_figure(3.2 * len(record["models"]) + 2, 6)
        panels = drawn.subplots(len(PATTERNS), len(record["models"]), sharex=True, sharey=True, squeeze=False)
        for panel_row, counts in zip(panels, PATTERNS, strict=True):
            for panel, model in zip(panel_row, record["models"], strict=True):
                for run in rows(model, counts):
                    if "error" not in run:
                        _draw_curve(panel, run, counts)
                panel.set(xscale="log", xlim=(1, CUT), ylim=(0, 100), xlabel=f"k {counts}")
                panel.set_xticks(WITHIN, [str(k) for k in WITHIN])
                panel.minorticks_off()
            panel_row[0].set_ylabel(f"not fooled within k {counts} (%)")
        for panel, model in zip(panels[0], record["models"], strict=True):
            panel.set_title(model["model"])
        lines = {one.get_label(): one for panel in panels.flat for one in panel.get_lines()}
        drawn.legend(lines.values(), lines.keys(), loc="outside right upper")
    return drawn


def _draw_curve(panel: Any, run: Record, counts: str) -> None:
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
