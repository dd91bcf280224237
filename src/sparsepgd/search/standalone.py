"""Attacks with a loop of their own, batch by batch. Every query is counted outside the attack."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.engine import in_parts
from sparsepgd.problem.goals import Goal, Targeted, Untargeted
from sparsepgd.problem.oracle import Evaluation, Evaluator, Oracle, classifier, gradient_of
from sparsepgd.problem.precision import full_precision
from sparsepgd.problem.rows import join, select
from sparsepgd.search.attack import Attack, SearchResult, Task
from sparsepgd.search.loop import Images, better
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Threat

T = TypeVar("T")
TRIALS = 4  # points per image in one forward pass if a batch is kept whole


@dataclass(eq=False)
class Queries:
    """The model for such an attack. Every query is counted for the image that its point belongs to.

    `rows` (N,) are rows of the batch; an image may occur several times, or not at all.
    """

    oracle: Evaluator
    images: Images
    size: int  # points of one forward pass; halved if memory is too small
    forwards: Tensor  # (B,) int64
    backwards: Tensor  # (B,) int64
    notify: Callable[[int], None] | None = None  # called with the number of points of each query

    @property
    def classifier(self) -> Oracle:
        return classifier(self.oracle)

    def evaluate(self, x: Tensor, rows: Tensor, gradient: bool = False) -> Evaluation:
        """Loss, success and, with `gradient`, the gradient of the loss at the points x (N, C, H, W)."""
        self._count(rows, 1, int(gradient))
        return self.evaluate_uncounted(x, rows, gradient)

    def evaluate_uncounted(self, x: Tensor, rows: Tensor, gradient: bool = False) -> Evaluation:
        """The same for points that are not part of the search."""
        y, label = self.images.y[rows], self.images.label[rows]
        return join(*self._in_parts(lambda i: self.oracle.evaluate(x[i], y[i], label[i], gradient), len(x)))

    def logits(self, x: Tensor, rows: Tensor) -> Tensor:
        """(N, classes)."""
        self._count(rows, 1, 0)
        with torch.no_grad():
            return torch.cat(self._in_parts(lambda i: self.classifier.logits(x[i]), len(x)))

    def judge(self, logits: Tensor, rows: Tensor) -> Evaluation:
        """The evaluation of known logits (N, classes)."""
        oracle, label = self.classifier, self.images.label[rows]
        return oracle.judged(logits, oracle.goal.loss(logits, label, oracle.loss), self.images.y[rows], label)

    def slopes(self, x: Tensor, rows: Tensor, values: Callable[[Tensor, slice], Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (N, classes) and the gradients (N, M, C, H, W) of M functions of them, 0 where they are not finite.

        `values` takes logits (n, classes) and their rows of x, and returns (n, M). One forward pass, M backward passes.
        """

        def part(place: slice) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                point, logits = self.classifier.traced(x[place])
                functions = values(logits, place).unbind(1)
                last = len(functions) - 1
                each = [gradient_of(f.sum(), point, keep=i < last) for i, f in enumerate(functions)]
            return logits.detach(), torch.nan_to_num(torch.stack(each, 1), 0.0, 0.0, 0.0)

        logits, slopes = (torch.cat(parts) for parts in zip(*self._in_parts(part, len(x)), strict=True))
        self._count(rows, 1, slopes.shape[1])
        return logits, slopes

    def _in_parts(self, work: Callable[[slice], T], count: int) -> list[T]:
        parts, self.size = in_parts(work, max(count, 1), self.size)  # no points are one empty part
        return parts

    def _count(self, rows: Tensor, forwards: int, backwards: int) -> None:
        once = torch.ones_like(rows)
        self.forwards.index_add_(0, rows, once * forwards)
        self.backwards.index_add_(0, rows, once * backwards)
        if self.notify is not None:
            self.notify(len(rows))


@dataclass(eq=False)
class Claims:
    """The best point of each image so far, as compared by `better`."""

    x_adv: Tensor  # (B, C, H, W)
    worth: Tensor  # (B,), the loss, or what the attack uses instead, such as minus the pixels of a success
    fooled: Tensor  # (B,) bool

    @classmethod
    def none(cls, images: Images) -> Claims:
        return cls(images.x.clone(), images.clean_loss.clone(), torch.zeros_like(images.y, dtype=torch.bool))

    def offer(self, x: Tensor, rows: Tensor, seen: Evaluation, worth: Tensor | None = None) -> None:
        """Points x (N, C, H, W) within the budget. Of equally good points of an image, the first is taken."""
        rank = (seen.loss if worth is None else worth).to(self.worth.dtype)
        hit = torch.zeros_like(self.fooled, dtype=torch.uint8)
        hit = hit.scatter_reduce(0, rows, seen.fooled.to(torch.uint8), "amax").bool()
        rank = torch.where(seen.fooled == hit[rows], rank, -torch.inf)
        most = torch.full_like(self.worth, -torch.inf).scatter_reduce(0, rows, rank, "amax")
        place = torch.where(rank == most[rows], torch.arange(len(rows), device=rows.device), len(rows))
        first = torch.full_like(hit, len(rows), dtype=torch.int64).scatter_reduce(0, rows, place, "amin")
        wins = better(hit, most, self.fooled, self.worth) & (first < len(rows))
        self.x_adv = torch.where(wins[:, None, None, None], x[first.clamp(max=len(rows) - 1)], self.x_adv)
        self.worth = torch.where(wins, most, self.worth)
        self.fooled = self.fooled | (wins & hit)


@dataclass(frozen=True, eq=False)
class Standalone(Attack):
    """An attack that is defined by `attack_batch`, and runs in full precision.

    `steps` of the result is the number of evaluated points. By default the first success within k ends the search. With
    early_stop=False, an attack that searches for the smallest perturbation keeps the smallest success within k; with k
    as large as the image, `result.groups` is its own result.
    """

    goals: ClassVar[tuple[type[Goal], ...]] = (Untargeted, Targeted)

    @abstractmethod
    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """The best points (B, C, H, W) found within the budget. Fooled images should not be queried further."""

    def remaining(self, claims: Claims) -> Tensor:
        """The rows (n,) for which the search continues."""
        return (~claims.fooled | (not self.early_stop)).nonzero()[:, 0]

    def search(self, task: Task) -> SearchResult:
        """Points and loss of all images. The points are evaluated once more for the loss, which is not counted."""
        self._check_goal(task.oracle)
        waiting, fooled = task.waiting, 0

        def batch(place: slice) -> SearchResult:
            nonlocal fooled
            images = Images.entering(select(waiting, place), task.threat, self.quantize)
            zero, every = torch.zeros_like(images.y), torch.arange(len(images.y), device=images.y.device)
            notify = self._progress(task, place.start, len(every), fooled)
            queries = Queries(task.oracle, images, task.batch_size, zero, zero.clone(), notify)
            with full_precision():
                x_adv = self.attack_batch(queries, task.threat, images, task.noise)
                seen = queries.evaluate_uncounted(x_adv, every)
            fooled += int(seen.fooled.sum())
            self._progress(task, place.stop, 0, fooled)(0)
            counted = (queries.forwards, queries.forwards, queries.backwards)
            return SearchResult(*(tensor.to(waiting.x.device) for tensor in (x_adv, seen.loss, seen.fooled, *counted)))

        parts, _ = in_parts(batch, len(waiting.x), task.batch_size)
        return join(*parts) if parts else SearchResult.none(waiting)

    def perturb_batch(self, oracle: Oracle, threat: Threat, images: Images, noise: Noise) -> Tensor:
        self._check_goal(oracle)
        zero = torch.zeros_like(images.y)
        queries = Queries(oracle, images, TRIALS * len(images.x), zero, zero.clone())
        return self.attack_batch(queries, threat, images, noise)

    def _check_goal(self, oracle: Evaluator) -> None:
        if isinstance(oracle, Oracle) and not isinstance(oracle.goal, self.goals):
            able, goal = " or ".join(f"{goal.__name__}(...)" for goal in self.goals), type(oracle.goal).__name__
            raise UnsupportedError(
                f"{type(self).__name__} does not support the goal {goal}; use {able}, or SparsePGD(budget)"
            )

    def _progress(self, task: Task, before: int, active: int, fooled: int) -> Callable[[int], None]:
        """A function that adds up the queries of a batch, without synchronisation with the device."""
        queries = 0

        def notify(points: int) -> None:
            nonlocal queries
            queries = min(queries + points, active * self.evaluations)
            if task.progress is not None:
                task.progress(before * self.evaluations + queries, len(task.waiting.x) * self.evaluations, fooled)

        return notify


def keep_best(attack: Attack, threat: Threat, images: Images, x: Tensor, score: Tensor) -> Tensor:
    """The points x (B, C, H, W) on the k groups of the largest score (B, *grid), the clean images elsewhere."""
    return images.render(x - images.x, threat.top_k(score.float(), images.usable), attack.quantize)


def fewest(threat: Threat, images: Images, x: Tensor, seen: Evaluation) -> Tensor:
    """(B,), the worth of points if few changes are better: minus the pixels of a success, the loss of a failure."""
    return torch.where(seen.fooled, -changed(threat, images, x).to(seen.loss), seen.loss)


def changed(threat: Threat, images: Images, x: Tensor) -> Tensor:
    """(B,), the number of pixels, or features, in which x differs from the clean images."""
    return (threat.gather((x != images.x).float()) > 0).flatten(1).sum(1)
