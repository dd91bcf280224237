"""Our attacks as foolbox attacks: raw, clipped, is_adv = attack(fmodel, x, criterion_or_labels, epsilons=...)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from sparsepgd.adapters.ours import Range, attacked, unknown
from sparsepgd.errors import UnsupportedError
from sparsepgd.extras import needs
from sparsepgd.search.contract import Attacker
from sparsepgd.threat import Pattern
from sparsepgd.threat.norms import group_l0

with needs("the adapter for foolbox"):
    import eagerpy as ep
    from foolbox.attacks.base import FixedEpsilonAttack, raise_if_kwargs
    from foolbox.criteria import Misclassification, TargetedMisclassification
    from foolbox.distances import Distance


class FoolboxAttack(FixedEpsilonAttack):
    """``FoolboxAttack(SparsePGD(Budget(k=20)))``. The epsilons are values of k; None is the k of the budget.

    foolbox checks with its own model whether the result is adversarial; the model may have any bounds.
    """

    def __init__(self, attack: Attacker, seed: int = 0) -> None:
        self.attack, self.seed = attack, seed

    @property
    def distance(self) -> GroupDistance:
        return GroupDistance(self.attack.budget.pattern)

    def __call__(self, model: Any, inputs: Any, criterion: Any, *, epsilons: Any, **kwargs: Any) -> Any:
        many = isinstance(epsilons, Iterable)
        default = self.attack.budget.k
        ks = [default if one is None else one for one in (epsilons if many else [epsilons])]
        return super().__call__(model, inputs, criterion, epsilons=ks if many else ks[0], **kwargs)

    def run(self, model: Any, inputs: Any, criterion: Any, *, epsilon: float, **kwargs: Any) -> Any:
        raise_if_kwargs(kwargs)
        x = inputs.raw
        if not isinstance(x, Tensor):
            raise UnsupportedError(f"inputs are of type {type(x).__name__}; use torch tensors and foolbox.PyTorchModel")
        target = None
        if isinstance(criterion, TargetedMisclassification):
            target = criterion.target_classes.raw
            y = unknown(target)
        elif isinstance(criterion, Misclassification):
            y = criterion.labels.raw
        else:
            raise UnsupportedError(
                f"criterion {criterion!r} is not supported; use Misclassification(...) or "
                "TargetedMisclassification(...)"
            )
        if not float(epsilon).is_integer():
            raise UnsupportedError(f"k={epsilon}; the number of pixels or groups that may change must be an integer")
        attack = self.attack.with_budget(lambda budget: dataclasses.replace(budget, k=int(epsilon)))
        maps = Range(*model.bounds).maps
        return ep.astensor(attacked(attack, model, x, y, target=target, seed=self.seed, **maps))

    def repeat(self, times: int) -> Any:
        raise UnsupportedError(
            "the seed determines the result, so repeating the attack changes nothing; use more steps"
        )


class GroupDistance(Distance):
    """The number of changed groups of the pattern. foolbox's own l0 distance counts every channel."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern

    def __call__(self, reference: Any, perturbed: Any) -> Any:
        (x, x_adv), restore_type = ep.astensors_(reference, perturbed)
        return restore_type(ep.astensor(self._count(x.raw, x_adv.raw)))

    def clip_perturbation(self, references: Any, perturbed: Any, epsilon: float) -> Any:
        """Images with more changes than `epsilon` are returned clean; our attacks make none."""
        (x, x_adv), restore_type = ep.astensors_(references, perturbed)
        within = self._count(x.raw, x_adv.raw) <= epsilon
        return restore_type(ep.astensor(x_adv.raw.where(within[:, None, None, None], x.raw)))

    def _count(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return group_l0(x_adv != x, self.pattern).to(x.device)
