"""What every attack promises, for tests to assert: the promises that a result breaks, and what a call leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.threat.norms import group_l0
from support.models import SmallConvNet, images, labelled


def broken(attack: Any, result: sp.Result, model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """The promises that an untargeted result breaks; the model is in evaluation mode, x on the 8-bit grid."""
    budget, x_adv = attack.budget, result.x_adv
    changed = x_adv != x  # (B, C, H, W)
    groups = group_l0(changed, budget.pattern)
    with torch.no_grad():
        right, said = model(x).argmax(1) == y, model(x_adv.to(x.dtype)).argmax(1)
    names = [one.name for one in getattr(attack, "members", (attack,))]
    kept = {
        "x_adv has the shape and the type of x": x_adv.shape == x.shape and x_adv.dtype == x.dtype,
        "at most k groups change": bool((groups <= budget.k).all()),
        "groups are the fewest that cover the change": torch.equal(result.groups, groups),
        "l0 counts the changed pixels": torch.equal(result.l0, changed.any(1).flatten(1).sum(1)),
        "x_adv lies in [0, 1]": bool(((x_adv >= 0) & (x_adv <= 1)).all()),
        "no value changes by more than eps": float((x_adv.double() - x.double()).abs().max())
        <= budget.eps + 1e-7 * attack.quantize,
        "only allowed pixels change": budget.allowed is None or not bool((changed.any(1) & ~budget.allowed).any()),
        "quantized values are on the 8-bit grid": not attack.quantize
        or torch.equal((x_adv * 255).round() / 255, x_adv),
        "clean_correct is what the model says of x": torch.equal(result.clean_correct, right),
        "prediction is what the model says of x_adv": torch.equal(result.prediction, said),
        "fooled is right before and wrong after": torch.equal(result.fooled, right & (said != y)),
        "what is wrong from the start stays as it is": torch.equal(x_adv[~right], x[~right]),
        "what is wrong from the start is not searched": not bool(result.forwards[~right].any()),
        "robust_accuracy is of the right and never fooled": result.robust_accuracy
        == pytest.approx(float((right & ~result.fooled).float().mean())),
        "broken_by names the attack of the fooled": all(
            (who in names) if one else who is None
            for who, one in zip(result.broken_by, result.fooled.tolist(), strict=True)
        ),
    }
    return [promise for promise, holds in kept.items() if not holds]


def mixed() -> tuple[SmallConvNet, Tensor, Tensor]:
    """Correctly classified images, and a model in training mode except for one layer, with one frozen parameter."""
    model, x = SmallConvNet(), images(4)
    y = labelled(model, x)
    model.train()
    model.net[1].eval()
    model.net[0].weight.requires_grad_(False)
    return model, x, y


def left_behind(attack: Any, model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """What a call changes although it should not; before the call no parameter has a gradient."""
    modes = [module.training for module in model.modules()]
    flags = [one.requires_grad for one in model.parameters()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    of_torch, of_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    attack(model, x, y)
    same = {
        "modes": [module.training for module in model.modules()] == modes,
        "requires_grad": [one.requires_grad for one in model.parameters()] == flags,
        "gradients": all(one.grad is None for one in model.parameters()),
        "weights and statistics": all(torch.equal(state[key], value) for key, value in model.state_dict().items()),
        "random state of torch": torch.equal(torch.get_rng_state(), of_torch),
        "random state of numpy": bool((np.random.get_state()[1] == of_numpy).all()),  # noqa: NPY002
    }
    return [what for what, holds in same.items() if not holds]
