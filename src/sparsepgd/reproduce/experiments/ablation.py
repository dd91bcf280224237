"""Tables IX to XII and XVI to XVIII: sPGD projected without some of its parts, and over its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from sparsepgd import zoo
from sparsepgd.baselines import PGD0
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.reproduce.jobs import Job
from sparsepgd.reproduce.parts import Case, Finished, Outcome, Plan, accuracy
from sparsepgd.reproduce.recipe import Recipe, reasons, table
from sparsepgd.search import SparsePGD
from sparsepgd.search.contract import Attacker
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.spgd import State
from sparsepgd.threat import Budget, Patches, Threat

NEVER = 1_000_000_000  # a tolerance that is not reached
Variant = Callable[[int, Budget], Attacker]  # from the number of steps and the budget


@dataclass(frozen=True, eq=False)
class Decomposed(SparsePGD):
    """delta = p * m without the continuous mask: m itself takes the step and is projected to k groups again."""

    @property
    def name(self) -> str:
        return "spgd-decomposed"

    def update(
        self, threat: Threat, images: Images, state: State, seen: Evaluation, step: Tensor, noise: Noise
    ) -> State:
        assert seen.gradient is not None and self.alpha
        g = seen.gradient.to(state.p.dtype)
        g_m = threat.gather(g * state.p)
        norm = g_m.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        d = torch.where(norm >= self.gamma, g_m / norm, 0)
        p = images.clip(state.p + self.alpha * self.budget.eps * (g * threat.expand(state.v)).sign())
        m = threat.top_k((state.v + self._beta(threat) * d).sigmoid(), images.usable)  # scores must not be negative
        return State(p, m, m, state.n)


def _projected(**settings: Any) -> Variant:
    """sPGD projected, the attack of the ablations, with other settings."""
    return lambda steps, budget: SparsePGD(budget, steps, "projected", **settings)


COMPONENTS: dict[str, Variant] = {
    "PGD0": lambda steps, budget: PGD0(budget, steps, restarts=1, targets=0),
    "+ decomposition": lambda steps, budget: Decomposed(budget, steps, "projected"),
    "+ continuous mask": _projected(tolerance=NEVER),
    "+ redraws": _projected(),
}
STEPS = {text: float(Fraction(text)) for text in ("1/16", "1/8", "1/4", "1/2", "3/4", "1")}
SMALL_STEPS = {text: float(text) for text in ("0.01", "0.0125", "0.05", "0.1", "0.15", "0.25")}


@dataclass(frozen=True, eq=False)
class Scan:
    """One of the tables: variants of the attack."""

    label: str
    budget: Budget
    variants: Mapping[str, Variant]
    budget_of_stand_in: Budget | None = None  # if no image of a shipped model survives the paper's budget


def _scan(label: str, budget: Budget, name: str, values: Mapping[str, float], other: Budget | None = None) -> Scan:
    return Scan(label, budget, {text: _projected(**{name: value}) for text, value in values.items()}, other)


PIXELS, FEW, PATCH = Budget(k=20), Budget(k=5), Budget(k=1, pattern=Patches(5))
TOLERANCES = {str(t): t for t in (1, 3, 5, 7, 10)}
LONG_TOLERANCES = {str(t): t for t in (3, 10, 50, 100, 150)}
SCANS = {
    "components": Scan("ab_pgd", PIXELS, COMPONENTS, FEW),
    "alpha": _scan("ab_alpha", PIXELS, "alpha", STEPS, FEW),
    "beta": _scan("ab_beta", PIXELS, "beta", STEPS, FEW),
    "tolerance": _scan("ab_tol", PIXELS, "tolerance", TOLERANCES, FEW),
    "alpha-structured": _scan("ab_alpha_struct", PATCH, "alpha", SMALL_STEPS),
    "beta-structured": _scan("ab_beta_struct", PATCH, "beta", SMALL_STEPS),
    "tolerance-structured": _scan("ab_tol_struct", PATCH, "tolerance", LONG_TOLERANCES),
}


def ablation(scan: Scan, *more: str) -> Callable[[Recipe, Job], Plan]:
    """The plan of one of SCANS."""

    def plan(recipe: Recipe, job: Job) -> Plan:
        subjects = job.subjects(recipe.roles)
        shipped = not job.models and subjects[0].name in zoo.bundled_names()
        other = scan.budget_of_stand_in if shipped else None
        budget = other or scan.budget
        cases = [
            Case("robust accuracy", subject.role, name, subject, variant(job.scale.steps, budget))
            for subject in subjects
            for name, variant in scan.variants.items()
        ]
        smaller = [f"budget: {budget} here, {scan.budget} in the paper; no image survives the latter here"]
        why = reasons(recipe, job, subjects, *(smaller if other else []), *more)

        def finish(done: Sequence[Finished | None]) -> Outcome:
            value = table(scan.label).value
            numbers = [
                accuracy(case, finished, value("robust accuracy", case.row, case.column))
                for case, finished in zip(cases, done, strict=True)
            ]
            return Outcome("robust accuracy, %", numbers, why)

        return Plan(cases, finish, gaps=True)

    return plan
