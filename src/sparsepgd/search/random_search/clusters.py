"""Random changes of points that lie together, for Cluster-RS and for the local search of SparseAnneal.

A change of one extreme point hardly fools a model that was trained against such changes; small clusters of like colours
do. So points come in squares of one colour, or one by one, many of them beside others and with their colour; how strong
a new colour is follows from those that stayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsepgd.kernels import kernels
from sparsepgd.search.loop import Images
from sparsepgd.search.moves import around
from sparsepgd.threat import Budget

ANYWHERE = 0.5  # of the single points; the others come beside points that are changed already
COPY = 0.5  # of the points with such neighbours take their colour
TUNE = 0.2  # of the single changes alter the colour of a point, not its place
LEARNT = 0.7  # of the new colours are as strong as one that stayed; the others have any strength
WEAKEST = 0.1  # of eps


@dataclass(frozen=True, eq=False)
class Change:
    mask: Tensor  # (B, *grid) bool
    value: Tensor  # (B, C, H, W), 0 outside the mask


def numbers(images: Images, mask: Tensor) -> tuple[int, ...]:
    """How many random numbers `varied` takes for each image, part by part."""
    points = mask[0].numel()
    return points, points, 2 * images.x.shape[1], 4


def longest_side(k: Tensor) -> Tensor:
    """Of a square: a quarter of k (B,) points at most."""
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
    """What is kept with a square of new points in the place of old ones.

    `draws`: see `numbers`. `side`: (B,), of the square, at most `longest_side(k)`. `single`: (B,) bool, where it is a
    point that may come beside others, take their colour, or only alter the colour of an old one. `k`: (B,), points that
    an image may have, unless as many as the budget; what is kept has no more."""
    found, most = kernels(kept.mask.device), max(budget.k // 4, 1)
    if found is not None and kept.mask[0].numel() <= found.POINTS and images.x.dtype == torch.float32:
        limit = torch.full_like(images.y, budget.k) if k is None else k
        box, shares = (images.x, images.low, images.high), (budget.eps, ANYWHERE, COPY, TUNE, LEARNT, WEAKEST)
        return Change(
            *found.varied(kept.mask, kept.value, box, images.usable, draws, side, single, limit, most, shares)
        )
    place, other, colour, coin = draws
    tune = (coin[:, 0] < TUNE) & single & kept.mask.flatten(1).any(1)
    old = (other * kept.mask.flatten(1)).argmax(1)  # one of the points that are changed already
    new = _place(place, kept, images, single)
    added = _square(torch.where(tune, old, new), side, kept.mask)
    if images.usable is not None:
        added &= images.usable
    excess = (kept.mask | added).flatten(1).sum(1) - (budget.k if k is None else k)
    mask = (kept.mask | added) & ~_dropped(kept.mask, added, old, other, excess, most)

    shown = _at(kept.value, old)
    fresh, wiggle = _fresh(shown.abs().amax(1), budget.eps, colour, coin)
    fresh = _with_room(fresh, _at(images.low - images.x, new), _at(images.high - images.x, new))
    beside = _at(around(kept.value) / around(kept.mask.float()).clamp(min=1e-3), new)
    copy = (coin[:, 3] < COPY) & single & (beside != 0).any(1)
    near = torch.where(tune[:, None], shown, beside)
    near = near + near.abs().amax(1, keepdim=True) * wiggle
    value = torch.where((tune | copy)[:, None], near, fresh)[:, :, None, None]
    value = torch.where(added, value, kept.value).clamp(images.low - images.x, images.high - images.x)
    return Change(mask, torch.where(mask, value.float(), 0.0))


def _fresh(strength: Tensor, eps: float, colour: Tensor, coin: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C) each: a new colour, mostly about as strong as one that stayed (0: none did), and a variation."""
    sign, wiggle = colour.chunk(2, 1)
    learnt = (coin[:, 1] < LEARNT) & (strength > 0)
    free = eps * WEAKEST ** (2 * coin[:, 2] - 1)  # half of them end at the box
    strength = torch.where(learnt, strength * (coin[:, 2] - 0.5).exp(), free)
    return strength[:, None] * torch.where(sign > 0.5, 1.0, -1.0), wiggle - 0.5


def _with_room(colour: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The colour (B, C), or its opposite where the box of its place, low to high (B, C), leaves that twice as much. A
    change of a black or white point would otherwise often be none."""
    kept, opposite = (each.clamp(low, high).abs().amax(1, keepdim=True) for each in (colour, -colour))
    return torch.where(opposite > 2 * kept, -colour, colour)


def _place(draw: Tensor, kept: Change, images: Images, single: Tensor) -> Tensor:
    """(B,), the first corner of what is to change: a free point, of single ones often beside changed ones."""
    free = ~kept.mask if images.usable is None else ~kept.mask & images.usable
    near = (around(kept.mask.float()) * free).flatten(1)
    near = near / near.sum(1, keepdim=True).clamp(min=1e-9)
    share = torch.where(single, 1 - ANYWHERE, 0.0)[:, None]
    race = draw.log() / ((1 - share) / near.shape[1] + share * near)  # the largest: drawn with these weights
    race = torch.where(free.flatten(1), race, -1e30 * (2 - draw))  # none is free: one that is changed already
    if images.usable is not None:
        race = race.masked_fill(~images.usable.flatten(1), -torch.inf)
    return race.argmax(1)


def _dropped(mask: Tensor, added: Tensor, old: Tensor, draw: Tensor, excess: Tensor, most: int) -> Tensor:
    """Points that go back to clean, `excess` (B,) of them, at most `most`: those nearest to an old one, drawn at
    random."""
    channel, row, column = _coordinates(old, mask)
    here = _coordinates(torch.arange(mask[0].numel(), device=mask.device), mask)
    away = (here[1] - row[:, None]).abs() + (here[2] - column[:, None]).abs()
    away = away + (here[0] != channel[:, None]) * sum(mask.shape[2:])
    nearest = (-away - draw / 2).masked_fill(~(mask & ~added).flatten(1), -torch.inf).topk(most)
    gone = torch.arange(most, device=mask.device) < excess[:, None]
    return torch.zeros_like(mask.flatten(1)).scatter(1, nearest.indices, gone).view_as(mask)


def _at(values: Tensor, place: Tensor) -> Tensor:
    """(B, C, H, W) at points (B,) of the flat grid, all channels: (B, C)."""
    flat = values.flatten(2)
    return flat.gather(2, (place % flat.shape[2])[:, None, None].expand(-1, flat.shape[1], 1))[:, :, 0]


def _coordinates(place: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    height, width = grid.shape[2:]
    return place // (height * width), place // width % height, place % width


def _square(corner: Tensor, side: Tensor, grid: Tensor) -> Tensor:
    """(B, *grid) bool, the square with that first corner, as far as it lies within the image."""
    channel, row, column = (each[:, None] for each in _coordinates(corner, grid))
    c, h, w = (torch.arange(n, device=grid.device) for n in grid.shape[1:])
    rows = (h >= row) & (h < row + side[:, None])
    columns = (w >= column) & (w < column + side[:, None])
    return (c == channel)[:, :, None, None] & rows[:, None, :, None] & columns[:, None, None, :]
