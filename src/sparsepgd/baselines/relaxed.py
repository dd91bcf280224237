"""Attacks that search outside the budget: gradients are taken at a relaxed point, successes at its projection."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.checks import count
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import select
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.standalone import Claims, Queries, Standalone
from sparsepgd.threat import Threat

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Relaxed(Standalone, Generic[S]):
    """An attack consists of a start, a point, its projection and an update; S is a dataclass of tensors.

    A step costs one forward and one backward pass for the gradient at the point. If the projection differs from the
    point and may succeed, it costs one more forward pass. Only projections are recorded.
    """

    passes_per_step: ClassVar[int] = 3

    steps: int = count(300)

    @property
    def evaluations(self) -> int:
        return 2 * self.steps  # a gradient and an evaluation each

    @abstractmethod
    def start(self, threat: Threat, images: Images, noise: Noise) -> S:
        """The state before the first step."""

    @abstractmethod
    def point(self, threat: Threat, images: Images, state: S) -> Tensor:
        """Where the gradient is taken, (B, C, H, W): inside the box, within the budget or not."""

    @abstractmethod
    def project(self, threat: Threat, images: Images, state: S) -> Tensor:
        """The candidate, (B, C, H, W), within the budget; the point itself if that is within the budget."""

    @abstractmethod
    def update(self, threat: Threat, images: Images, state: S, seen: Evaluation, step: int) -> S:
        """The state after the gradient at the point."""

    def promising(self, seen: Evaluation) -> Tensor:
        """(B,) bool: points whose projection is worth a forward pass."""
        return torch.ones_like(seen.fooled)

    def worth(self, threat: Threat, images: Images, candidate: Tensor, verdict: Evaluation) -> Tensor:
        """(B,): of two successes, or of two failures, the one with the larger value is kept."""
        return verdict.loss

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        claims, rows = Claims.none(images), torch.arange(len(images.x), device=images.x.device)
        state = self.start(threat, images, noise)
        for step in range(self.steps):
            point, candidate = self.point(threat, images, state), self.project(threat, images, state)
            seen = oracle.evaluate(point, rows, gradient=True)
            verdict = self._verdict(oracle, rows, seen, point, candidate)
            claims.offer(candidate, rows, verdict, self.worth(threat, images, candidate, verdict))
            state = self.update(threat, images, state, seen, step)
            if self.early_stop and bool(verdict.fooled.any()):
                left = (~verdict.fooled).nonzero()[:, 0]
                rows, images, state = rows[left], select(images, left), select(state, left)
            if not len(rows):
                break
        return claims.x_adv

    def _verdict(self, oracle: Queries, rows: Tensor, seen: Evaluation, point: Tensor, candidate: Tensor) -> Evaluation:
        """The evaluation of the candidates; a candidate that is not evaluated is not a success."""
        within = (candidate == point).flatten(1).all(1)
        asked = (~within & self.promising(seen)).nonzero()[:, 0]
        loss = torch.where(within, seen.loss, -torch.inf)
        fooled = seen.fooled & within
        if len(asked):
            answer = oracle.evaluate(candidate[asked], rows[asked])
            loss = loss.index_copy(0, asked, answer.loss.to(loss))
            fooled = fooled.index_copy(0, asked, answer.fooled)
        return Evaluation(loss, fooled, None)
