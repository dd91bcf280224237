"""The picture of a benchmark: how long each attack takes, beside how many images it leaves."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from sparsepgd import atomic
from sparsepgd.report.style import MUTED, colour, look, new_figure, png


def draw(record: dict[str, Any], file: Path) -> None:
    """Bars of seconds for each attack, ours and others', with the images left written beside them."""
    rows = sorted(record["attacks"], key=lambda row: -mean(row["seconds"]))
    ours = [row["us"] is not None for row in rows]
    labels = [_label(row) for row in rows]
    seconds = [mean(row["seconds"]) for row in rows]
    with look():
        figure = new_figure(7.2, 0.9 + 0.34 * len(rows))
        axes = figure.subplots()
        axes.barh(labels, seconds, color=[colour(0 if own else 1) for own in ours], height=0.62)
        axes.set_xscale("log")
        axes.set_xlabel(f"seconds, {record['images']} images, {record['hardware']}; beside the bars: images left")
        axes.grid(axis="y", visible=False)
        for place, row in enumerate(rows):
            left = f" {seconds[place]:.3g} s, {mean(row['robust']):.0f} left"
            axes.text(seconds[place], place, left, va="center", fontsize=8, color=MUTED)
        axes.set_xlim(right=max(seconds) * 4)
        atomic.write(file, png(figure))


def _label(row: dict[str, Any]) -> str:
    how = "" if row["us"] is None else f" ({row['precision']}{', compiled' if row['compiled'] else ''})"
    return f"{row['name']}{how}"
