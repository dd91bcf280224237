"""Figures 3 and 4 and Table V: robust accuracy over iterations and over k, iterations needed, run time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

import numpy as np

from sparsepgd import options
from sparsepgd.analysis.curves import Smallest, accuracy_over_k, accuracy_over_steps
from sparsepgd.report.style import colour, dash, figure_style, plain
from sparsepgd.reproduce.experiments.accuracy import L0
from sparsepgd.reproduce.jobs import ANNEAL, Job, Subject, passes
from sparsepgd.reproduce.parts import Case, Finished, Number, Outcome, Plan, cases
from sparsepgd.reproduce.recipe import Recipe, reasons, rivals, table
from sparsepgd.reproduce.show import lines, panels_of
from sparsepgd.runs.records import Record
from sparsepgd.search import SparseRS
from sparsepgd.search.contract import Attacker
from sparsepgd.threat import Budget

PAPERS = 10_000  # iterations
LADDER = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, PAPERS)
ENSEMBLES = ("sAA", "saa+")
WITHIN = ": images fooled within T iterations, %"
KS = (0, 1, 2, 5, 10, 15, 20, 30, 40, 50)


def iterations(recipe: Recipe, job: Job) -> Plan:
    """sPGD and SparseAnneal once, at full length, because shorter runs are the beginning of it. RS for every length,
    because its schedule depends on the length."""
    k = 200 if recipe.size > 32 else 20
    budget, subjects = Budget(k=k), job.subjects(recipe.roles, recipe.size)
    steps, queries = job.scale.steps, job.scale.queries
    attacks: list[tuple[str, int, Attacker]] = [
        (column, steps, job.scale.attack(column, budget)) for column in ("sPGD_p", "sPGD_u", ANNEAL)
    ]
    attacks += [("RS", length, SparseRS(budget, length)) for length in ladder(queries)]
    parts = [
        Case(column, subject.role, str(length), subject, attack)
        for subject in subjects
        for column, length, attack in attacks
    ]

    def finish(done: Sequence[Finished]) -> Outcome:
        numbers = [
            Number(case.section, case.row, f"T={length}", 100 * share, _end(recipe, case, length))
            for case, finished in zip(parts, done, strict=True)
            for length, share in _read(case, finished.record)
        ]
        known = {(number.section, number.row, number.column) for number in numbers}
        ends = {(case.section, case.row, f"T={PAPERS}"): _end(recipe, case, PAPERS) for case in parts}
        numbers += [Number(*place, None, end) for place, end in ends.items() if end is not None and place not in known]
        why = reasons(recipe, job, subjects, "the paper prints the curves without numbers; at T=10000 they end in "
                      "Tables I and II", "anneal is read from one run; a run shorter than one cycle has another "
                      "schedule")  # fmt: skip
        return Outcome("robust accuracy, %", numbers, why, {"iterations": partial(over, "T=", "iterations", numbers)})

    return Plan(parts, finish)


def over(prefix: str, label: str, numbers: Sequence[Number]) -> Any:
    """Robust accuracy over the number in columns such as T=300 (`prefix`: T=): a panel for each model, a line for each
    attack, and the paper's values as marks."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    marks: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for number in numbers:
        across = float(number.column.removeprefix(prefix))
        for into, value in ((panels, number.here), (marks, number.paper)):
            if value is not None:
                into.setdefault(number.row, {}).setdefault(number.section, []).append((across, value))
    return lines(panels, (label, "robust accuracy, %"), log=prefix == "T=", marks=marks)


def ladder(most: int) -> list[int]:
    """The lengths at which robust accuracy is given."""
    return sorted({length for length in LADDER if length < most} | {most})


def _read(case: Case, record: Record) -> list[tuple[int, float]]:
    """(iterations, robust accuracy): one point for RS, many for the others."""
    if case.section == "RS":
        return [(int(case.column), record.robust_accuracy)]
    steps, share = accuracy_over_steps(record)
    return [(length, float(share[steps <= length][-1])) for length in ladder(int(case.column))]


def _end(recipe: Recipe, case: Case, length: int) -> float | None:
    """The number that the paper prints for this length."""
    section = "imagenet100, k=200" if recipe.size > 32 else "k=20"
    label = "more" if recipe.size > 32 else "20"
    return table(label).value(section, case.row, case.section) if length == PAPERS else None


def sparsity(recipe: Recipe, job: Job) -> Plan:
    """The whole curve over k, from the smallest k for each image, found by bisection."""
    budget, subjects = Budget(k=KS[-1]), job.subjects(recipe.roles)
    attacks = {column: job.scale.attack(column, budget) for column in ("sPGD_p", "RS", ANNEAL)}
    searches = budget.k.bit_length()  # of a bisection
    parts = [
        Case(column, subject.role, "k", subject, Smallest(attack, budget), passes(attack) * searches)
        for subject in subjects
        for column, attack in attacks.items()
    ]

    def finish(done: Sequence[Finished]) -> Outcome:
        numbers, tables = [], {10: table("10_15"), 15: table("20"), 20: table("20")}
        for case, finished in zip(parts, done, strict=True):
            share = accuracy_over_k(finished.record, budget.k)[1]
            for k in KS:
                printed = tables[k].value(f"k={k}", case.row, case.section) if k in tables else None
                numbers.append(Number(case.section, case.row, f"k={k}", 100 * float(share[k]), printed))
        why = reasons(recipe, job, subjects, "here the smallest k is searched for each image, so k = 10 is not "
                      "a separate run; the paper's values are those of Tables I and VIII")  # fmt: skip
        figures = {"sparsity": partial(over, "k=", "k, pixels", numbers)}
        return Outcome("robust accuracy, %", numbers, why, figures)

    return Plan(parts, finish)


def histogram(recipe: Recipe, job: Job) -> Plan:
    """Iterations until success, in the runs of Table I at k = 20."""
    subjects = job.subjects(recipe.roles)
    columns = ("sPGD_p", "sPGD_u", "RS", ANNEAL)
    parts = [case for subject in subjects for case in cases(job, subject, columns, Budget(k=20), "k=20")]
    lengths = ladder(max(job.scale.steps, job.scale.queries))

    def finish(done: Sequence[Finished]) -> Outcome:
        numbers = []
        for case, finished in zip(parts, done, strict=True):
            record = finished.record
            taken = [row.steps + 1 for row in record.rows if row.fooled]
            average = mean(taken) if taken else None
            numbers.append(Number("mean iterations of the successes", case.row, case.column, average, None))
            printed = table("20").value("k=20", case.row, case.column)
            success = 100 * (1 - record.robust_accuracy)
            theirs = None if printed is None else 100 - printed
            numbers.append(Number("success rate, %", case.row, case.column, success, theirs))
            # a run of T steps has T evaluations, or T + 1 with the random start of sPGD
            starts = case.attack.evaluations - (job.scale.queries if case.column == "RS" else job.scale.steps)
            for length in lengths:
                share = 100 * sum(count <= length + starts for count in taken) / record.images
                numbers.append(Number(f"{case.row}{WITHIN}", case.column, f"T={length}", share, None))
        why = reasons(recipe, job, subjects, "the paper's mean iterations appear only in its figure; its success "
                      "rates are 100 minus Table I")  # fmt: skip
        return Outcome("", numbers, why, {"histogram": partial(bins, numbers)})

    return Plan(parts, finish)


def bins(numbers: Sequence[Number]) -> Any:
    """How many images each attack fools between two lengths: a panel for each model, an outline for each attack."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for number in numbers:
        model, within, _ = number.section.partition(WITHIN)
        if within:
            point = (float(number.column.removeprefix("T=")), number.here or 0.0)
            panels.setdefault(model, {}).setdefault(number.row, []).append(point)
    with figure_style():
        figure, axes, legend = panels_of(list(panels))
        for axis, series in zip(axes, panels.values(), strict=True):
            for i, (name, points) in enumerate(series.items()):
                lengths, shares = zip(*points, strict=True)
                edges, counts = [1.0, *lengths], np.diff([0.0, *shares])
                axis.stairs(counts, edges, color=colour(i), ls=dash(i), lw=2, label=plain(name))
            axis.set(xscale="log", xlabel="iterations until success", ylabel="images, %", xlim=(1, edges[-1]))
            axis.set_ylim(bottom=0)
        legend()
    return figure


def runtime(recipe: Recipe, job: Job) -> Plan:
    """Wall-clock time of every attack, from its record; for sAA and saa+ that of the cascade."""
    subjects, budget = job.subjects(recipe.roles), Budget(k=20)
    parts = [case for subject in subjects for case in cases(job, subject, (*L0, ANNEAL), budget, "k=20")]
    for subject in subjects:
        for column in ENSEMBLES:
            attack = options.attack(column.lower(), budget, job.scale.steps, queries=job.scale.queries)
            parts.append(Case("k=20", subject.role, column, subject, attack))

    def finish(done: Sequence[Finished]) -> Outcome:
        records = {(case.row, case.column): finished.record for case, finished in zip(parts, done, strict=True)}
        numbers = [number for subject in subjects for number in _times(subject, records)]
        why = reasons(recipe, job, subjects, rivals(job), "hardware: the paper's is a Tesla V100; sAA and saa+ are "
                      "cascades, each member on the survivors of those before")  # fmt: skip
        return Outcome("", numbers, why)

    return Plan(parts, finish)


def _times(subject: Subject, every: dict[tuple[str, str], Record]) -> list[Number]:
    """Minutes for 1,000 images, multiples of sPGD unprojected, passes per image. `every`: by row and column."""
    role, theirs = subject.role, table("runtime")
    records = {column: record for (row, column), record in every.items() if row == role}
    unit_here, numbers = records["sPGD_u"].seconds / 60 * 1000 / records["sPGD_u"].images, []
    for column, record in records.items():
        printed, unit = (theirs.value("minutes", role, name) for name in (column, "sPGD_u"))
        minutes = record.seconds / 60 * 1000 / record.images
        numbers.append(Number("minutes for 1,000 images", role, column, minutes, printed))
        ratio = None if printed is None or unit is None else printed / unit
        numbers.append(Number("times the time of sPGD_u", role, column, minutes / unit_here, ratio))
        calls = mean(row.forwards + row.backwards for row in record.rows)
        numbers.append(Number("passes per image", role, column, calls, None))
    return numbers
