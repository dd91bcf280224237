"""Shared by the tests of the adapters: other packages, imported without the warnings of their own imports, and a small
model with images that it classifies correctly."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from support.models import SmallConvNet, images, labelled


def package(name: str) -> Any:
    """The package; the test is skipped if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip(name)


def problem(count: int = 6, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor, Tensor]:
    model, x = SmallConvNet(dtype=dtype).eval(), images(count, dtype=dtype)
    return model, x, labelled(model, x)


def spgd(k: int = 12, steps: int = 8) -> sp.SparsePGD:
    return sp.SparsePGD(sp.Budget(k=k), steps=steps)


def predictions(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        said: Tensor = model(x).argmax(1)
    return said


def changed(x: Tensor, x_adv: Tensor) -> Tensor:
    """(B,) the number of pixels with any changed bit."""
    return (x_adv != x).any(1).flatten(1).sum(1)


def mixed_mode(model: nn.Module) -> list[bool]:
    """Put the model in training mode except for its BatchNorm, as for fine-tuning; return the modes of all modules."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return modes(model)


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def watched(model: nn.Module) -> list[bool]:
    """A list that gets one entry for each forward pass: whether any module was in training mode."""
    seen: list[bool] = []
    model.register_forward_pre_hook(lambda *_: seen.append(any(modes(model))))
    return seen


class Normalised(nn.Module):
    """A model that expects images with mean 0 and deviation 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x * STD + MEAN)


MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
STD = torch.tensor([0.2471, 0.2435, 0.2616]).view(1, 3, 1, 1)
