"""The projection on the l1 ball and the box at once (Croce and Hein, Mind the box, 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsepgd.search.loop import Images


def project(d: Tensor, images: Images, radius: float) -> Tensor:
    """The nearest point of the l1 ball and the box, exactly: |d| less a threshold, at most what the box allows.

    The l1 norm of that falls with the threshold, piecewise linearly, with bends at a = |d| and at a - b, b the room
    in the box; with all bends in descending order its value at each is a difference of two sums.
    """
    a = d.abs().flatten(1)
    b = torch.where(d > 0, images.high - images.x, images.x - images.low).to(d.dtype).flatten(1)
    bends = torch.cat([a, a - b], 1)
    sign = torch.cat([torch.ones_like(a), -torch.ones_like(b)], 1)
    bends, order = bends.sort(1, descending=True)
    sign = sign.gather(1, order)
    slope, total = sign.cumsum(1), (sign * bends).cumsum(1)
    norm = total - bends * slope  # the l1 norm with the threshold at this bend
    reached = ((norm < radius) & (bends > 0)).sum(1, keepdim=True)  # bends, from the top, with less than the radius
    last = (reached - 1).clamp(min=0)
    threshold = (total.gather(1, last) - radius) / slope.gather(1, last).clamp(min=1)
    whole = torch.minimum(a, b).sum(1, keepdim=True) <= radius
    kept = (a - torch.where(whole, 0, threshold.clamp(min=0))).clamp(min=0)
    return torch.minimum(kept, b).view_as(d) * d.sign()
