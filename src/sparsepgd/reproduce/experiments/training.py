"""Tables XIII to XV and XIX: sTRADES with other policies, evaluated by sAA and saa+."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsepgd.errors import UnsupportedError
from sparsepgd.reproduce.experiments.accuracy import PLUS, SQUARES, together
from sparsepgd.reproduce.fresh import DATA, Training
from sparsepgd.reproduce.jobs import ANNEAL, OURS, SAA, SHIPPED, Job, Subject
from sparsepgd.reproduce.parts import Case, Finished, Number, Outcome, Plan, accuracy, cases
from sparsepgd.reproduce.recipe import Recipe, reasons, table
from sparsepgd.threat import Budget, Patches


@dataclass(frozen=True, eq=False)
class Policies:
    """The rows or columns of one table: settings of a training run."""

    label: str
    budget: Budget
    settings: dict[str, dict[str, Any]]
    by_row: bool = False  # policies are rows and attacks columns; else policies are columns and ensembles rows


def _policies(pixels: Budget, times: int, patch: Budget, patch_times: int, side: int) -> dict[str, Policies]:
    """`times`: multi-eps. Multi-size uses patches of `side` instead of `patch_times` as many, with about equal area."""
    base: dict[str, Any] = {"gradient": "random", "multi_eps": times, "tolerance": 10}
    gradients = ("projected", "unprojected", "alternating", "random")
    eps = {f"{factor}x": {**base, "multi_eps": factor} for factor in (1, 2, 4, 6, 8, 10)}
    patches = {
        "multi-eps": {**base, "multi_eps": patch_times},
        "multi-size": {**base, "multi_eps": 1, "multi_size": (side,)},
    }
    return {
        "training-gradient": Policies("ab_adv2", pixels, {name: {**base, "gradient": name} for name in gradients}),
        "training-multi-eps": Policies("ab_adv1", pixels, eps),
        "training-tolerance": Policies("ab_adv3", pixels, {str(t): {**base, "tolerance": t} for t in (3, 10, 20)}),
        "training-structured": Policies("ab_struct_adv", patch, patches, by_row=True),
    }


POLICIES = _policies(Budget(k=20), 6, Budget(k=2, pattern=Patches(3)), 6, 7)  # those of the paper
DIGITS = _policies(Budget(k=3), 2, Budget(k=1, pattern=Patches(2)), 4, 4)  # of 8x8 images; 6 k would be too much


def training(name: str) -> Callable[[Recipe, Job], Plan]:
    """The plan of one of POLICIES: a network for each policy, trained here unless given, and our attacks on it."""

    def plan(recipe: Recipe, job: Job) -> Plan:
        on_digits = job.data == SHIPPED and not job.models  # in seconds
        if on_digits and job.scale.name == "paper":
            raise UnsupportedError(
                "the paper trains on CIFAR-10; give --data cifar10, or use --scale small to train on 8x8 digits"
            )
        policies = (DIGITS if on_digits else POLICIES)[name]
        columns = (*(SQUARES if policies.by_row else SAA), ANNEAL)
        subjects = _subjects(policies, job, DATA if on_digits else job.data)
        parts = [
            case
            for policy, subject in subjects.items()
            for case in cases(job, subject, columns, policies.budget, "robust accuracy", policy)
        ]
        length = f"epochs: {job.scale.epochs} on {job.scale.training_images or 'all'} images; the paper 100 on CIFAR-10"
        smaller = f"budget: {policies.budget} of 8x8 images here, multi-eps 2x where it is 6x in the paper"
        more = [*([smaller] if on_digits else []), *([] if job.models else [length]), PLUS]
        why = reasons(recipe, job, list(subjects.values())[: None if job.models else 1], *more)

        def finish(done: Sequence[Finished]) -> Outcome:
            results = {(case.row, case.column): (case, finished) for case, finished in zip(parts, done, strict=True)}
            numbers = [number for policy in subjects for number in _numbers(policies, policy, results)]
            return Outcome("robust accuracy, %", numbers, why)

        return Plan(parts, finish)

    return plan


def _subjects(policies: Policies, job: Job, data: str) -> dict[str, Subject]:
    """By policy: the given models, or networks that are trained here."""
    if job.models:
        return {subject.role: subject for subject in job.subjects({})}
    network = "digits-resnet" if data == DATA else "preact_resnet18"
    if data != DATA and job.scale.name != "paper":
        network = "small_preact_resnet"
    return {
        policy: Training(network, "strades", policies.budget, 0, settings, data).subject(
            job, "sTRADES", f"{network} on {data}, {policy}"
        )
        for policy, settings in policies.settings.items()
    }


def _numbers(policies: Policies, policy: str, results: dict[tuple[str, str], tuple[Case, Finished]]) -> list[Number]:
    """A row for the policy, or its column in rows of the two ensembles."""
    value, section = table(policies.label).value, "robust accuracy"
    saa, plus = ([results[policy, member][1] for member in members] for members in (SAA, OURS))
    if not policies.by_row:
        return [
            together(section, "sTRADES", policy, saa, value(section, "sTRADES", policy)),
            together(section, "sTRADES, saa+", policy, plus, None),
        ]
    return [
        *(accuracy(*results[policy, column], value(section, policy, column)) for column in SQUARES),
        together(section, policy, "sAA", saa, value(section, policy, "sAA")),
        accuracy(*results[policy, ANNEAL], None),
        together(section, policy, "saa+", plus, None),
    ]
