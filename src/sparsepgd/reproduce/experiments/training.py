"""Tables XIII to XV and XIX: sTRADES with other policies, judged by sAA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsepgd.reproduce.experiments.accuracy import SQUARES, together
from sparsepgd.reproduce.fresh import DATA, Training
from sparsepgd.reproduce.jobs import SAA, Job
from sparsepgd.reproduce.parts import Case, Finished, Number, Outcome, Plan, accuracy, cases
from sparsepgd.reproduce.recipe import Recipe, reasons, table
from sparsepgd.threat import Budget, Patches

PIXELS, PATCH = Budget(k=3), Budget(k=1, pattern=Patches(2))  # of an 8x8 image
BASE: dict[str, Any] = {"gradient": "random", "multi_eps": 2, "tolerance": 10}  # 6 k of an 8x8 image is too much
PATCH_BASE: dict[str, Any] = {"gradient": "random", "tolerance": 10}


@dataclass(frozen=True, eq=False)
class Policies:
    """The rows or columns of one table: settings of a training run."""

    label: str
    budget: Budget
    settings: dict[str, dict[str, Any]]
    by_row: bool = False  # one row a policy and one column an attack; else one column a policy, under sAA


POLICIES = {
    "training-gradient": Policies(
        "ab_adv2",
        PIXELS,
        {word: {**BASE, "gradient": word} for word in ("projected", "unprojected", "alternating", "random")},
    ),
    "training-multi-eps": Policies(
        "ab_adv1", PIXELS, {f"{times}x": {**BASE, "multi_eps": times} for times in (1, 2, 4, 6, 8, 10)}
    ),
    "training-tolerance": Policies("ab_adv3", PIXELS, {str(t): {**BASE, "tolerance": t} for t in (3, 10, 20)}),
    "training-structured": Policies(
        "ab_struct_adv",
        PATCH,
        {"multi-eps": {**PATCH_BASE, "multi_eps": 4}, "multi-size": {**PATCH_BASE, "multi_eps": 1, "multi_size": (4,)}},
        by_row=True,
    ),
}


def training(policies: Policies, *more: str) -> Callable[[Recipe, Job], Plan]:
    """The plan of one of POLICIES: a network for each, and the members of sAA on it."""

    def plan(recipe: Recipe, job: Job) -> Plan:
        columns = SQUARES if policies.by_row else SAA
        subjects = {
            word: Training("digits-resnet", "strades", policies.budget, 0, options).subject(
                job, "sTRADES", f"digits-resnet on {DATA}, {word}"
            )
            for word, options in policies.settings.items()
        }
        parts = [
            case
            for word, subject in subjects.items()
            for case in cases(job, subject, columns, policies.budget, "robust accuracy", word)
        ]
        scale = job.scale
        length = f"epochs: {scale.epochs} on {scale.training_images} digits of 8x8; the paper 100 on CIFAR-10"
        budget = f"budget: {policies.budget} of 8x8 images here"
        why = reasons(recipe, job, [next(iter(subjects.values()))], budget, length, *more)

        def finish(done: Sequence[Finished]) -> Outcome:
            found = {(case.row, case.column): (case, one) for case, one in zip(parts, done, strict=True)}
            numbers = [number for word in subjects for number in _numbers(policies, word, found)]
            return Outcome("robust accuracy, %", numbers, why)

        return Plan(parts, finish)

    return plan


def _numbers(policies: Policies, word: str, found: dict[tuple[str, str], tuple[Case, Finished]]) -> list[Number]:
    value = table(policies.label).value
    members = [found[word, member][1] for member in SAA]
    if not policies.by_row:
        one = together("robust accuracy", "sTRADES", members, value("robust accuracy", "sTRADES", word))
        return [Number(one.section, one.row, word, one.here, one.paper, one.low, one.high)]
    printed = value("robust accuracy", word, "sAA")
    alone = [accuracy(*found[word, column], value("robust accuracy", word, column)) for column in SQUARES]
    return [*alone, together("robust accuracy", word, members, printed)]
