"""The training attacks, which attack each batch with the model in evaluation mode; and sparse noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from sparsepgd.baselines.loap import LOAP
from sparsepgd.baselines.pgd0 import PGD0
from sparsepgd.problem.goals import Divergence, Goal, Untargeted
from sparsepgd.problem.oracle import Model, Oracle, borrowed
from sparsepgd.search import ClusterRS, SparseAnneal, SparsePGD
from sparsepgd.search.graphs import Recorded
from sparsepgd.search.loop import Images, Waiting
from sparsepgd.search.noise import Noise, Stream, signed
from sparsepgd.threat import Budget, Threat
from sparsepgd.training.annealing import PASSES, short_cycle, short_search
from sparsepgd.training.data import Batch
from sparsepgd.training.settings import Settings

TURNS: tuple[Literal["unprojected"], Literal["projected"]] = ("unprojected", "projected")
TURN = 5  # epochs, as in the paper's ablation
PAPERS = 6  # times the groups of the budget
TOP = 0.05  # share of the entries that an l1 step moves


class Adversary(Protocol):
    def __call__(self, model: nn.Module, batch: Batch, iteration: int, done: float = 0.0) -> Tensor:
        """x_adv (B, C, H, W). `done`: the share of the epochs that are finished."""


def adversary(settings: Settings, shape: tuple[int, int, int]) -> Adversary:
    """The training attack of the method, for images of one shape."""
    kind = settings.kind.adversary
    if kind == "none":
        return lambda model, batch, iteration, done=0.0: batch.x
    if kind in ("linf", "l2", "l1"):
        assert settings.radius is not None
        dense = DensePGD(kind, settings.radius, settings.steps)
        return lambda model, batch, iteration, done=0.0: dense.perturb(
            model, batch.x, batch.y, seed=settings.seed_for("attack", iteration), index=batch.rows
        )
    return SparseAdversary(settings, training_budgets(settings, shape), shape)


def training_budgets(settings: Settings, shape: tuple[int, int, int]) -> list[Budget]:
    """The budgets of the training attack, one for each of `settings.attacked`."""
    return [times(tested, settings.multiple(turn), shape) for turn, tested in enumerate(settings.attacked)]


def times(tested: Budget, multiple: int, shape: tuple[int, int, int]) -> Budget:
    """Multi-eps: the training attack has several times the groups of the budget, at most all groups of the image."""
    return replace(tested, k=min(multiple * tested.k, tested.resolve(shape).groups))


@dataclass(frozen=True, eq=False)
class SparseAdversary:
    """sPGD as in the paper's training (20 steps, tolerance 10), SparseAnneal, Cluster-RS, or another attack.

    On a GPU its work is recorded and replayed, because the weights change but stay at the same address.
    """

    settings: Settings
    budgets: Sequence[Budget]  # one for each of `settings.attacked`; each batch draws one of them
    shape: tuple[int, int, int]
    recorded: dict[object, Recorded] = field(default_factory=dict)

    def __call__(self, model: nn.Module, batch: Batch, iteration: int, done: float = 0.0) -> Tensor:
        attack, seed = self.attack(iteration, done), self.settings.seed_for("attack", iteration)
        turn = self.settings.turn(iteration)
        if isinstance(attack, LOAP):
            return attack.perturb(model, batch.x, batch.y, seed=seed, index=batch.rows)
        steps = self.steps(done)
        if isinstance(attack, SparsePGD | PGD0):
            attack = attack.for_call(Noise(seed))
        work: Callable[..., Tensor] = partial(self._perturbed, model, attack, steps, self.settings.attacked[turn].k)
        if batch.x.is_cuda:
            kind = id(model), attack.name, steps, turn
            work = self.recorded.setdefault(kind, Recorded(work))
        with borrowed(model, batch.x.device):
            drawn = torch.full((), signed(seed), dtype=torch.int64, device=batch.x.device)
            start = [] if batch.kept is None or isinstance(attack, SparsePGD) else [batch.kept]
            return work(batch.x, batch.y, batch.rows, drawn, *start)

    def _perturbed(
        self,
        model: nn.Module,
        attack: SparsePGD | SparseAnneal | ClusterRS | PGD0,
        steps: int,
        tested: int,
        x: Tensor,
        y: Tensor,
        rows: Tensor,
        seed: Tensor,
        kept: Tensor | None = None,
    ) -> Tensor:
        goal: Goal = Untargeted()
        if self.settings.mode == "F":
            with torch.no_grad():
                goal = Divergence(model(x).log_softmax(1))
        if isinstance(attack, SparseAnneal):
            threat, images = entered(attack, x, y, rows)
            return short_cycle(steps, tested, Oracle(model, goal), threat, images, kept, Noise(seed))
        if isinstance(attack, ClusterRS):
            assert kept is not None
            threat, images = entered(attack, x, y, rows)
            oracle = Oracle(model, goal, attack.loss)
            return short_search(attack.queries, tested, oracle, threat, images, kept, Noise(seed))
        if isinstance(attack, SparsePGD) and attack.steps == 1:
            return one_step(attack, model, x, y, rows, goal, Noise(seed))
        return attack.perturb_borrowed(model, x, y, Noise(seed), goal, rows)

    def steps(self, done: float) -> int:
        settings = self.settings
        return settings.steps + round(done * ((settings.steps_last or settings.steps) - settings.steps))

    def attack(self, iteration: int, done: float = 0.0) -> SparsePGD | SparseAnneal | ClusterRS | PGD0 | LOAP:
        """The attack of an iteration; its steps, budget and backward function may change."""
        settings, steps, turn = self.settings, self.steps(done), self.settings.turn(iteration)
        budget = self.budgets[turn]
        if settings.searches(iteration):
            return ClusterRS(budget, settings.queries or PASSES * steps)
        if settings.anneals(iteration):
            return SparseAnneal(budget)
        if settings.kind.adversary == "anneal":  # sPGD has as many groups as in the paper's training
            budget = times(settings.attacked[turn], PAPERS, self.shape)
        if settings.kind.adversary == "pgd0":
            return PGD0(budget, steps, early_stop=settings.early_stop)
        if settings.kind.adversary == "loap":  # with the step sizes of its authors
            return LOAP(budget, steps, early_stop=settings.early_stop, alpha=settings.alpha or 0.1)
        pace = 0.05 if budget.pattern.structured else 0.25
        epoch = round(done * (settings.epochs - 1))
        gradient = TURNS[epoch // TURN % 2] if settings.gradient == "alternating" else settings.gradient
        return SparsePGD(
            budget,
            steps,
            gradient,
            early_stop=settings.early_stop,
            alpha=settings.alpha or pace,
            beta=settings.beta or pace,
            tolerance=settings.tolerance,
        )


def one_step(
    attack: SparsePGD, model: nn.Module, x: Tensor, y: Tensor, rows: Tensor, goal: Goal, noise: Noise
) -> Tensor:
    """The point after one step from a random start. This point is not evaluated."""
    threat, images = entered(attack, x, y, rows)
    state = attack.start(threat, images, noise)
    seen = Oracle(model, goal).evaluate(attack.propose(threat, images, state), y, y, gradient=True)
    return attack.propose(threat, images, attack.update(threat, images, state, seen, torch.zeros_like(y), noise))


def entered(attack: SparsePGD | SparseAnneal | ClusterRS, x: Tensor, y: Tensor, rows: Tensor) -> tuple[Threat, Images]:
    threat = attack.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), x.device)
    waiting = Waiting.of(threat, x.detach(), y, clean_loss=torch.zeros_like(y), index=rows)
    return threat, Images.entering(waiting, threat, False)


@dataclass(frozen=True)
class DensePGD:
    """Projected gradient ascent on the cross-entropy in an l_inf, l2 or l1 ball (Madry et al. 2018; Tramer and Boneh
    2019), for comparison models: unchecked, the whole batch at once."""

    norm: Literal["linf", "l2", "l1"]
    radius: float
    steps: int

    def perturb(self, model: Model, x: Tensor, y: Tensor, *, seed: int, index: Tensor) -> Tensor:
        oracle, x = Oracle(model, Untargeted()), x.detach()
        start = 2 * Noise(seed).uniform(Stream.MAGNITUDE, index, 0, tuple(x.shape[1:])) - 1
        delta = self._project(self.radius * start if self.norm == "linf" else start, x)
        with borrowed(model, x.device):
            for _ in range(self.steps):
                seen = oracle.evaluate(x + delta, y, y, gradient=True)
                assert seen.gradient is not None
                delta = self._project(delta + self._step(seen.gradient.to(delta.dtype)), x)
        return (x + delta).clamp(0, 1)

    def _step(self, g: Tensor) -> Tensor:
        """The steepest ascent of length 2.5 radius / steps in the norm; for l1 only on the largest entries."""
        length = 2.5 * self.radius / self.steps
        if self.norm == "linf":
            return length * g.sign()
        if self.norm == "l2":
            norm: Tensor = g.flatten(1).norm(dim=1).clamp(min=1e-12)
            return length * g / norm.view(-1, 1, 1, 1)
        flat = g.flatten(1)
        largest = flat.abs().topk(max(1, round(TOP * flat.shape[1])))
        step = torch.zeros_like(flat).scatter(1, largest.indices, flat.gather(1, largest.indices).sign())
        return length * (step / largest.indices.shape[1]).view_as(g)

    def _project(self, delta: Tensor, x: Tensor) -> Tensor:
        """Project into the ball, then into [0, 1]; the second moves entries towards 0 and so stays in the ball."""
        if self.norm == "linf":
            delta = delta.clamp(-self.radius, self.radius)
        elif self.norm == "l2":
            norm = delta.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)
            delta = delta * (self.radius / norm).clamp(max=1)
        else:
            delta = _into_l1(delta.flatten(1), self.radius).view_as(delta)
        return (x + delta).clamp(0, 1) - x


def _into_l1(v: Tensor, radius: float) -> Tensor:
    """The nearest point of the l1 ball for each row (Duchi et al. 2008)."""
    size = v.abs()
    ordered = size.sort(1, descending=True).values
    excess = (ordered.cumsum(1) - radius) / torch.arange(1, v.shape[1] + 1, device=v.device)
    last = (ordered > excess).sum(1, keepdim=True).clamp(min=1) - 1
    threshold = excess.gather(1, last).clamp(min=0)
    return v.sign() * (size - threshold).clamp(min=0)


def sparse_noise(x: Tensor, threat: Threat, most: int, rows: Tensor, seed: int) -> Tensor:
    """N: x with uniform noise of size eps on 0 to `most` groups of each image, each number with equal probability (the
    authors' work on one-step training)."""
    most = min(most, math.prod(threat.grid) - 1)
    noise, eps = Noise(seed), threat.budget.eps
    count = (noise.uniform(Stream.COIN, rows, 0, (1,)) * (most + 1)).long()  # (B, 1)
    score = noise.uniform(Stream.MASK, rows, 0, threat.grid)
    bar = score.flatten(1).topk(most + 1).values.gather(1, count)  # above it lie `count` groups
    mask = threat.expand((score > bar[:, :, None, None]).float()) > 0
    masks = threat.masks(len(x))
    if masks is not None:
        mask = mask & masks[0]
    eta = eps * (2 * noise.uniform(Stream.MAGNITUDE, rows, 0, threat.shape) - 1)
    return torch.where(mask, (x + eta).clamp(0, 1), x)
