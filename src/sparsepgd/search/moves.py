"""Positions of overlapping groups, such as patches: the first positions and random moves."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.threat import Threat

REACH = 0.1  # largest short move, as a share of the side of the image; at least 3 pixels
SHARPNESS = 10.0  # of the distribution of positions, see `attraction`


def placed(threat: Threat, images: Images, g: Tensor, k: Tensor, draw: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """The first perturbation and its k (B,) groups. Positions are drawn by their first-order gain; values are at the
    end of the box that the gradient g points to. `draw`: (B,), a key of the random numbers."""
    v = threat.top_k(attraction(threat, images, g, draw, noise), images.usable, k, threat.budget.k)
    edge = torch.where(g > 0, images.high, images.low) - images.x
    return edge.float() * threat.expand(v), v


def moved(
    threat: Threat, images: Images, delta: Tensor, v: Tensor, g: Tensor, draw: Tensor, noise: Noise
) -> tuple[Tensor, Tensor]:
    """The perturbation and its groups after one group was moved with its content: half of the time by a few pixels,
    otherwise to a position drawn by its first-order gain."""
    (_, rows, columns), flat = threat.grid, v.flatten(1)
    which, coin, *by = noise.uniform(Stream.MOVE, images.index, draw, (4,)).unbind(1)
    order = flat.cumsum(1) * flat  # 1, 2, ... on the groups
    nth = (which * flat.sum(1)).long().clamp(max=threat.budget.k - 1) + 1
    old = (order == nth[:, None]).int().argmax(1)
    rest = flat.scatter(1, old[:, None], 0.0)

    taken = flat > 0 if images.usable is None else (flat > 0) | ~images.usable.flatten(1)
    pull = attraction(threat, images, g, draw, noise).flatten(1).masked_fill(taken, -1.0)
    far = pull.scatter(1, old[:, None], 0.0).argmax(1)  # if no other position is free, it stays
    top, left = old // columns, old % columns
    near = shift(top, by[0], rows, threat.shape[1]) * columns + shift(left, by[1], columns, threat.shape[2])
    blocked = taken.gather(1, near[:, None])[:, 0]
    new = torch.where((coin < 0.5) & ~blocked, near, far)

    alone = torch.zeros_like(flat).scatter(1, new[:, None], 1.0).view_as(v)
    content = rolled(images.x + delta, new // columns - top, new % columns - left) - images.x
    stays = delta * threat.expand(rest.view_as(v))
    return torch.where(threat.expand(alone) > 0, content.float(), stays), rest.view_as(v) + alone


def attraction(threat: Threat, images: Images, g: Tensor, draw: Tensor, noise: Noise) -> Tensor:
    """(B, *grid), random scores of positions. The largest one is a draw with weights that grow exponentially with the
    gain, which is how much a group there can add to the loss to first order."""
    room = torch.where(g > 0, images.high - images.x, images.x - images.low)
    gain = threat.gather(g.abs() * room.to(g.dtype))
    chance = noise.uniform(Stream.PLACE, images.index, draw, threat.grid)
    pull = (SHARPNESS * (gain / largest(gain))).exp()
    return pull / -chance.log()  # an exponential race: probabilities proportional to the numerators


def shift(start: Tensor, draw: Tensor, places: int, side: int) -> Tensor:
    """`start` (B,) after a uniform random step of at most REACH along an axis with so many `places`."""
    reach = max(3, round(REACH * side))
    return (start + (draw * (2 * reach + 1)).long().clamp(max=2 * reach) - reach).clamp(0, places - 1)


def rolled(values: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Values (B, C, H, W), each image rolled by its own offsets (B,), as torch.roll does."""
    count, channels, height, width = values.shape
    i = (torch.arange(height, device=values.device) - down[:, None]) % height
    j = (torch.arange(width, device=values.device) - right[:, None]) % width
    values = values.gather(2, i[:, None, :, None].expand(count, channels, height, width))
    return values.gather(3, j[:, None, None, :].expand(count, channels, height, width))


def largest(values: Tensor) -> Tensor:
    """(B, 1, 1, 1), the largest absolute value of each image; never 0."""
    return column(values.flatten(1).abs().amax(1).clamp(min=torch.finfo(values.dtype).tiny))


def column(values: Tensor) -> Tensor:
    """(B,) -> (B, 1, 1, 1)."""
    return values.view(-1, 1, 1, 1)
