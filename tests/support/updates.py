"""Single updates of Sparse-PGD."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.spgd import State
from support.models import images


def one_update(attack: sp.SparsePGD, g: Tensor, n: int = 0, w: Tensor | None = None) -> tuple[State, State, Images]:
    """A state of two images, and the state after an update with the gradient g."""
    threat = attack.budget.resolve((3, 6, 6))
    x = images(2, size=6)
    y = torch.zeros(2, dtype=torch.int64)
    low, high = threat.box(x, None, quantize=False)
    rows = Images(x, y, y, torch.zeros(2), torch.arange(2), torch.arange(2), None, low, high)
    noise = Noise(0)
    before = attack.start(threat, rows, noise)
    before = dataclasses.replace(before, n=torch.tensor([n, 0]))
    if w is not None:
        before = dataclasses.replace(before, w=w, v=threat.top_k(w.sigmoid(), None))
    seen = Evaluation(torch.zeros(2), torch.zeros(2, dtype=torch.bool), g)
    return before, attack.update(threat, rows, before, seen, torch.zeros_like(y), noise), rows


GRADIENT = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(9))
