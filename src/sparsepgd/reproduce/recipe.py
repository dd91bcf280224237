"""A recipe: the parts of a table of the paper, its printed numbers, and the reasons why ours may differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from sparsepgd.analysis.summary import wilson
from sparsepgd.errors import SourceError, counted
from sparsepgd.reproduce.jobs import SIDE, Job, Subject
from sparsepgd.reproduce.parts import Plan

VANILLA, STRADES = "zoo:subject-plain", "zoo:subject-strades"
OWN_ROWS = {  # rows that are not in the paper
    "Fast-LS-l0": "zoo:subject-fast-ls",
    "sTRADES+S&N": "zoo:subject-sn",
    "SparseAnneal": "zoo:subject-anneal",
    "SparseAnneal+RS": "zoo:subject-search",  # and Cluster-RS
    "SparseAnneal-all": "zoo:subject-anneal-union",  # pixels, rows and patches
}
OWN_STRUCTURED_ROWS = {
    "SparseAnneal-row": "zoo:subject-anneal-row",
    "SparseAnneal-p5x5": "zoo:subject-anneal-patch",
}


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    label: str  # in the paper's source
    number: str  # roman
    title: str
    images: str  # on which images, at which length
    networks: dict[str, str]  # by model
    cells: dict[str, dict[str, dict[str, float]]]  # by section, row and column

    def value(self, section: str, row: str, column: str) -> float | None:
        """The paper's number, or None if there is none."""
        return self.cells.get(section, {}).get(row, {}).get(column)


@cache
def facts() -> dict[str, Any]:
    """The content of paper.json."""
    content: dict[str, Any] = json.loads(files("sparsepgd.reproduce").joinpath("paper.json").read_bytes())
    return content


def table(label: str) -> Table:
    known = facts()["tables"]
    if label not in known:
        raise SourceError(f"the paper has no table {label!r}; known are {', '.join(known)}")
    return Table(label, **known[label])


@dataclass(frozen=True, eq=False)
class Recipe:
    """One table or figure of the paper."""

    name: str
    about: str
    plan: Callable[[Recipe, Job], Plan]
    labels: tuple[str, ...] = ()  # of the paper's tables
    figures: tuple[str, ...] = ()  # of the paper's figures
    roles: dict[str, str | None] = field(default_factory=dict)  # the paper's model -> its substitute, if any
    size: int = SIDE  # of the images
    images: int | None = None  # number in the paper, if not 10,000
    smoke: dict[str, Any] = field(default_factory=dict)  # smaller values for the scale smoke, if steps are slow

    @property
    def source(self) -> str:
        """Its place in the paper."""
        named = [f"Table {table(label).number}" for label in self.labels] + list(self.figures)
        return ", ".join(named)

    def prepare(self, job: Job) -> tuple[Job, Plan]:
        """The job at the scale of this recipe, and its plan."""
        if job.scale.name == "smoke":
            job = replace(job, scale=replace(job.scale, **self.smoke))
        if job.scale.name == "paper" and self.images is not None:
            job = replace(job, scale=replace(job.scale, images=self.images))
        return job, self.plan(self, job)


def reasons(recipe: Recipe, job: Job, subjects: Sequence[Subject], *more: str) -> tuple[str, ...]:
    """Reasons why the numbers may differ: models, images, lengths, and others of the recipe."""
    why = [*_models(recipe, subjects), *_images(recipe, subjects)]
    if job.scale.steps < 10_000:
        why.append(f"here sPGD has {job.scale.steps} steps and RS {job.scale.queries} queries; the paper 10,000")
    if factor := job.enlarged(recipe.size):
        side = recipe.size
        why.append(
            f"images of {side}x{side} are the bundled ones enlarged {factor} times, and the model averages over "
            f"{factor}x{factor}: one pixel here counts 1/{factor**2} of a pixel of the model"
        )
    return (*why, *more)


def rivals(job: Job) -> str:
    """A reason: the length of the other attacks."""
    few = "".join(f"; {column}: {counted(images, 'images')}" for column, images in job.few if images < job.count)
    if job.scale.passes is None:
        return f"the other attacks have the paper's settings{few}"
    return f"the other attacks have about {job.scale.passes} passes per image, not the paper's settings{few}"


def _models(recipe: Recipe, subjects: Sequence[Subject]) -> Iterator[str]:
    networks = {role: net for label in recipe.labels for role, net in table(label).networks.items()}
    for subject in subjects:
        theirs = f"{subject.role} ({networks[subject.role]})" if networks.get(subject.role) else subject.role
        stand_in = ", a substitute from this package" if subject.stand_in else ""
        own = subject.role in OWN_ROWS or subject.role in OWN_STRUCTURED_ROWS
        known = (subject.stand_in or subject.role in recipe.roles) and not own
        paper = f"the paper's is {theirs}" if known else f"the paper has no {theirs} here"
        yield f"model: {subject.name}{stand_in}; {paper}"


def _images(recipe: Recipe, subjects: Sequence[Subject]) -> Iterator[str]:
    sets = {(len(subject.x), subject.data): None for subject in subjects}
    theirs = "; ".join(dict.fromkeys(table(label).images for label in recipe.labels)) or "see its figure"
    for count, data in sets:
        low, high = wilson(count // 2, count)
        yield (
            f"images: {count} of {data}, so a share near 50 % is accurate to +-{100 * (high - low) / 2:.0f} points; "
            f"the paper: {theirs}"
        )
