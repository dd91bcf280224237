"""Figures 5 to 7: adversarial images of every kind, next to the clean ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from sparsepgd import options
from sparsepgd.report.pictures import boxes, clean_picture
from sparsepgd.report.style import figure_style, new_figure, plain
from sparsepgd.reproduce.jobs import Job, Subject
from sparsepgd.reproduce.parts import Case, Finished, Number, Outcome, Plan
from sparsepgd.reproduce.recipe import Recipe, reasons
from sparsepgd.runs.folders import load_adversarial
from sparsepgd.search import SparsePGD
from sparsepgd.sources.data import class_name
from sparsepgd.threat import Budget

HIGHLIGHT = "#d00000"  # the red squares of the paper
COLUMNS = 4
LARGE = {  # the paper's budgets (k, pattern, eps), for images of 224x224
    "200 pixels": (200, "pixel", "1"),
    "100 pixels": (100, "pixel", "1"),
    "1 row": (1, "row", "1"),
    "1 column": (1, "column", "1"),
    "star 25x25": (1, "star:25", "1"),
    "heart 20x20": (1, "heart:20", "1"),
    "patch 14x14": (1, "patch:14", "1"),
    "2 patches 10x10": (2, "patch:10", "1"),
    "A 60x60, eps 32/255": (1, "letter:A:60", "32/255"),
    "circle 60x60, eps 64/255": (1, "circle:60", "64/255"),
}
SMALL = {  # the same kinds for images of 32x32
    "20 pixels": (20, "pixel", "1"),
    "10 pixels": (10, "pixel", "1"),
    "1 row": (1, "row", "1"),
    "1 column": (1, "column", "1"),
    "star 11x11": (1, "star:11", "1"),
    "heart 9x9": (1, "heart:9", "1"),
    "patch 5x5": (1, "patch:5", "1"),
    "2 patches 3x3": (2, "patch:3", "1"),
    "A 18x18, eps 32/255": (1, "letter:A:18", "32/255"),
    "circle 18x18, eps 64/255": (1, "circle:18", "64/255"),
}


@dataclass(frozen=True, eq=False)
class Shot:
    """One image that was fooled."""

    title: str
    classes: str  # before and after
    x: Tensor  # (C, H, W)
    x_adv: Tensor
    marked: bool  # faint changes get a red box


def panels(recipe: Recipe, job: Job) -> Plan:
    """One attack for each kind, shown on the first fooled image that is not shown yet."""
    subjects = job.subjects(recipe.roles)
    large = subjects[0].x.shape[2] >= 100
    cases = [
        Case(
            "share of correctly classified images that are fooled",
            subject.role,
            kind,
            subject,
            _attack(Budget(k, options.pattern(pattern), options.eps(eps)), job),
        )
        for subject in subjects
        for kind, (k, pattern, eps) in (LARGE if large else SMALL).items()
    ]

    def finish(done: Sequence[Finished]) -> Outcome:
        numbers, figures = [], {}
        for subject in subjects:
            mine = [pair for pair in zip(cases, done, strict=True) if pair[0].subject is subject]
            numbers += [Number(case.section, case.row, case.column, _fooled(finished), None) for case, finished in mine]
            if shots := _shots(mine, subject):
                figures["panels-" + re.sub(r"[^\w.+-]+", "-", subject.role)] = partial(draw, shots)
        return Outcome("share of correctly classified images that are fooled, %", numbers, why, figures)

    why = reasons(recipe, job, subjects, "the paper shows pictures of ImageNet-100 and no numbers here")
    if not large:
        why = (*why, "shapes are scaled to images of 32x32; with 224x224 ones (--model, --data) they are the paper's")
    return Plan(cases, finish)


def _attack(budget: Budget, job: Job) -> SparsePGD:
    return SparsePGD(budget, job.scale.steps, "projected" if budget.pattern.structured else "unprojected")


def _fooled(finished: Finished) -> float:
    rows = finished.record.rows
    return 100 * sum(row.fooled for row in rows) / max(sum(row.clean_correct for row in rows), 1)


def _shots(pairs: Sequence[tuple[Case, Finished]], subject: Subject) -> list[Shot]:
    shown: set[int] = set()
    shots = []
    for case, finished in pairs:
        rows = sorted((row for row in finished.record.rows if row.fooled), key=lambda row: row.index in shown)
        if rows:
            row = rows[0]
            shown.add(row.index)
            x_adv = load_adversarial(finished.folder)["x_adv"][row.index]
            before, after = (class_name(subject.classes, number) for number in (row.clean_prediction, row.prediction))
            faint = case.attack.budget.eps < 1
            shots.append(Shot(case.column, f"{before} → {after}", subject.x[row.index].cpu(), x_adv, faint))
    return shots


def draw(shots: Sequence[Shot]) -> Any:
    """Clean above, adversarial below, in rows of four."""
    from matplotlib.patches import Rectangle

    bands = -(-len(shots) // COLUMNS)
    with figure_style():
        figure = new_figure(2.0 * COLUMNS, 4.3 * bands)
        axes = figure.subplots(2 * bands, COLUMNS, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for i, shot in enumerate(shots):
            band, column = divmod(i, COLUMNS)
            above, below = axes[2 * band][column], axes[2 * band + 1][column]
            above.imshow(clean_picture(shot.x), interpolation="nearest")
            above.set_title(plain(shot.title), fontsize=8)
            below.imshow(clean_picture(shot.x_adv), interpolation="nearest")
            below.set_title(plain(shot.classes), fontsize=8, fontweight="normal")
            for left, top, width, height in boxes((shot.x != shot.x_adv).any(0)) if shot.marked else ():
                outline: Any = {"fill": False, "edgecolor": HIGHLIGHT, "lw": 1.2}
                below.add_patch(Rectangle((left - 0.5, top - 0.5), width, height, **outline))
    return figure
