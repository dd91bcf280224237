"""Cluster-RS: random search with clusters of moderate changes, for pixels and features. Black box.

Sparse-RS draws places all over the image and values at the ends of the box. Models trained against l0 ignore such
values; what fools them within k pixels are small clusters of like colours, each a moderate step from the clean one.
So here squares of one colour come first, single points later, many of them beside others and with their colour; how
strong changes are is learnt from those that stayed. All that the model is asked about is within the budget.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.goals import LossName
from sparsepgd.search.loop import Images
from sparsepgd.search.moves import around
from sparsepgd.search.noise import Noise
from sparsepgd.search.random_search.moves import corners, draw_parts, free_groups
from sparsepgd.search.random_search.sparse_rs import RandomSearch, State
from sparsepgd.search.registry import registered
from sparsepgd.threat import Features, Pattern, Pixels, Threat

ANYWHERE = 0.5  # of the late points; the others come beside points that are changed already
COPY = 0.5  # of the points with such neighbours take their colour
TUNE = 0.2  # of the late changes alter the colour of a point, not its place
LEARNT = 0.7  # of the new colours are as strong as one that stayed; the others have any strength
WEAKEST = 0.1  # of eps


@dataclass(frozen=True, eq=False)
class Change:
    mask: Tensor  # (B, *grid) bool, at most k an image
    value: Tensor  # (B, C, H, W), 0 outside the mask


@registered()
@dataclass(frozen=True, eq=False)
class ClusterRS(RandomSearch[Change]):
    """Black box: the model may be any callable. A query changes a square or a point, which stays unless the loss
    falls."""

    name: ClassVar[str] = "cluster-rs"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    ties: ClassVar[bool] = True

    _: KW_ONLY
    loss: LossName = "margin"
    coarse: float = 0.6  # the share of the queries over which squares shrink to points

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.coarse <= 1:
            raise UnsupportedError(f"coarse={self.coarse}; expected a share of the queries, 0 <= coarse <= 1")

    @property
    def largest(self) -> int:
        """The side of the first squares: a quarter of the budget at most."""
        return max(math.isqrt(self.budget.k // 4), 1)

    def start(self, threat: Threat, images: Images, noise: Noise) -> State[Change]:
        mask = torch.zeros(len(images.x), *threat.grid, dtype=torch.bool, device=images.x.device)
        clean = Change(mask, torch.zeros_like(images.x, dtype=torch.float32))
        nothing = torch.zeros_like(images.y, dtype=torch.bool)
        # the first change is that of Sparse-RS: k points anywhere, each at a corner of its box
        place, colour = draw_parts(noise, images, 0, mask[0].numel(), clean.value[0].numel())
        groups, _ = free_groups(place, None, images, self.budget.k)
        mask = mask.flatten(1).scatter(1, groups, True).view_as(mask)
        value = torch.where(corners(colour, *images.x.shape[1:]), images.high, images.low) - images.x
        return State(clean, images.clean_loss, nothing, Change(mask, torch.where(mask, value.float(), 0.0)))

    def propose(self, threat: Threat, images: Images, state: State[Change]) -> Tensor:
        return images.render(state.tried.value, state.tried.mask, self.quantize)

    def change(self, threat: Threat, images: Images, kept: Change, it: Tensor, noise: Noise) -> Change:
        points, channels = kept.mask[0].numel(), images.x.shape[1]
        place, other, colour, coin = draw_parts(noise, images, it, points, points, 2 * channels, 4)
        left = 1 - it / max(self.coarse * self.queries, 1e-9)
        side = (self.largest * left).ceil().clamp(min=1)  # of the square that changes
        fine = (side == 1) & (it >= self.coarse / 2 * self.queries)
        tune = (coin[:, 0] < TUNE) & fine & kept.mask.flatten(1).any(1)
        old = (other * kept.mask.flatten(1)).argmax(1)  # one of the points that are changed already
        new = self._place(place, kept, images, fine)
        added = _square(torch.where(tune, old, new), side, kept.mask)
        if images.usable is not None:
            added &= images.usable
        mask = (kept.mask | added) & ~self._dropped(kept.mask, added, old, other)

        shown = _at(kept.value, old)
        fresh, wiggle = self._fresh(shown.abs().amax(1), colour, coin)
        beside = _at(around(kept.value) / around(kept.mask.float()).clamp(min=1e-3), new)
        copy = (coin[:, 3] < COPY) & fine & (beside != 0).any(1)
        near = torch.where(tune[:, None], shown, beside)
        near = near + near.abs().amax(1, keepdim=True) * wiggle
        value = torch.where((tune | copy)[:, None], near, fresh)[:, :, None, None]
        value = torch.where(added, value, kept.value).clamp(images.low - images.x, images.high - images.x)
        return Change(mask, torch.where(mask, value.float(), 0.0))

    def _fresh(self, strength: Tensor, colour: Tensor, coin: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C) each: a new colour, mostly about as strong as one that stayed (0: none did), and a variation."""
        sign, wiggle = colour.chunk(2, 1)
        learnt = (coin[:, 1] < LEARNT) & (strength > 0)
        free = self.budget.eps * WEAKEST ** (2 * coin[:, 2] - 1)  # half of them end at the box
        strength = torch.where(learnt, strength * (coin[:, 2] - 0.5).exp(), free)
        return strength[:, None] * torch.where(sign > 0.5, 1.0, -1.0), wiggle - 0.5

    def _place(self, draw: Tensor, kept: Change, images: Images, fine: Tensor) -> Tensor:
        """(B,), the first corner of what is to change: a free point, later often beside changed ones."""
        free = ~kept.mask if images.usable is None else ~kept.mask & images.usable
        near = (around(kept.mask.float()) * free).flatten(1)
        near = near / near.sum(1, keepdim=True).clamp(min=1e-9)
        share = torch.where(fine, 1 - ANYWHERE, 0.0)[:, None]
        race = draw.log() / ((1 - share) / near.shape[1] + share * near)  # the largest: drawn with these weights
        race = torch.where(free.flatten(1), race, -1e30 * (2 - draw))  # none is free: one that is changed already
        if images.usable is not None:
            race = race.masked_fill(~images.usable.flatten(1), -torch.inf)
        return race.argmax(1)

    def _dropped(self, mask: Tensor, added: Tensor, old: Tensor, draw: Tensor) -> Tensor:
        """Points that go back to clean so that k remain: those nearest to an old one, drawn at random."""
        excess = (mask | added).flatten(1).sum(1) - self.budget.k
        channel, row, column = _coordinates(old, mask)
        here = _coordinates(torch.arange(mask[0].numel(), device=mask.device), mask)
        away = (here[1] - row[:, None]).abs() + (here[2] - column[:, None]).abs()
        away = away + (here[0] != channel[:, None]) * sum(mask.shape[2:])
        nearest = (-away - draw / 2).masked_fill(~(mask & ~added).flatten(1), -torch.inf).topk(self.largest**2)
        gone = torch.arange(self.largest**2, device=mask.device) < excess[:, None]
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
