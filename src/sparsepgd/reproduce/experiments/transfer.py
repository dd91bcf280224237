"""Table VI: what fools one network, shown to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparsepgd.problem import Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.reproduce.fresh import DATA, Training
from sparsepgd.reproduce.jobs import ANNEAL, Job, Subject
from sparsepgd.reproduce.parts import Case, Finished, Number, Outcome, Plan
from sparsepgd.reproduce.recipe import Recipe, reasons, table
from sparsepgd.runs.folders import load_adversarial
from sparsepgd.search import SparsePGD, SparseRS
from sparsepgd.threat import Budget

FIRST, SECOND = ("V", "R"), ("V2", "R2")  # each architecture twice: V -> V is a transfer between two of a kind
PAIRS = {"V->V": ("V", "V2"), "V->R": ("V", "R"), "R->R": ("R", "R2"), "R->V": ("R", "V")}
KINDS = {"V": "digits-vgg", "R": "digits-resnet"}
SECTIONS = {False: "all steps on the source", True: "early stop on the source"}
PIXELS, DIGITS = Budget(k=20), Budget(k=5)


def transfer(recipe: Recipe, job: Job) -> Plan:
    """Every attack on every source, with and without early stop; the targets only look. SparseAnneal stops early:
    without that it looks for ever fewer pixels."""
    subjects, budget = _subjects(recipe, job), PIXELS if job.models else DIGITS
    attacks: dict[str, Any] = {
        "RS": SparseRS(budget, job.scale.queries),
        "sPGD_p": SparsePGD(budget, job.scale.steps, "projected", alpha=0.75, beta=0.75),
        "sPGD_u": SparsePGD(budget, job.scale.steps, "unprojected", alpha=0.75, beta=0.75),
        ANNEAL: job.scale.attack(ANNEAL, budget),
    }
    pairs = {  # whose source and target are there, for the same images
        pair: (source, target)
        for pair, (source, target) in PAIRS.items()
        if {source, target} <= subjects.keys() and torch.equal(subjects[source].x, subjects[target].x)
    }
    cases = [
        Case(SECTIONS[early], column, source, subjects[source], replace(attack, early_stop=early))
        for early in (False, True)
        for source in dict.fromkeys(ends[0] for ends in pairs.values())
        for column, attack in attacks.items()
        if early or column != ANNEAL
    ]

    def finish(done: Sequence[Finished]) -> Outcome:
        numbers = []
        for case, one in zip(cases, done, strict=True):
            for pair, (source, target) in pairs.items():
                if source == case.column:
                    share = 100 * success(subjects[target], one)
                    theirs = table("trans").value("success rate", case.row, pair)
                    printed = theirs if case.section == SECTIONS[False] else None
                    numbers.append(Number(case.section, case.row, pair, share, printed))
        return Outcome("success rate on the target, %", numbers, words)

    words = reasons(
        recipe, job, list(subjects.values()), f"budget: {budget} here, {PIXELS} in the paper",
        "denominator here: images that the target classifies correctly when clean; the paper does not say",
        "V->V and R->R are two networks of one architecture, trained with different seeds; the paper does not say",
        "the paper does not say whether it stops early on the source; its numbers are shown beside full-length runs",
    )  # fmt: skip
    return Plan(cases, finish)


def success(target: Subject, done: Finished) -> float:
    """The share of the images which the target gets right when clean, and wrong as the source's attack left them."""
    x_adv: Tensor = load_adversarial(done.folder)["x_adv"].to(target.x)
    with borrowed(target.model, target.x.device):
        oracle = Oracle(target.model, Untargeted())
        clean, attacked = (oracle.answers(x, 64).argmax(1) == target.y for x in (target.x, x_adv))
    return float((clean & ~attacked).double().sum() / clean.double().sum().clamp(min=1))


def _subjects(recipe: Recipe, job: Job) -> dict[str, Subject]:
    """Those given, or four small networks that are trained here."""
    if job.models:
        job.chosen(recipe.roles, only=True)
        return {subject.role: subject for subject in job.subjects(recipe.roles)}
    found = {}
    for seed, roles in enumerate((FIRST, SECOND)):
        for role in roles:
            kind = KINDS[role[0]]
            training = Training(kind, "plain", DIGITS, seed, {})
            found[role] = training.subject(job, role, f"{kind}-{seed} on {DATA}")
    return found
