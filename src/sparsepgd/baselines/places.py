"""Groups that keep their colours and move about the image: what LOAP optimises."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsepgd.search.loop import Images
from sparsepgd.threat import Threat


@dataclass(frozen=True, eq=False)
class Placed:
    """x' = (1 - M) x + M P, M the pixels of the groups at the places q."""

    P: Tensor  # (B, C, H, W), colours, dense
    q: Tensor  # (B, k) places, as numbers of the flat group grid, all different

    def render(self, threat: Threat, images: Images, quantize: bool) -> Tensor:
        """(B, C, H, W), within the budget."""
        return images.render(self.P - images.x, mask(threat, self.q), quantize)

    def shifted(self, threat: Threat, images: Images, turn: int, shift: Tensor) -> Placed:
        """The group number `turn` moved by `shift` (B, 2) with its colours.

        It stays where it would leave the image, enter a place that is not allowed, or lie exactly on another group.
        """
        (_, height, width), here = threat.grid, self.q[:, turn]
        row, column = here // width + shift[:, 0], here % width + shift[:, 1]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        there = torch.where(inside, row * width + column, here)
        legal = inside & (there[:, None] != self.q).all(1)
        if images.usable is not None:
            legal &= images.usable.flatten(1).gather(1, there[:, None])[:, 0]
        q = self.q.clone()
        q[:, turn] = torch.where(legal, there, here)
        moved = mask(threat, q[:, turn : turn + 1]) * legal.view(-1, 1, 1, 1)
        return Placed(torch.where(moved > 0, _rolled(self.P, shift), self.P), q)


def mask(threat: Threat, q: Tensor) -> Tensor:
    """(B, 1, H, W), 1 on the groups at the places q (B, any)."""
    v = torch.zeros(len(q), math.prod(threat.grid), device=q.device).scatter_(1, q, 1.0)
    return threat.expand(v.view(-1, *threat.grid))


def chosen(states: list[Placed], which: Tensor) -> Placed:
    """For each image the state with its number, which (B,)."""
    image = torch.arange(len(which), device=which.device)
    P, q = torch.stack([one.P for one in states]), torch.stack([one.q for one in states])
    return Placed(P[which, image], q[which, image])


def _rolled(P: Tensor, shift: Tensor) -> Tensor:
    """Each image (C, H, W) moved by its own shift (B, 2)."""
    height, width = P.shape[2:]
    row = (torch.arange(height, device=P.device) - shift[:, :1]) % height
    column = (torch.arange(width, device=P.device) - shift[:, 1:]) % width
    image = torch.arange(len(P), device=P.device)[:, None, None]
    return P.movedim(1, 0)[:, image, row[:, :, None], column[:, None, :]].movedim(0, 1)
