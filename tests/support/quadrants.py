"""Small images with a known rule, and small networks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PLACES = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]  # import paths
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PLACES)}  # for a separate process
QUICK: dict[str, Any] = {"batch": 16, "steps": 3, "multi_eps": 2, "watch_steps": 3}


def quadrants(count: int = 64, seed: int = 0, size: int = 8) -> tuple[Tensor, Tensor]:
    """Grey 8-bit images; the class is the quadrant that is brighter than the others."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (count,), generator=generator)
    levels = torch.randint(0, 120, (count, 1, size, size), generator=generator)
    half = size // 2
    for i, quadrant in enumerate(y.tolist()):
        top, left = half * (quadrant // 2), half * (quadrant % 2)
        levels[i, 0, top : top + half, left : left + half] += 90
    return levels.float() / 255, y


def network(norm: bool = True, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(32, 4),
        )


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
