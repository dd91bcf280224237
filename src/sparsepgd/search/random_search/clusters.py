"""Random changes of adjacent points, for Cluster-RS and for the local search of SparseAnneal.

Extreme changes of single points rarely fool a model that was trained against them, but small clusters of similar
colours do. So a change is a square of one colour, or a single point, often beside a changed point and with its colour.
The size of a new change is often similar to that of one that was kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.kernels import kernels
from sparsepgd.search.loop import Images
from sparsepgd.threat import Budget

ANYWHERE = 0.5  # share of the single points that may be anywhere; the others are beside changed points
COPY = 0.5  # share of the points with changed neighbours that take their colour
TUNE = 0.2  # share of the single changes that alter the colour of a changed point
LEARNT = 0.7  # share of the new colours with about the size of a kept one; others have any size
WEAKEST = 0.1  # smallest size of the others, as a share of eps


@dataclass(frozen=True, eq=False)
class Change:
    mask: Tensor  # (B, *grid) bool
    value: Tensor  # (B, C, H, W), 0 outside the mask


def numbers(images: Images, mask: Tensor) -> tuple[int, ...]:
    """How many random numbers `varied` needs for each image, part by part."""
    points = mask[0].numel()
    return points, points, 2 * images.x.shape[1], 4


def longest_side(k: Tensor) -> Tensor:
    """(B,), the longest side of a square of at most a quarter of k (B,) points."""
    return (k / 4).sqrt().long().clamp(min=1)


def varied(
    budget: Budget,
    images: Images,
    kept: Change,
    draws: tuple[Tensor, ...],
    side: Tensor,
    single: Tensor,
    k: Tensor | None = None,
) -> Change:
    """The change `kept`, with a square of new points instead of some old ones.

    `draws`: random numbers, see `numbers`. `side`: (B,), of the square, at most `longest_side(k)`. `single`: (B,) bool,
    whether the square is a point that may be placed beside others, take their colour, or only alter the colour of an
    old one. `k`: (B,), the most points of an image, default those of the budget; `kept` has no more."""
    found, most = kernels(kept.mask.device), max(budget.k // 4, 1)
    points, channels = kept.mask[0].numel(), kept.value.shape[1]
    if found is not None and points <= found.POINTS and channels <= found.UNROLLED and images.x.dtype == torch.float32:
        limit = torch.full_like(images.y, budget.k) if k is None else k
        box, shares = (images.x, images.low, images.high), (budget.eps, ANYWHERE, COPY, TUNE, LEARNT, WEAKEST)
        return Change(
            *found.varied(kept.mask, kept.value, box, images.usable, draws, side, single, limit, most, shares)
        )
    # the mask: the square is added; if there are then too many points, others that are nearest to an old one are reset
    place, other, colour, coin = draws
    flat, crowd = kept.mask.flatten(1), _crowd(kept.mask)
    taken = flat.float()
    old = (other * taken).argmax(1)  # one of the changed points
    tuned, learnt, strong, copied = coin.unbind(1)
    tune = (tuned < TUNE) & single & flat.any(1)
    new = _place(place, flat, crowd.flatten(1) * (1 - taken), images, single)
    added = _square(torch.where(tune, old, new), side, kept.mask, images.usable, most)
    mask = flat.scatter(1, added, True)
    excess = mask.sum(1) - (budget.k if k is None else k)
    dropped, gone = _dropped(kept.mask, added, old, other, excess, most)
    mask.scatter_(1, dropped, mask.gather(1, dropped) & ~gone)
    # the colour: a fresh one, that of the neighbours, or that of the old point
    (shown,), (x, low, high, changed) = _at(old, kept.value), _at(new, images.x, images.low, images.high, crowd)
    sign, wiggle = colour.chunk(2, 1)
    fresh = _fresh(shown.abs().amax(1), budget.eps, sign, learnt, strong)
    fresh = _with_room(fresh, low - x, high - x)
    beside = _around(kept.value, new) / changed.clamp(min=1e-3)
    copy = (copied < COPY) & single & (beside != 0).any(1)
    near = torch.where(tune[:, None], shown, beside)
    near = near + near.abs().amax(1, keepdim=True) * (wiggle - 0.5)
    colour = torch.where((tune | copy)[:, None], near, fresh)
    value = _painted(kept, images, added, colour, dropped, gone)
    return Change(mask.view_as(kept.mask), value)


def _painted(kept: Change, images: Images, added: Tensor, colour: Tensor, dropped: Tensor, gone: Tensor) -> Tensor:
    """(B, C, H, W), the values of `kept` with the colour (B, C), clipped to the box, on the points `added` (B, n), and
    0 on those of the points `dropped` (B, n) that are `gone`, (B, n) bool. Other values are within the box already."""
    points, lanes = kept.mask[0].numel(), kept.mask.shape[1]  # of these there is 1, or C where channels count alone
    tensors = kept.value, images.x, images.low, images.high
    value, x, low, high = (each.view(len(each), -1, points) for each in tensors)
    added, dropped = (each[:, None].expand(-1, value.shape[1], -1) for each in (added, dropped))
    x, low, high = (each.gather(2, added) for each in (x, low, high))
    new = colour.view(len(colour), -1, lanes).gather(2, added // (points // lanes)).clamp(low - x, high - x)
    value = value.scatter(2, dropped, value.gather(2, dropped).masked_fill_(gone[:, None], 0.0))
    return value.scatter_(2, added, new.float()).view_as(kept.value)


def _fresh(kept: Tensor, eps: float, sign: Tensor, learnt: Tensor, strong: Tensor) -> Tensor:
    """(B, C), a new colour, often of about the size `kept` (B,) of a changed point; 0: there is none. `sign` (B, C),
    `learnt` and `strong` (B,) are random numbers."""
    free = eps * WEAKEST ** (2 * strong - 1)  # half of them end at the box
    strength = torch.where((learnt < LEARNT) & (kept > 0), kept * (strong - 0.5).exp(), free)
    return strength[:, None] * torch.where(sign > 0.5, 1.0, -1.0)


def _with_room(colour: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The colour (B, C), or the opposite one if more than twice as much of that is within the box of its position, low
    to high (B, C). Otherwise black and white points would often not change."""
    kept, opposite = (each.clamp(low, high).abs().amax(1, keepdim=True) for each in (colour, -colour))
    return torch.where(opposite > 2 * kept, -colour, colour)


def _place(draw: Tensor, taken: Tensor, near: Tensor, images: Images, single: Tensor) -> Tensor:
    """(B,), the first corner of the square: a point that is not `taken`, (B, points) bool. A single point is often
    drawn in proportion to `near` (B, points), the share of changed points around it."""
    if images.usable is not None:
        near = near * images.usable.flatten(1)
    near = near / near.sum(1, keepdim=True).clamp(min=1e-9)
    share = torch.where(single, 1 - ANYWHERE, 0.0)[:, None]
    race = draw.log() / near.mul_(share).add_((1 - share) / near.shape[1])  # the largest is a draw with these weights
    race = torch.where(taken, -1e30 * (2 - draw), race)  # if none is free, a changed point
    if images.usable is not None:
        race = race.masked_fill(~images.usable.flatten(1), -torch.inf)
    return race.argmax(1)


def _crowd(mask: Tensor) -> Tensor:
    """(B, *grid), the share of changed points in the 3x3 square around each point, with zero padding."""
    count = F.pad(mask.view(torch.uint8), (1, 1, 1, 1))
    count = count[..., :-2, :] + count[..., 1:-1, :] + count[..., 2:, :]
    return (count[..., :-2] + count[..., 1:-1] + count[..., 2:]).float().div_(9)


def _dropped(
    mask: Tensor, added: Tensor, old: Tensor, draw: Tensor, excess: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """(B, most) points, and whether each is reset: the `excess` (B,) points that are nearest to the point `old` (B,).
    `added`: (B, n), points that are kept."""
    channel, row, column = _coordinates(old[:, None], mask)
    c, h, w = (torch.arange(n, device=mask.device, dtype=torch.float32) for n in mask.shape[1:])
    away = (h - row).abs()[:, None, :, None] + (w - column).abs()[:, None, None, :]
    if len(c) > 1:
        away = away + (c != channel)[:, :, None, None] * sum(mask.shape[2:])
    nearest = away.flatten(1).add(draw, alpha=0.5).neg_().masked_fill_(~mask.flatten(1), -torch.inf)
    points = nearest.scatter_(1, added, -torch.inf).topk(most).indices
    return points, torch.arange(most, device=mask.device) < excess[:, None]


def _at(place: Tensor, *values: Tensor) -> list[Tensor]:
    """The channels (B, C) of each of the values (B, C, H, W) at points (B,) of the flat grid."""
    spot = (place % values[0][0, 0].numel())[:, None, None]
    return [each.flatten(2).gather(2, spot.expand(-1, each.shape[1], 1))[:, :, 0] for each in values]


def _around(values: Tensor, place: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C), the mean over the 3x3 square around points (B,) of the flat grid, with zero padding."""
    (height, width), step = values.shape[2:], torch.arange(-1, 2, device=values.device)
    _, row, column = _coordinates(place[:, None], values)
    row, column = row + step, column + step
    rows, columns = row.clamp(0, height - 1), column.clamp(0, width - 1)
    inside = (row == rows)[:, :, None] & (column == columns)[:, None]
    spot = (rows * width)[:, :, None] + columns[:, None]
    found = values.flatten(2).gather(2, spot.view(-1, 1, 9).expand(-1, values.shape[1], -1))
    return F.avg_pool2d(found.view(*found.shape[:2], 3, 3) * inside[:, None], 3).flatten(1)


def _coordinates(place: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    height, width = grid.shape[2:]
    return place // (height * width), place // width % height, place % width


def _square(corner: Tensor, side: Tensor, grid: Tensor, usable: Tensor | None, most: int) -> Tensor:
    """(B, n), the points of the square with this first corner, at most `most`. Points outside the image and unusable
    ones are replaced by the corner."""
    (height, width), longest, corner = grid.shape[2:], math.isqrt(most), corner[:, None]
    cell = torch.arange(longest**2, device=grid.device)
    down, right = cell // longest, cell % longest
    _, row, column = _coordinates(corner, grid)
    inside = (down < (height - row).minimum(side[:, None])) & (right < (width - column).minimum(side[:, None]))
    points = torch.where(inside, corner + (down * width + right), corner)
    return points if usable is None else torch.where(usable.flatten(1).gather(1, points), points, corner)
