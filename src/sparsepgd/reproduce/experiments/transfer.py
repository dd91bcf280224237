"""Table VI: transfer of adversarial images from one network to another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem import Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.reproduce.fresh import DATA, Training
from sparsepgd.reproduce.jobs import ANNEAL, Job, Subject
from sparsepgd.reproduce.parts import Case, Finished, Number, Outcome, Part, Plan, kept
from sparsepgd.reproduce.recipe import Recipe, reasons, table
from sparsepgd.runs.folders import load_adversarial
from sparsepgd.runs.identity import model_digest
from sparsepgd.search import SparsePGD, SparseRS
from sparsepgd.search.contract import Attacker
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Budget

FIRST, SECOND = ("V", "R"), ("V2", "R2")  # each architecture twice: V -> V is a transfer between two such networks
PAIRS = {"V->V": ("V", "V2"), "V->R": ("V", "R"), "R->R": ("R", "R2"), "R->V": ("R", "V")}
KINDS = {"V": "digits-vgg", "R": "digits-resnet"}
SECTIONS = {False: "all steps on the source", True: "early stop on the source"}
PIXELS, DIGITS = Budget(k=20), Budget(k=5)


@dataclass(frozen=True, eq=False)
class Transferred(Part):
    """One attack on one source, and its success on each target."""

    section: str
    column: str  # the attack's name in the paper
    subject: Subject
    attack: Attacker
    targets: dict[str, Subject]  # by pair

    @property
    def decided(self) -> dict[str, str]:
        return {"targets": json.dumps({pair: model_digest(target.model) for pair, target in self.targets.items()})}

    @property
    def title(self) -> str:
        return f"{self.subject.name}, {self.attack.name}, {self.section}"

    def run(self, job: Job, progress: Progress | None) -> dict[str, float]:
        """The success rates in percent, by pair; they are kept, so that the images are not needed again."""

        def compute() -> dict[str, Any]:
            done = Case(self.section, self.column, "", self.subject, self.attack).run(job, progress)
            return {"success": {pair: 100 * success(target, done) for pair, target in self.targets.items()}}

        rates: dict[str, float] = kept(self, job, "transfer", compute)["success"]
        return rates


def transfer(recipe: Recipe, job: Job) -> Plan:
    """Every attack on every source, with and without early stopping; the targets are only evaluated. SparseAnneal
    always stops early, because otherwise it searches for fewer and fewer pixels."""
    subjects, budget = _subjects(recipe, job), PIXELS if job.models else DIGITS
    attacks: dict[str, Any] = {
        "RS": SparseRS(budget, job.scale.queries),
        "sPGD_p": SparsePGD(budget, job.scale.steps, "projected", alpha=0.75, beta=0.75),
        "sPGD_u": SparsePGD(budget, job.scale.steps, "unprojected", alpha=0.75, beta=0.75),
        ANNEAL: job.scale.attack(ANNEAL, budget),
    }
    pairs = _pairs(subjects)
    parts = [
        Transferred(
            SECTIONS[early],
            column,
            subjects[source],
            replace(attack, early_stop=early),
            {pair: subjects[ends[1]] for pair, ends in pairs.items() if ends[0] == source},
        )
        for early in (False, True)
        for source in dict.fromkeys(ends[0] for ends in pairs.values())
        for column, attack in attacks.items()
        if early or column != ANNEAL
    ]

    def finish(done: Sequence[dict[str, float]]) -> Outcome:
        numbers = []
        for part, rates in zip(parts, done, strict=True):
            for pair, share in rates.items():
                theirs = table("trans").value("success rate", part.column, pair)
                printed = theirs if part.section == SECTIONS[False] else None
                numbers.append(Number(part.section, part.column, pair, share, printed))
        return Outcome("success rate on the target, %", numbers, why)

    why = reasons(
        recipe, job, list(subjects.values()), f"budget: {budget} here, {PIXELS} in the paper",
        "denominator here: images that the target classifies correctly when clean; the paper does not say",
        "V->V and R->R are two networks of one architecture, trained with different seeds; the paper does not say",
        "the paper does not say whether it stops early on the source; its numbers are shown beside full-length runs",
    )  # fmt: skip
    return Plan(parts, finish)


def success(target: Subject, done: Finished) -> float:
    """The success rate: of the images that the target classifies correctly without an attack, the share that the
    adversarial images of the source fool."""
    x_adv: Tensor = load_adversarial(done.folder)["x_adv"].to(target.x)
    with borrowed(target.model, target.x.device):
        oracle = Oracle(target.model, Untargeted())
        clean, attacked = (oracle.answers(x, 64).argmax(1) == target.y for x in (target.x, x_adv))
    return float((clean & ~attacked).double().sum() / clean.double().sum().clamp(min=1))


def _pairs(subjects: dict[str, Subject]) -> dict[str, tuple[str, str]]:
    """The pairs of the paper, and all pairs with a model of another name, if source and target have the same images."""
    ends = [role for role in subjects if role not in SECOND]
    more = {f"{a}->{b}": (a, b) for a in ends for b in ends if a != b and not {a, b} <= set(FIRST)}
    possible = {
        pair: (source, target)
        for pair, (source, target) in {**PAIRS, **more}.items()
        if {source, target} <= subjects.keys() and torch.equal(subjects[source].x, subjects[target].x)
    }
    if not possible:
        raise UnsupportedError(
            f"{', '.join(subjects)}: no two models of the same images, so nothing to transfer to; give a second one: "
            "--model NAME=SOURCE"
        )
    return possible


def _subjects(recipe: Recipe, job: Job) -> dict[str, Subject]:
    """The given models, or four small networks that are trained here."""
    if job.models:
        return {subject.role: subject for subject in job.subjects(recipe.roles)}
    trained = {}
    for seed, roles in enumerate((FIRST, SECOND)):
        for role in roles:
            kind = KINDS[role[0]]
            training = Training(kind, "plain", DIGITS, seed, {})
            trained[role] = training.subject(job, role, f"{kind}-{seed} on {DATA}")
    return trained
