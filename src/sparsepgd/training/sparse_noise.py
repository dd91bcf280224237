"""N: random noise on a random set of groups, before the attack (the authors' work on one-step training)."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsepgd.search.noise import Noise, Stream
from sparsepgd.threat import Threat


def sparse_noise(x: Tensor, threat: Threat, most: int, rows: Tensor, seed: int) -> Tensor:
    """x with uniform noise of size eps on 0 to `most` groups of each image, every number equally likely."""
    groups = threat.grid[0] * threat.grid[1] * threat.grid[2]
    most = min(most, groups - 1)
    noise, eps = Noise(seed), threat.budget.eps
    count = (noise.uniform(Stream.COIN, rows, 0, (1,)) * (most + 1)).long()  # (B, 1)
    score = noise.uniform(Stream.MASK, rows, 0, threat.grid)
    bar = score.flatten(1).topk(most + 1).values.gather(1, count)  # above it lie `count` groups
    mask = threat.expand((score > bar[:, :, None, None]).float()) > 0
    masks = threat.masks(len(x))
    if masks is not None:
        mask = mask & masks[0]
    eta = eps * (2 * noise.uniform(Stream.MAGNITUDE, rows, 0, threat.shape) - 1)
    return torch.where(mask, (x + eta).clamp(0, 1), x)
