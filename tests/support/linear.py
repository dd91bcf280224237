"""The linear problem: a model whose best perturbation within a budget is known in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import sparsepgd as sp
from support.models import Linear

EVERYTHING = {sp.Pixels(): 64, sp.Features(): 192}  # of an 8x8 colour image


def problem(budget: sp.Budget, size: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (3, size, size), images (4, 3, size, size) and the largest <weights, delta> (4,).

    Exact where groups do not overlap or k = 1: the k groups with the largest gain.
    """
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, size, size, generator=generator)
    x = torch.rand(4, 3, size, size, generator=generator)
    up, down = (x + budget.eps).clamp(max=1) - x, (x - budget.eps).clamp(min=0) - x
    gain = torch.maximum(weight * up, weight * down)
    per_group = budget.resolve((3, size, size)).gather(gain)
    return weight, x, per_group.flatten(1).topk(budget.k).values.sum(1)


def reached(attack: Any, weight: Tensor, x: Tensor) -> Tensor:
    """(B,) <weights, delta> of the result of an attack, with a decision boundary too far away to be reached."""
    result = attack(Linear(weight, -1000.0), x, torch.zeros(len(x), dtype=torch.int64))
    return ((result.x_adv - x) * weight).flatten(1).sum(1)


def with_slack(weight: Tensor, x: Tensor, best: Tensor, slack: float) -> Linear:
    """A model that the best perturbation of the single image x (1, 3, H, W) fools, or fails to fool, by `slack`."""
    score = (x * weight).flatten(1).sum(1)
    return Linear(weight, float(-score - best + slack))


def planted(budget: sp.Budget, size: int = 8, seed: int = 0, faint: float = 0.2) -> tuple[Tensor, Tensor, Tensor]:
    """Like `problem`, with k groups at random places; the weights of all others are `faint` times as large, at most.

    They are the best groups, even if groups overlap, unless two of the k do.
    """
    generator = torch.Generator().manual_seed(seed)
    threat = budget.resolve((3, size, size))
    sign = 2.0 * torch.randint(0, 2, threat.shape, generator=generator) - 1
    here = threat.expand(threat.top_k(torch.rand(1, *threat.grid, generator=generator), None))[0] > 0
    weight = sign * torch.where(here, 1.0, faint * torch.rand(threat.shape, generator=generator))
    x = 0.3 + 0.4 * torch.rand(4, *threat.shape, generator=generator)
    up, down = (x + budget.eps).clamp(max=1) - x, (x - budget.eps).clamp(min=0) - x
    gain = torch.maximum(weight * up, weight * down) * here
    return weight, x, gain.flatten(1).sum(1)


def just_out_of_reach(weight: Tensor, x: Tensor, best: Tensor) -> Linear:
    """A model that no perturbation fools, one of them only just, so the search continues and no loss is flat."""
    return Linear(weight, -float(((x * weight).flatten(1).sum(1) + best).max()) - 0.01)


def grey(pattern: sp.Pattern, eps: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, one grey image, whose values can all change equally far, and the gains (groups,), largest first."""
    weight = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(3))
    x = torch.full((1, 3, 8, 8), 0.5)
    room = min(eps, 0.5)
    gains = sp.Budget(k=1, pattern=pattern).resolve((3, 8, 8)).gather(weight.abs()[None] * room)
    return weight, x, gains.flatten().sort(descending=True).values
