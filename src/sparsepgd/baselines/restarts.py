"""Several attempts of one attack, with different random numbers or target classes, each on the survivors."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Self

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem import Targeted, Untargeted
from sparsepgd.problem.checks import count
from sparsepgd.problem.oracle import classifier
from sparsepgd.problem.rows import select
from sparsepgd.search.attack import Attack, SearchResult, Task
from sparsepgd.search.ensemble import Stage, cascade, likeliest_wrong, merge
from sparsepgd.search.loop import Progress, better
from sparsepgd.threat import Budget


@dataclass(frozen=True, eq=False)
class Repeated(Attack):
    """A mixin: ``restarts`` untargeted attempts, then one towards each of the ``targets`` most likely wrong classes.

    Any wrong prediction is a success. If the caller sets a goal, there are only restarts. A subclass lists this mixin
    before the base that does the search: ``class PGD0(Repeated, Stepwise[State])``.
    """

    _: KW_ONLY
    restarts: int = count(1)
    targets: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.targets, Integral) or self.targets < 0:
            raise UnsupportedError(
                f"targets={self.targets}; use 0 for an untargeted attack only, 9 for the paper's setting"
            )

    @classmethod
    def at_cost(cls, budget: Budget, passes: int, **settings: Any) -> Self:
        return super().at_cost(budget, passes, restarts=1, targets=0, **settings)

    @property
    def attempts(self) -> int:
        return self.restarts * (1 + self.targets)

    def once(self) -> Self:
        """A single untargeted attempt."""
        return replace(self, restarts=1, targets=0)

    def search(self, task: Task) -> SearchResult:
        if self.attempts == 1 or not len(task.waiting.x):
            return super().search(task)  # type: ignore[safe-super]  # of the base listed after this one
        return _repeated(self.once(), task, self.restarts, self.targets)


def _repeated(attack: Attack, task: Task, restarts: int, targets: int) -> SearchResult:
    """Each attempt is on the survivors of the previous ones, or on all without early_stop. Losses are untargeted."""
    waiting, oracle, size = task.waiting, classifier(task.oracle), task.batch_size
    leads: list[Tensor | None] = [None]
    clean = oracle.answers(waiting.x, size)
    if isinstance(oracle.goal, Untargeted):
        leads += likeliest_wrong(clean, waiting.y, targets).unbind(1)

    def attempt(number: int, rows: Tensor, report: Progress) -> SearchResult:
        again = replace(task, noise=task.noise.again(number), progress=report)
        part = attack.search(_led(again, rows, leads[number % len(leads)], clean))
        said, label = oracle.answers(part.x_adv, size), waiting.label[rows]
        loss = oracle.goal.loss(said, label, oracle.loss).to(waiting.clean_loss)
        return replace(part, loss=loss, fooled=oracle.goal.reached(said, waiting.y[rows], label))

    def left(best: SearchResult) -> Tensor:
        return (~best.fooled | (not attack.early_stop)).nonzero()[:, 0]

    def add(best: SearchResult, rows: Tensor, part: SearchResult, _: str) -> SearchResult:
        return merge(best, rows, part, better(part.fooled, part.loss, best.fooled[rows], best.loss[rows]))

    attempts = [Stage(partial(attempt, i), attack.evaluations) for i in range(restarts * len(leads))]
    return cascade(SearchResult.none(waiting), attempts, left, add, task.progress)


def _led(task: Task, rows: Tensor, lead: Tensor | None, clean: Tensor) -> Task:
    """The task for some of the images, with a target class for each, or with the goal of the task."""
    waiting, oracle = select(task.waiting, rows), classifier(task.oracle)
    if lead is not None:
        goal = Targeted(lead[rows], accept="any")
        loss = goal.loss(clean[rows], lead[rows], oracle.loss).to(waiting.clean_loss)
        waiting = replace(waiting, label=lead[rows], clean_loss=loss)
        oracle = replace(oracle, goal=goal)
    waiting = replace(waiting, row=torch.arange(len(rows), device=rows.device))
    return replace(task, oracle=oracle, waiting=waiting)
