"""The random changes of Sparse-RS for index sets, which have no rows and columns and so no distances.

Every few iterations some groups are replaced by random other ones with random content; otherwise some cells of one
group are redrawn. Their numbers follow the schedules of patches (schedule.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sparsepgd.problem.rows import choose
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.random_search.moves import Candidate, corners, draw_parts, free_groups
from sparsepgd.search.random_search.schedule import Schedule
from sparsepgd.threat import Groups


@lru_cache(maxsize=16)
def exchange_for(schedule: Schedule, groups: Groups, k: int, channels: int, device: torch.device) -> Exchange:
    """The moves with their tables, which are cached."""
    its, length = range(schedule.queries), [len(one) for one in groups.sets]
    room = len(length) > k
    return Exchange(
        lanes=1 if groups.features else channels,
        k=k,
        cells=max(length),
        length=torch.tensor(length, device=device),
        relocate=torch.tensor([room and it % schedule.period == 0 for it in its], device=device),
        count=torch.tensor([max(int(schedule.patches(it) * k), 1) for it in its], device=device),
        share=torch.tensor([schedule.patches(it) for it in its], device=device),
    )


@dataclass(frozen=True, eq=False)
class Exchange:
    """Groups are replaced by others, or cells of one group are redrawn."""

    lanes: int
    k: int
    cells: int  # of the largest group
    length: Tensor  # (groups,), cells of each
    relocate: Tensor  # (queries,) bool, whether groups move
    count: Tensor  # (queries,), how many of them
    share: Tensor  # (queries,), share of the cells of a group that are redrawn

    def start(self, images: Images, noise: Noise) -> Candidate:
        place, colour = draw_parts(noise, images, 0, len(self.length), self.lanes * self.k * self.cells)
        groups, _ = free_groups(place, None, images, self.k)
        return Candidate(groups, corners(colour, self.lanes, self.k, self.cells))

    def after(self, kept: Candidate, images: Images, it: Tensor, noise: Noise) -> Candidate:
        sizes = self.k, len(self.length), self.lanes * self.k * self.cells, self.cells, self.lanes
        slot, place, colour, cell, lane = draw_parts(noise, images, it, *sizes)
        bits = corners(colour, self.lanes, self.k, self.cells)
        rank = slot.argsort(1).argsort(1)
        fresh, free = (each.gather(1, rank) for each in free_groups(place, kept.groups, images, self.k))
        moved = (rank < self.count[it][:, None]) & free
        elsewhere = Candidate(
            torch.where(moved, fresh, kept.groups), torch.where(moved[:, None, :, None], bits, kept.bits)
        )
        redrawn = Candidate(kept.groups, self._redrawn(kept, bits, rank == 0, cell, lane, it))
        return choose(self.relocate[it], elsewhere, redrawn)

    def _redrawn(self, kept: Candidate, bits: Tensor, mine: Tensor, cell: Tensor, lane: Tensor, it: Tensor) -> Tensor:
        """The content after some cells of one group, `mine` (B, k), were redrawn; a single cell changes in one lane."""
        length = self.length[kept.groups.gather(1, mine.int().argmax(1)[:, None])]  # (B, 1)
        inside = torch.arange(self.cells, device=cell.device) < length
        order = torch.where(inside, cell, 2.0).argsort(1).argsort(1)  # the cells of the group in random order
        most = (self.share[it][:, None] * length).long().clamp(min=1)
        chosen = (order < most)[:, None, None] & mine[:, None, :, None]  # (B, 1, k, cells)
        flipped = kept.bits ^ (lane == lane.amax(1, keepdim=True))[:, :, None, None]
        return torch.where(chosen, torch.where((most == 1)[:, :, None, None], flipped, bits), kept.bits)
