"""Our attacks as functions, the interface of adv-lib and AttackBench: attack(model, inputs, labels, ...) -> x_adv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparsepgd.adapters.ours import attacked, unknown
from sparsepgd.analysis.curves import smallest_k
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.oracle import Model
from sparsepgd.search.contract import Attacker
from sparsepgd.search.spgd import SparsePGD
from sparsepgd.threat import Budget, Pattern, Pixels


@dataclass(frozen=True, eq=False)
class Function:
    """``Function(SparseRS(budget))(model, inputs, labels)`` -> x_adv, verified to be within the budget.

    ``smallest``: find the fewest groups for each image, up to the k of the budget, for benchmarks of minimum-norm
    attacks; images that are never fooled are returned clean.
    """

    attack: Attacker
    smallest: bool = False
    seed: int = 0

    def __call__(
        self, model: Model, inputs: Tensor, labels: Tensor, targets: Tensor | int | None = None, targeted: bool = False
    ) -> Tensor:
        """With `targeted` and no `targets`, the labels are the targets, as in adv-lib."""
        if not targeted and targets is not None:
            raise UnsupportedError("targets were given without targeted=True; pass targeted=True, or omit the targets")
        if self.smallest and targeted:
            raise UnsupportedError("smallest=True is untargeted; use smallest=False for targeted attacks")
        if self.smallest:
            k: int = self.attack.budget.k
            return smallest_k(self.attack, model, inputs, labels, k, seed=self.seed).x_adv
        if not targeted:
            return attacked(self.attack, model, inputs, labels, seed=self.seed)
        given = labels if targets is None else targets
        target = torch.as_tensor(given, device=inputs.device).expand(len(inputs))
        return attacked(self.attack, model, inputs, unknown(target), target=target, seed=self.seed)


def spgd(
    model: Model,
    inputs: Tensor,
    labels: Tensor,
    targets: Tensor | int | None = None,
    targeted: bool = False,
    *,
    k: int = 20,
    steps: int = 10_000,
    gradient: Literal["unprojected", "projected", "random"] = "unprojected",
    pattern: Pattern | None = None,
    eps: float = 1.0,
    smallest: bool = False,
    seed: int = 0,
) -> Tensor:
    """`SparsePGD` in one call; ``functools.partial(spgd, k=24, steps=1000)`` is an attack of AttackBench."""
    attack = SparsePGD(Budget(k, pattern or Pixels(), eps), steps, gradient)
    return Function(attack, smallest, seed)(model, inputs, labels, targets, targeted)
