"""A layer without parameters in front of a network, which removes isolated changes of pixels.

Feature squeezing (Xu et al. 2018) puts a median filter there; this layer alters clean images less.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsepgd.errors import ShapeError

Choice = Callable[[Tensor, Tensor], Tensor]  # torch.maximum or torch.minimum


class NeighbourClamp(nn.Module):
    """Limit each value to the range from the second smallest to the second largest of its neighbours: up to eight
    pixels, in the same channel. A changed pixel keeps its new value only if two neighbours changed in the same
    direction; on clean images few values change."""

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[-2:]) < 2:
            raise ShapeError(f"images of shape {tuple(x.shape)}; NeighbourClamp needs sides of at least 2 pixels")
        high = second(neighbours(x, -inf), torch.maximum, torch.minimum)
        low = second(neighbours(x, inf), torch.minimum, torch.maximum)
        return torch.minimum(torch.maximum(x, low), high)


def neighbours(x: Tensor, outside: float) -> list[Tensor]:
    """The values of the eight neighbours of each pixel; `outside`: of those beyond the border."""
    padded = F.pad(x, (1, 1, 1, 1), value=outside)
    height, width = x.shape[-2:]
    offsets = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    return [padded[..., i : i + height, j : j + width] for i, j in offsets]


def second(values: list[Tensor], first: Choice, other: Choice) -> Tensor:
    """The second largest of 2, 4, 8, ... values with `first` the maximum and `other` the minimum, or vice versa."""
    pairs = [(first(a, b), other(a, b)) for a, b in zip(values[::2], values[1::2], strict=True)]
    while len(pairs) > 1:
        pairs = [
            (first(a, b), first(other(a, b), first(after_a, after_b)))
            for (a, after_a), (b, after_b) in zip(pairs[::2], pairs[1::2], strict=True)
        ]
    return pairs[0][1]
