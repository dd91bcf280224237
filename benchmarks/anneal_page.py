"""The measurements of anneal.py, as docs/anneal.md shows them: tables, and a figure."""

from typing import Any

from records import Record, Records, hardware

from sparsepgd.report.style import colour, dash, figure_style, new_figure, svg

MARKED = (30, 100, 300, 1000, 1600, 6000, 10_000)  # passes
NAMES = (  # in the order of their colours; the authors' code has the colour of ours
    "anneal", "spgd-unprojected", "spgd-projected", "saa+", "sparse-rs", "cluster-rs", "saa", "sigma-zero", "l1-apgd",
    "cw-l0",
)  # fmt: skip
OFFICIAL = "official "
LEAST = 0.05  # seconds, on a logarithmic axis


def annealed(records: Records, kind: str) -> list[Record]:
    """The records of one command of anneal.py: run, structures or ablation."""
    return [record for record in records.of("anneal").values() if kind in record["command"].split()]


def by_model(found: list[Record]) -> dict[str, list[Record]]:
    """The records of each model, those of SparseAnneal first."""
    models: dict[str, list[Record]] = {}
    for record in sorted(found, key=lambda one: all(run["attack"] != "anneal" for run in one["runs"])):
        models.setdefault(record["model"], []).append(record)
    return models


def marks(found: list[Record]) -> list[int]:
    longest = max(run["length"] for record in found for run in record["runs"] if "passes" in run)
    return [mark for mark in MARKED if mark <= longest]


def over_passes(found: list[Record]) -> list[list[Any]]:
    """Robust accuracy of one model at each mark of passes, as the mean over the seeds."""
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for record in found:
        for run in record["runs"]:
            commit = "" if run["attack"].startswith("official") else record["commit"]
            groups.setdefault((run["attack"], run["length"], commit), []).append(run)
    attacks, shown = [group[:2] for group in groups], []
    for (name, length, commit), runs in groups.items():
        again = f", commit {commit}" if attacks.count((name, length)) > 1 else ""
        images, cells = runs[0]["images"], []
        for mark in marks(found):
            left = [_reached(run, mark) for run in runs if mark <= length + 1]  # sPGD also evaluates its random start
            cells.append(100 * (sum(left) / len(left) / images) if left and None not in left else "")
        few = "" if images == found[0]["images"] else f", first {images} images"
        last = 100 * (sum(run["left"] for run in runs) / len(runs) / images)
        seconds = sum(run["seconds"] for run in runs) / len(runs)
        shown.append([f"{name}, {length:,} steps{few}{again}", *cells, last, seconds, len(runs)])
    return shown


def _reached(run: Record, mark: int) -> int | None:
    """The robust images after `mark` passes; for the authors' code only the end is known."""
    if "passes" not in run:
        return run["left"] if mark == run["length"] else None
    return min(left for passes, left in run["passes"] if passes <= mark)


def figure(records: Records) -> dict[str, bytes]:
    """The figure of all models that were attacked on the same images, as SVG, by the name of its file."""
    models = by_model(annealed(records, "run"))
    return {"anneal.svg": svg(_figure(models))} if models else {}


def _figure(models: dict[str, list[Record]]) -> Any:
    """Robust accuracy over passes (above) and over seconds (below), a column for each model."""
    with figure_style():
        drawn = new_figure(3.4 * len(models) + 0.4, 6.4)
        panels = drawn.subplots(2, len(models), squeeze=False, sharey="col")
        for (above, below), (model, found) in zip(panels.T, models.items(), strict=True):
            for run in (run for record in found for run in record["runs"] if run["images"] == found[0]["images"]):
                _draw(above, run, run.get("passes") or [(run["length"] + 1, run["left"])])
                _draw(below, run, run.get("clock") or [(run["seconds"], run["left"])])
            above.set(xscale="log", xlim=(1, None), title=f"{model}, k = {found[0]['k']}", xlabel="passes per image")
            below.set(xscale="log", xlabel=f"seconds ({hardware(found[0])})")
        for panel in panels[:, 0]:
            panel.set_ylabel("robust accuracy, %")
        lines = {line.get_label(): line for panel in panels[0] for line in panel.get_lines()}
        order = sorted(lines, key=lambda name: (name.startswith(OFFICIAL), NAMES.index(name.removeprefix(OFFICIAL))))
        drawn.legend([lines[name] for name in order], order, loc="outside lower center", ncols=4)
    return drawn


def _draw(panel: Any, run: Record, curve: list[tuple[float, int]]) -> None:
    """A curve, or a mark where only the end is known: for the authors' code."""
    number = NAMES.index(run["attack"].removeprefix(OFFICIAL))
    style: dict[str, Any] = {"ls": "", "marker": "D", "ms": 5, "mfc": "none"}
    if len(curve) > 1:
        width = 2.4 if run["attack"] == "anneal" else 1.4
        style = {"drawstyle": "steps-post", "ls": dash(number), "lw": width}
    x, left = zip(*curve, strict=True)
    y = [100 * count / run["images"] for count in left]
    panel.plot([max(one, LEAST) for one in x], y, color=colour(number), label=run["attack"], **style)
