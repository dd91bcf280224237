"""Small runs for the tests of reports."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import sparsepgd as sp
from sparsepgd.analysis.curves import Smallest
from sparsepgd.runs.records import About
from sparsepgd.runs.runs import run
from sparsepgd.search.contract import Attacker
from support.models import SmallConvNet, images, labelled

MARKUP = "<script>alert(1)</script>"
CLASSES = ("cat & dog", "_hidden", MARKUP, "$x$ = $y", "猫")  # the model predicts 2 most often
COMMAND = f"spgd evaluate --model 'evil.py:{MARKUP}'"
COUNT = 18


def spgd(k: int = 6, steps: int = 8, pattern: sp.Pattern | None = None, eps: float = 1.0) -> sp.SparsePGD:
    return sp.SparsePGD(sp.Budget(k, pattern or sp.Pixels(), eps), steps)


def make(
    folder: Path,
    attack: Attacker | None = None,
    *,
    model_seed: int = 0,
    count: int = COUNT,
    size: int = 12,
    channels: int = 3,
    model_name: str = f"model {MARKUP}",
    about: About | None = None,
) -> Path:
    """A finished run with markup in its names; every sixth image is labelled 0, 1 or 3 and so misclassified."""
    model, x = SmallConvNet(channels=channels, seed=model_seed).eval(), images(count, channels=channels, size=size)
    y = labelled(model, x)
    y[::6] = torch.tensor([0, 1, 3]).repeat(count)[: len(y[::6])]
    names = {"model": model_name, "data": f"data {MARKUP}"}
    told = About(class_names=CLASSES, command=COMMAND) if about is None else about
    run(folder, attack or spgd(), model, (x, y), names, about=told)
    return folder


def make_ensemble(folder: Path) -> Path:
    return make(folder, sp.SparseAutoAttack(sp.Budget(k=5), steps=3, queries=40), model_name="second")


def make_over_k(folder: Path) -> Path:
    return make(folder, Smallest(spgd(), sp.Budget(k=6)))


def make_watermark(folder: Path) -> Path:
    return make(folder, spgd(1, 8, sp.Shape(torch.ones(4, 4)), 16 / 255))


def make_of_numbers(folder: Path, *shape: int) -> Path:
    """A run on inputs that are not images, of this shape: such as features (F,) or signals (C, L)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(COUNT, *shape, generator=generator)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 3)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(3, x[0].numel(), generator=generator))
        model[1].bias.zero_()
    attack, names = spgd(3, 8, sp.Features()), {"model": "linear", "data": "table"}
    run(folder, attack, model, (x, labelled(model, x)), names, about=About(class_names=CLASSES))
    return folder
