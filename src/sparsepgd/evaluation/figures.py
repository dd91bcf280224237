"""Curves of a run as a picture: robust accuracy over steps, the steps that were needed, and over k."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from sparsepgd.evaluation.atomic import write
from sparsepgd.evaluation.curves import SHORTEST, accuracy_over_k, accuracy_over_steps, steps_histogram
from sparsepgd.evaluation.records import Record

BLUE, ORANGE = "#0072B2", "#D55E00"  # told apart by the colour-blind


def draw(record: Record, folder: Path, name: str, k_max: int | None = None) -> Path:
    """Write FOLDER/curves.png; with `k_max`, of a run of `Smallest`, the curve over k."""
    from matplotlib.figure import Figure  # slow to import

    panels: list[Callable[[Any, Record], None]] = (
        [_over_steps, _histogram] if k_max is None else [partial(_over_k, k_max=k_max)]
    )
    figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    for place, panel in enumerate(panels):
        panel(figure.add_subplot(1, len(panels), place + 1), record)
    figure.suptitle(f"{name}: {record.images} images", fontsize=11)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    file = folder / "curves.png"
    write(file, picture.getvalue())
    return file


def _over_k(axis: Any, record: Record, k_max: int) -> None:
    k, accuracy = accuracy_over_k(record, k_max)
    axis.step(k.tolist(), (100 * accuracy).tolist(), where="post", color=BLUE)
    axis.set(xlabel="k", ylabel="robust accuracy, %", ylim=(0, 100), title="over k")


def _over_steps(axis: Any, record: Record) -> None:
    steps, accuracy = accuracy_over_steps(record)
    axis.step((steps + 1).tolist(), (100 * accuracy).tolist(), where="post", color=BLUE)
    axis.set(
        xscale="log", xlabel="evaluations of an image", ylabel="robust accuracy, %", ylim=(0, 100), title="over steps"
    )
    axis.axhline(100 * record.clean_accuracy, color="0.6", linestyle=":", label="clean")
    axis.legend(loc="lower left", frameon=False)


def _histogram(axis: Any, record: Record) -> None:
    edges, counts = steps_histogram(record)
    axis.stairs(counts.tolist(), edges.tolist(), fill=True, color=ORANGE)
    axis.set(xscale="log", xlabel=f"steps until success (at least {SHORTEST})", ylabel="images", title="steps needed")
