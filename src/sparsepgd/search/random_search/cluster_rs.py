"""Cluster-RS: random search with clusters of moderate changes, for pixels and features. Black box.

Sparse-RS draws positions from the whole image and values at the ends of the box. Models trained against sparse attacks
ignore such values, but small clusters of similar colours, at a moderate distance from the clean ones, fool them. So the
first changes are squares of one colour and later ones single points, often beside a changed point and with its colour.
The size of a change is often taken from one that was kept. All points that are evaluated are within the budget.
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
from sparsepgd.search.noise import Noise
from sparsepgd.search.random_search.clusters import Change, numbers, varied
from sparsepgd.search.random_search.moves import corners, draw_parts, free_groups
from sparsepgd.search.random_search.sparse_rs import RandomSearch, State
from sparsepgd.search.registry import registered
from sparsepgd.threat import Features, Pattern, Pixels, Threat


@registered()
@dataclass(frozen=True, eq=False)
class ClusterRS(RandomSearch[Change]):
    """Black box: the model may be any callable. Each query changes a square or a single point; the change is kept
    unless the loss decreases."""

    name: ClassVar[str] = "cluster-rs"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    ties: ClassVar[bool] = True

    _: KW_ONLY
    loss: LossName = "margin"
    coarse: float = 0.6  # share of the queries in which squares shrink to points

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.coarse <= 1:
            raise UnsupportedError(f"coarse={self.coarse}; expected a share of the queries, 0 <= coarse <= 1")

    @property
    def revision(self) -> int:
        return 2

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
        left = 1 - it / max(self.coarse * self.queries, 1e-9)
        side = (self.largest * left).ceil().clamp(min=1)
        single = (side == 1) & (it >= self.coarse / 2 * self.queries)
        draws = draw_parts(noise, images, it, *numbers(images, kept.mask))
        return varied(self.budget, images, kept, draws, side, single)
