"""Several attempts of one attack: other random numbers, and the way to other classes; each on the survivors."""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Integral
from typing import Self

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem import Targeted, Untargeted
from sparsepgd.problem.rows import select
from sparsepgd.search.attack import Attack, Found, Task, check_counts
from sparsepgd.search.ensemble import likeliest_wrong, tell


@dataclass(frozen=True, eq=False)
class Repeated(Attack):
    """A mixin: ``restarts`` times untargeted, then led towards each of the ``targets`` likeliest wrong classes.

    Every wrong answer counts, whatever the lead. With a goal of the caller's there are restarts alone. A class
    names this one before the base that does the search: ``class PGD0(Repeated, Stepwise[State])``.
    """

    _: KW_ONLY
    restarts: int = 1
    targets: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(restarts=self.restarts)
        if not isinstance(self.targets, Integral) or self.targets < 0:
            raise UnsupportedError(f"targets={self.targets}; use 0 for an untargeted attack alone, 9 for the paper's")

    @property
    def attempts(self) -> int:
        return self.restarts * (1 + self.targets)

    def once(self) -> Self:
        """A single untargeted attempt."""
        return dataclasses.replace(self, restarts=1, targets=0)

    def search(self, task: Task) -> Found:
        if self.attempts == 1 or not len(task.waiting.x):
            return super().search(task)  # type: ignore[safe-super]  # that of the base named after this one
        return _cascade(self.once(), task, self.restarts, self.targets)


def _cascade(attack: Attack, task: Task, restarts: int, targets: int) -> Found:
    """Each attempt on the survivors of those before, on all without early_stop. Losses are the untargeted ones."""
    waiting, oracle, size = task.waiting, task.oracle, task.batch_size
    leads: list[Tensor | None] = [None]
    clean = oracle.answers(waiting.x, size)
    if isinstance(oracle.goal, Untargeted):
        leads += likeliest_wrong(clean, waiting.y, targets).unbind(1)
    total = restarts * len(leads)
    zero = torch.zeros_like(waiting.y)
    found, beaten = Found(waiting.x.clone(), waiting.clean_loss.clone(), zero, zero, zero), zero.bool()
    left, share = torch.arange(len(waiting.y), device=waiting.y.device), attack.evaluations * len(waiting.y)
    for attempt in range(total):
        if not len(left):
            break
        report = partial(tell, task.progress, attempt * share, share, total * share, len(waiting.y) - len(left))
        again = dataclasses.replace(task, noise=task.noise.again(attempt), progress=report)
        part = attack.search(_led(again, left, leads[attempt % len(leads)], clean))
        said = oracle.answers(part.x_adv, size)
        loss = oracle.goal.loss(said, waiting.label[left], oracle.loss).to(found.loss)
        fooled = oracle.goal.reached(said, waiting.y[left], waiting.label[left])
        better = torch.where(fooled == beaten[left], loss > found.loss[left], fooled)  # a success beats a failure
        found = _add(found, left, dataclasses.replace(part, loss=loss), better)
        beaten[left] |= fooled
        left = left[~fooled] if attack.early_stop else left
    return found


def _led(task: Task, rows: Tensor, lead: Tensor | None, clean: Tensor) -> Task:
    """The task for some of the images, led towards a class each, or by the goal of the task."""
    waiting, oracle = select(task.waiting, rows), task.oracle
    if lead is not None:
        goal = Targeted(lead[rows], accept="any")
        loss = goal.loss(clean[rows], lead[rows], oracle.loss).to(waiting.clean_loss)
        waiting = dataclasses.replace(waiting, label=lead[rows], clean_loss=loss)
        oracle = dataclasses.replace(oracle, goal=goal)
    waiting = dataclasses.replace(waiting, row=torch.arange(len(rows), device=rows.device))
    return dataclasses.replace(task, oracle=oracle, waiting=waiting)


def _add(found: Found, rows: Tensor, part: Found, better: Tensor) -> Found:
    """What was found so far and by one more attempt: its points where they are better, the sum of the work."""
    into, of = rows[better], better.nonzero()[:, 0]
    return Found(
        found.x_adv.index_copy(0, into, part.x_adv[of]),
        found.loss.index_copy(0, into, part.loss[of]),
        found.steps.index_add(0, rows, part.steps),
        found.forwards.index_add(0, rows, part.forwards),
        found.backwards.index_add(0, rows, part.backwards),
    )
