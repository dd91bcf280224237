"""Figure 1: the ratio of Omega_0 to its upper bound Omega'_0, which the attack limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, pstdev
from typing import Any

import torch
from torch import Tensor

from sparsepgd.problem import Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.reproduce.jobs import SIDE, Job, Subject
from sparsepgd.reproduce.parts import Number, Outcome, Part, Plan, kept
from sparsepgd.reproduce.recipe import Recipe, reasons
from sparsepgd.reproduce.show import lines
from sparsepgd.search import SparsePGD
from sparsepgd.search.attack import queue
from sparsepgd.search.loop import Images, Progress
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Budget, Patches
from sparsepgd.threat.norms import group_l0, surrogate_group_l0

FEW, SOME, ALL = (1, 3, 5), (1, 2, 3, 5, 10, 15, 20, 25), tuple(range(1, 26))  # values of k
SIZES = {SIDE: 3, 224: 10}  # side of the image -> side of the patches
BATCH = 25
MEAN, DEVIATION = "mean over the images", "standard deviation"


@dataclass(frozen=True, eq=False)
class Ratios(Part):
    """Omega_0 / Omega'_0 of each image after an attack without early stopping."""

    subject: Subject
    attack: SparsePGD

    @property
    def decided(self) -> dict[str, str]:
        return {"what": "Omega_0 / Omega'_0"}

    @property
    def title(self) -> str:
        return f"{self.subject.name}, Omega_0 at k = {self.attack.budget.k}"

    def run(self, job: Job, progress: Progress | None) -> list[float]:
        starts = range(0, len(self.subject.x), BATCH)

        def compute() -> dict[str, Any]:
            return {"ratios": [value for start in starts for value in self._batch(start, job.seed)]}

        name = f"ratio-k{self.attack.budget.k}"
        ratios: list[float] = kept(self, job, name, compute)["ratios"]
        return ratios

    def _batch(self, start: int, seed: int) -> list[float]:
        x, y = self.subject.x[start : start + BATCH], self.subject.y[start : start + BATCH]
        x_adv, v = last_groups(self.attack, self.subject, x, y, start, seed)
        pattern = self.attack.budget.pattern
        exact, bound = group_l0(x_adv - x, pattern), surrogate_group_l0(x_adv - x, v, pattern)
        return [float(value) for value in (exact / bound.clamp(min=1)).tolist()]


def last_groups(
    attack: SparsePGD, subject: Subject, x: Tensor, y: Tensor, start: int, seed: int
) -> tuple[Tensor, Tensor]:
    """The last point and groups v of sPGD without early stopping; a `Result` does not contain v."""
    threat, noise = attack.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), x.device), Noise(seed)
    with borrowed(subject.model, x.device):
        oracle = Oracle(subject.model, Untargeted())
        index = torch.arange(start, start + len(x), device=x.device)
        images = Images.entering(queue(threat, oracle, x, y, oracle.answers(x, BATCH), index), threat, False)
        state = attack.start(threat, images, noise)
        for step in range(attack.steps):
            seen = oracle.evaluate(attack.propose(threat, images, state), images.y, images.label, gradient=True)
            state = attack.update(threat, images, state, seen, torch.full_like(y, step), noise)
        return attack.propose(threat, images, state), state.v


def ratio(recipe: Recipe, job: Job) -> Plan:
    """At 32x32 with 3x3 patches and at 224x224 with 10x10 ones."""
    sizes = SIZES if not job.models else (SIDE,)
    subjects = [subject for size in sizes for subject in job.subjects(recipe.roles, size)]
    ks = ALL if job.scale.steps >= 10_000 else SOME if job.scale.steps >= 100 else FEW
    parts = [
        Ratios(subject, SparsePGD(Budget(k=k, pattern=Patches(side_of(subject))), job.scale.steps, "projected"))
        for subject in subjects
        for k in ks
    ]

    def finish(done: Sequence[list[float]]) -> Outcome:
        numbers = []
        for i, subject in enumerate(subjects):
            side, height = side_of(subject), subject.x.shape[2]
            name = f"{side}x{side} on {height}x{height}{f', {subject.role}' if len(job.models) > 1 else ''}"
            for k, values in zip(ks, done[i * len(ks) : (i + 1) * len(ks)], strict=True):
                numbers.append(Number(MEAN, name, f"k={k}", mean(values), None))
                numbers.append(Number(DEVIATION, name, f"k={k}", pstdev(values), None))
        return Outcome("Omega_0 / Omega'_0", numbers, why, {"ratio": partial(drawn, numbers)})

    why = reasons(recipe, job, subjects, "the paper: above 0.95 for k < 5 (text of section IV); "
                  "no other number is printed", "here v is the final mask of sPGD projected; the paper's axis is "
                  "Omega'_0, ours k, which is almost equal")  # fmt: skip
    return Plan(parts, finish)


def drawn(numbers: Sequence[Number]) -> Any:
    """The mean over k, with a band of one standard deviation."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {MEAN: {}, DEVIATION: {}}
    for number in numbers:
        point = (float(number.column.removeprefix("k=")), number.here or 0.0)
        points[number.section].setdefault(number.row, []).append(point)
    spread = {name: [half for _, half in values] for name, values in points[DEVIATION].items()}
    return lines({"": points[MEAN]}, ("k, groups chosen", "Omega_0 / Omega'_0"), spread=spread, top=1.0)


def side_of(subject: Subject) -> int:
    """The side of the patches: 3 on small images, 10 on large ones."""
    return SIZES[224] if subject.x.shape[2] >= 100 else SIZES[SIDE]
