"""A budget of every pattern, for images (3, 12, 12)."""

from __future__ import annotations

import torch

import sparsepgd as sp

BUDGETS = [
    sp.Budget(k=3),
    sp.Budget(k=5, pattern=sp.Features()),
    sp.Budget(k=1, pattern=sp.Rows()),
    sp.Budget(k=2, pattern=sp.Columns()),
    sp.Budget(k=2, pattern=sp.Patches(3)),
    sp.Budget(k=1, pattern=sp.Patches(2, 5)),
    sp.Budget(k=1, pattern=sp.Shape.heart(5)),
    sp.Budget(k=1, pattern=sp.Shape.circle(6), eps=16 / 255),
    sp.Budget(k=1, pattern=sp.Frame(2)),
    sp.Budget(k=3, allowed=torch.arange(144).view(12, 12) % 3 == 0),
    sp.Budget(k=1, pattern=sp.Patches(4), allowed=torch.arange(144).view(12, 12) < 60),
]
