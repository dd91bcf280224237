"""The adversary of a training run: what it makes of a batch. It sees the model in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from sparsepgd.baselines.loap import LOAP
from sparsepgd.baselines.pgd0 import PGD0
from sparsepgd.problem.goals import Divergence, Goal, Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.search import SparsePGD
from sparsepgd.search.loop import Images, Waiting
from sparsepgd.search.noise import Noise, signed
from sparsepgd.search.recorded import Recorded
from sparsepgd.threat import Budget, Patches, Pattern
from sparsepgd.training.data import Batch
from sparsepgd.training.dense import DensePGD
from sparsepgd.training.settings import Settings

Adversary = Callable[[nn.Module, Batch, int], Tensor]  # model, batch, iteration -> x_adv
TURNS: tuple[Literal["unprojected"], Literal["projected"]] = ("unprojected", "projected")


def adversary(wanted: Settings, shape: tuple[int, int, int]) -> Adversary:
    """That of the method, for images of one shape."""
    kind = wanted.kind.adversary
    if kind == "none":
        return lambda model, batch, iteration: batch.x
    if kind in ("linf", "l2", "l1"):
        assert wanted.radius is not None
        dense = DensePGD(kind, wanted.radius, wanted.steps)
        return lambda model, batch, iteration: dense.perturb(
            model, batch.x, batch.y, seed=wanted.seed_for("attack", iteration), index=batch.rows
        )
    patterns: list[Pattern] = [Patches(side) for side in wanted.multi_size] or [wanted.budget.pattern]
    return SparseAdversary(wanted, [training_budget(wanted, shape, pattern) for pattern in patterns])


def training_budget(wanted: Settings, shape: tuple[int, int, int], pattern: Pattern) -> Budget:
    """Multi-eps: the training adversary has several times the groups of the tested one, as far as there are any."""
    tested = replace(wanted.budget, pattern=pattern)
    return replace(tested, k=min(wanted.multi_eps * tested.k, tested.resolve(shape).groups))


@dataclass(frozen=True, eq=False)
class SparseAdversary:
    """sPGD as the paper trains with it, 20 steps, a mask that stays for 10 is drawn afresh; or a rival.

    On a GPU its work is recorded and replayed: the weights change, but stay where they are.
    """

    wanted: Settings
    budgets: Sequence[Budget]  # one for each size of patches, or one
    recorded: dict[object, Recorded] = field(default_factory=dict)

    def __call__(self, model: nn.Module, batch: Batch, iteration: int) -> Tensor:
        attack, seed = self.attack(iteration), self.wanted.seed_for("attack", iteration)
        if isinstance(attack, LOAP):
            return attack.perturb(model, batch.x, batch.y, seed=seed, index=batch.rows)
        attack = attack.for_call(Noise(seed))
        work: Callable[..., Tensor] = partial(self._perturbed, model, attack)
        if batch.x.is_cuda:
            kind = id(model), attack.name, repr(attack.budget)
            work = self.recorded.setdefault(kind, Recorded(work))
        with borrowed(model, batch.x.device):
            drawn = torch.full((), signed(seed), dtype=torch.int64, device=batch.x.device)
            return work(batch.x, batch.y, batch.rows, drawn)

    def _perturbed(
        self, model: nn.Module, attack: SparsePGD | PGD0, x: Tensor, y: Tensor, rows: Tensor, seed: Tensor
    ) -> Tensor:
        goal: Goal = Untargeted()
        if self.wanted.mode == "F":
            with torch.no_grad():
                goal = Divergence(model(x).log_softmax(1))
        if isinstance(attack, SparsePGD) and attack.steps == 1:
            return one_step(attack, model, x, y, rows, goal, Noise(seed))
        return attack.in_borrowed(model, x, y, Noise(seed), goal, rows)

    def attack(self, iteration: int) -> SparsePGD | PGD0 | LOAP:
        """That of an iteration: the side of its patches and its backward function may change."""
        wanted = self.wanted
        budget = self.budgets[wanted.seed_for("size", iteration) % len(self.budgets)]
        if wanted.kind.adversary == "pgd0":
            return PGD0(budget, wanted.steps, early_stop=wanted.early_stop)
        if wanted.kind.adversary == "loap":  # the pace is that of its authors
            return LOAP(budget, wanted.steps, early_stop=wanted.early_stop, alpha=wanted.alpha or 0.1)
        pace = 0.05 if budget.pattern.structured else 0.25
        gradient = TURNS[iteration % 2] if wanted.gradient == "alternating" else wanted.gradient
        return SparsePGD(
            budget,
            wanted.steps,
            gradient,
            early_stop=wanted.early_stop,
            alpha=wanted.alpha or pace,
            beta=wanted.beta or pace,
            tolerance=wanted.tolerance,
        )


def one_step(
    attack: SparsePGD, model: nn.Module, x: Tensor, y: Tensor, rows: Tensor, goal: Goal, noise: Noise
) -> Tensor:
    """The point after one step from a random start. The model is asked once, not also about the point reached."""
    x = x.detach()
    threat = attack.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), x.device)
    nothing = torch.zeros_like(y)
    images = Images.entering(Waiting.of(threat, x, y, clean_loss=nothing, index=rows), threat, False)
    state = attack.start(threat, images, noise)
    seen = Oracle(model, goal).evaluate(attack.propose(threat, images, state), y, y, gradient=True)
    return attack.propose(threat, images, attack.update(threat, images, state, seen, nothing, noise))
