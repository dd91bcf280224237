"""Sparse-RS (Croce, Andriushchenko, Singh, Flammarion and Hein, 2022): random search, for every pattern.

Each query evaluates one random change, which is kept if the loss increases. The changes are made in moves.py
(index_sets.py for index sets), their sizes in schedule.py.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import put
from sparsepgd.search.loop import Images, better
from sparsepgd.search.noise import Noise
from sparsepgd.search.random_search.index_sets import exchange_for
from sparsepgd.search.random_search.moves import Candidate, Moves, moves_for, render
from sparsepgd.search.random_search.schedule import Schedule
from sparsepgd.search.registry import registered
from sparsepgd.search.stepwise import Stepwise
from sparsepgd.threat import Budget, Frame, Groups, Threat

C = TypeVar("C")  # a candidate: a dataclass of tensors


@dataclass(frozen=True, eq=False)
class State(Generic[C]):
    """The best candidate so far, and the one that is evaluated next."""

    kept: C
    loss: Tensor  # (B,), of the kept one
    fooled: Tensor  # (B,) bool, whether the kept one is a success
    tried: C


@dataclass(frozen=True, eq=False)
class RandomSearch(Stepwise[State[C]]):
    """Black box: the model may be any callable. A random change is kept if it is better."""

    needs_gradient: ClassVar[bool] = False
    passes_per_step: ClassVar[int] = 1
    ties: ClassVar[bool] = False  # whether an equally good change is kept

    queries: int = count(10_000)

    @property
    def evaluations(self) -> int:
        return self.queries

    @abstractmethod
    def change(self, threat: Threat, images: Images, kept: C, it: Tensor, noise: Noise) -> C:
        """A random change of the kept candidate for iteration it (B,)."""

    def update(
        self, threat: Threat, images: Images, state: State[C], seen: Evaluation, step: Tensor, noise: Noise
    ) -> State[C]:
        wins = better(seen.fooled, seen.loss, state.fooled, state.loss, ties=self.ties)
        kept = put(wins, state.tried, state.kept)
        loss = torch.where(wins, seen.loss.to(state.loss.dtype), state.loss)
        fooled = torch.where(wins, seen.fooled, state.fooled)
        return State(kept, loss, fooled, self.change(threat, images, kept, step + 1, noise))


@registered("rs", "RS")
@dataclass(frozen=True, eq=False)
class SparseRS(RandomSearch[Candidate]):
    """Black box: the model may be any callable. The first query is the random start, each further one a random change.

    ``p_init`` is the initial share of the budget that changes. Default: 0.8 for pixels and features (the paper's, with
    the cross-entropy), 0.4 for structured patterns and 0.5 for frames (Croce et al.). For targeted attacks Croce et al.
    used p_init=0.1, location_period=10 and 100,000 queries.
    """

    name: ClassVar[str] = "sparse-rs"
    _: KW_ONLY
    p_init: float | None = positive(None)
    constant_schedule: bool = False  # p_init / 2 in all iterations
    rescale: bool = True  # stretch the schedule, which is meant for 10,000 queries
    location_period: int = count(4)  # queries between two moves of the groups of a structured pattern

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p_init is None:
            p_init = 0.5 if isinstance(self.budget.pattern, Frame) else 0.4 if self.budget.pattern.structured else 0.8
            object.__setattr__(self, "p_init", p_init)
        elif self.p_init > 1:
            raise UnsupportedError(f"p_init={self.p_init}; expected a share of the budget, 0 < p_init <= 1")

    @classmethod
    def original(cls, budget: Budget, queries: int = 10_000) -> SparseRS:
        """The settings of Croce et al. for untargeted goals: the margin, and 0.3 for pixels and features."""
        return cls(budget, queries, p_init=None if budget.pattern.structured else 0.3, loss="margin")

    def start(self, threat: Threat, images: Images, noise: Noise) -> State[Candidate]:
        first = self.moves_of(threat).start(images, noise)
        nothing = torch.full_like(images.clean_loss, -torch.inf)
        return State(first, nothing, torch.zeros_like(images.y, dtype=torch.bool), first)

    def propose(self, threat: Threat, images: Images, state: State[Candidate]) -> Tensor:
        return render(threat, images, state.tried)

    def change(self, threat: Threat, images: Images, kept: Candidate, it: Tensor, noise: Noise) -> Candidate:
        """As in the original, a change is accepted if it increases the loss or fools the model. Proposals after the
        last query are not used."""
        return self.moves_of(threat).after(kept, images, it.clamp(max=self.queries - 1), noise)

    def moves_of(self, threat: Threat) -> Moves:
        assert self.p_init is not None
        schedule = Schedule(self.queries, self.p_init, self.constant_schedule, self.rescale, self.location_period)
        if isinstance(self.budget.pattern, Groups):
            return exchange_for(schedule, self.budget.pattern, self.budget.k, threat.shape[0], threat.kernel.device)
        return moves_for(schedule, self.budget.pattern, self.budget.k, threat.shape, threat.kernel.device)
