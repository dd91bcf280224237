"""Tables of robust accuracy: models by attacks, for several budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparsepgd import options
from sparsepgd.analysis.summary import wilson
from sparsepgd.report.entries import unbroken
from sparsepgd.reproduce.jobs import ANNEAL, OURS, SAA, Job, Subject
from sparsepgd.reproduce.parts import Case, Finished, Number, Outcome, Plan, accuracy, cases
from sparsepgd.reproduce.recipe import Recipe, reasons, rivals, table
from sparsepgd.threat import Budget

PLUS = (
    "anneal (SparseAnneal) and saa+ are not in the paper; saa+ here: what neither SparseAnneal nor a member of sAA "
    "breaks, all at full length"
)
LEVELS = ("8/255", "16/255", "32/255", "64/255")
L0 = ("CS", "RS", "SF", "PGD0", "SAIF", "sPGD_p", "sPGD_u")
LARGE = ("RS", "SAIF", "sPGD_p", "sPGD_u")
LINES, SQUARES = ("RS", "sPGD_p", "sPGD_u"), ("RS", "LOAP", "sPGD_p", "sPGD_u")


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a table: one budget under some attacks."""

    label: str  # of the paper's table
    section: str
    k: int
    columns: tuple[str, ...]
    pattern: str = "pixel"  # as on the command line
    eps: str = "1"
    row: str | None = None  # None: a row for each model

    @property
    def budget(self) -> Budget:
        return Budget(self.k, options.pattern(self.pattern), options.eps(self.eps))

    def has(self, subject: Subject) -> bool:
        """Whether the model belongs here: models trained for rows are not attacked with patches, for example."""
        cells, data = table(self.label).cells, self.section.partition(",")[0]
        known = any(subject.role in rows for section, rows in cells.items() if section.partition(",")[0] == data)
        return self.row is not None or not known or subject.role in cells[self.section]


PIXELS = [Block(label, f"k={k}", k, L0) for label, k in (("10_15", 10), ("20", 15), ("20", 20))]
CIFAR100 = [Block("10_15", "cifar100, k=10", 10, L0)]
IMAGENET = [Block("more", "imagenet100, k=200", 200, LARGE)]
GTSRB = [Block("more", "gtsrb, k=600", 600, LARGE)]
STRUCTURED = [
    Block("struct", "cifar10, 1 row", 1, LINES, "row"),
    Block("struct", "cifar10, 2 patches 3x3", 2, SQUARES, "patch:3"),
    Block("struct", "cifar10, 1 patch 5x5", 1, SQUARES, "patch:5"),
]
STRUCTURED_LARGE = [
    Block("struct", "imagenet100, 1 row", 1, LINES, "row"),
    Block("struct", "imagenet100, 2 patches 10x10", 2, SQUARES, "patch:10"),
    Block("struct", "imagenet100, 1 patch 14x14", 1, SQUARES, "patch:14"),
]
DRAWINGS = {"circle 18x18, 208 pixels": "circle:18", "letter A 60x60, 1747 pixels": "letter:A:60"}
WATERMARKS = [
    Block("wm", section, 1, LINES, pattern, eps, row=f"eps={eps}")
    for section, pattern in DRAWINGS.items()
    for eps in LEVELS
]


def grid(blocks: Sequence[Block], *more: str) -> Callable[[Recipe, Job], Plan]:
    """The plan of a table that consists of these blocks; `more`: further reasons."""

    def plan(recipe: Recipe, job: Job) -> Plan:
        subjects = job.subjects(recipe.roles, recipe.size)
        pairs = [(block, subject) for block in blocks for subject in subjects if block.has(subject)]
        parts = [
            case
            for block, subject in pairs
            for case in cases(job, subject, (*block.columns, ANNEAL), block.budget, block.section, block.row)
        ]
        why = reasons(recipe, job, subjects, rivals(job), PLUS, *more)

        def finish(done: Sequence[Any]) -> Outcome:
            results = list(zip(parts, done, strict=True))
            numbers = [number for block, subject in pairs for number in _numbers(block, subject, results)]
            return Outcome("robust accuracy, %", numbers, why)

        return Plan(parts, finish, gaps=True)

    return plan


def _numbers(block: Block, subject: Subject, results: Sequence[tuple[Case, Finished | None]]) -> Iterator[Number]:
    """Clean accuracy, one number per case, and the ensembles: the images that no member breaks, as in a cascade."""
    value, row = table(block.label).value, block.row or subject.role
    mine = {
        case.column: (case, done)
        for case, done in results
        if (case.section, case.row, case.subject.role) == (block.section, row, subject.role)
    }
    whole = [done for case, done in mine.values() if done is not None and case.subject is subject]
    finished = next(iter(whole), None)
    yield _clean(block.section, row, finished, value(block.section, row, "clean"))
    for column in block.columns:
        yield accuracy(*mine[column], value(block.section, row, column))
    done = {member: mine[member][1] for member in OURS}
    yield together(block.section, row, "sAA", [done[member] for member in SAA], value(block.section, row, "sAA"))
    yield accuracy(*mine[ANNEAL], None)
    yield together(block.section, row, "saa+", list(done.values()), None)


def _clean(section: str, row: str, done: Finished | None, paper: float | None) -> Number:
    if done is None:
        return Number(section, row, "clean", None, paper)
    low, high = (100 * share for share in done.record.clean_interval)
    return Number(section, row, "clean", 100 * done.record.clean_accuracy, paper, low, high)


def together(section: str, row: str, column: str, done: Sequence[Finished | None], paper: float | None) -> Number:
    """An ensemble from runs of its members under the same seed."""
    records = [finished.record for finished in done if finished is not None]
    if len(records) < len(done):
        return Number(section, row, column, None, paper)
    left, images = unbroken(records), records[0].images
    low, high = wilson(left, images)
    return Number(section, row, column, 100 * left / images, paper, 100 * low, 100 * high)
