"""The random changes of Sparse-RS (Croce et al. 2022), for every pattern and for many images at once.

A candidate consists of k groups and, for each cell of a group, one end of the box: 0 or 1, or x -+ eps. ``Swap``
changes groups of one point (their section on l0), ``Paint`` all others (patches and frames; the paper masks
the patch with the pattern). An iteration uses one row of random numbers per image, split into parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from sparsepgd.problem.rows import choose
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search.schedule import Schedule
from sparsepgd.threat import Frame, Pattern, Threat

TRIES = 4  # draws of a colour that must differ; if none does, the opposite of the first


@dataclass(frozen=True, eq=False)
class Candidate:
    """k groups and their content. The lanes L are the channels, or 1 if channels count separately."""

    groups: Tensor  # (B, k) int64, positions in the flat group grid, all different
    bits: Tensor  # (B, L, k, cells) bool, the upper end of the box or the lower


def render(threat: Threat, images: Images, candidate: Candidate) -> Tensor:
    """The clean images with the candidate, (B, C, H, W). Where groups overlap, the later one is visible."""
    count, lanes, k, _ = candidate.bits.shape
    if threat.pointwise:
        place = candidate.groups[:, None].expand(-1, lanes, -1)
        clean, low, high = (values.view(count, lanes, -1) for values in (images.x, images.low, images.high))
        shown = torch.where(candidate.bits[..., 0], high.gather(2, place), low.gather(2, place))
        return clean.scatter(2, place, shown).view_as(images.x)
    (c, h, w), device = threat.shape, images.x.device
    place, solid = threat.cells(candidate.groups)
    place = place.view(count, 1, -1).expand(-1, lanes, -1)
    order = torch.arange(1, k + 1, device=device, dtype=torch.int32)[:, None]
    code = (2 * order + candidate.bits) * solid[:, None]  # 0: a hole of the pattern
    blank = torch.zeros(count, lanes, c * h * w // lanes, dtype=torch.int32, device=device)
    seen = blank.scatter_reduce(2, place, code.flatten(2), "amax").view_as(images.x)
    return torch.where(seen > 0, torch.where(seen % 2 > 0, images.high, images.low), images.x)


class Moves(Protocol):
    """The random start, and a random change of the kept candidate for iteration it (B,)."""

    def start(self, images: Images, noise: Noise) -> Candidate: ...
    def after(self, kept: Candidate, images: Images, it: Tensor, noise: Noise) -> Candidate: ...


@lru_cache(maxsize=16)
def moves_for(schedule: Schedule, pattern: Pattern, k: int, shape: tuple[int, int, int], device: torch.device) -> Moves:
    c, h, w = shape
    kernel = pattern.kernel(h, w)
    if kernel.numel() > 1:
        return _paint(schedule, pattern, kernel, k, shape, device)
    count = [max(int(schedule.points(it) * k), 1) for it in range(schedule.queries)]
    lanes, grid = (1, c * h * w) if pattern.per_channel else (c, h * w)
    return Swap(lanes, grid, k, torch.tensor(count, device=device))


@dataclass(frozen=True, eq=False)
class Swap:
    """Some of the k points are reset; as many others get a random corner of the colour cube."""

    lanes: int
    grid: int
    k: int
    count: Tensor  # (queries,), how many points move

    def start(self, images: Images, noise: Noise) -> Candidate:
        place, colour = draw_parts(noise, images, 0, self.grid, self.lanes * self.k)
        groups, _ = free_groups(place, None, images, self.k)
        return Candidate(groups, corners(colour, self.lanes, self.k, 1))

    def after(self, kept: Candidate, images: Images, it: Tensor, noise: Noise) -> Candidate:
        sizes = self.k, self.grid, self.lanes * self.k, self.lanes * TRIES
        slot, place, colour, again = draw_parts(noise, images, it, *sizes)
        rank, count = slot.argsort(1).argsort(1), self.count[it][:, None]
        fresh, free = (each.gather(1, rank) for each in free_groups(place, kept.groups, images, self.k))
        moved = rank < count
        groups = torch.where(moved & free, fresh, kept.groups)  # if none is free, only the colour changes
        bits = corners(colour, self.lanes, self.k, 1)
        other = self._other_colour(kept, groups, images, slot.argmin(1), again)
        bits = torch.where((count == 1)[:, None, :, None], other[:, :, None, None], bits)
        return Candidate(groups, torch.where(moved[:, None, :, None], bits, kept.bits))

    def _other_colour(self, kept: Candidate, groups: Tensor, images: Images, slot: Tensor, again: Tensor) -> Tensor:
        """(B, L), a colour for the point of this slot, other than the present one at its new position."""
        slot = slot[:, None]
        was, place = kept.groups.gather(1, slot)[:, None], groups.gather(1, slot)[:, None]
        clean, low, high = (
            values.flatten(1).view(len(values), self.lanes, -1).gather(2, place.expand(-1, self.lanes, -1))
            for values in (images.x, images.low, images.high)
        )
        shown = kept.bits[..., 0].gather(2, slot[:, None].expand(-1, self.lanes, -1))
        now = torch.where(place == was, torch.where(shown, high, low), clean)
        tries = corners(again, self.lanes, TRIES)
        return _first_other(tries, torch.where(tries, high, low) != now)


@dataclass(frozen=True, eq=False)
class Paint:
    """Every few iterations groups move with their content; otherwise one colour fills a box within one group."""

    lanes: int
    grid: tuple[int, int]  # rows, columns
    k: int
    size: tuple[int, int]  # of the kernel
    outward: bool  # frames: a box extends from its first cell in any diagonal direction
    relocate: Tensor  # (queries,) bool, whether groups move
    count: Tensor  # (queries,), how many of them
    reach: Tensor  # (queries, 2), how far
    sides: Tensor  # (queries, 2), of the box
    channel: Tensor  # (queries,) bool, whether one channel of one cell is inverted instead
    level: Tensor  # (queries,), the row of the next two
    choices: Tensor  # (levels,), number of cells in which a box may begin
    begin: Tensor  # (levels, cells), these cells

    def start(self, images: Images, noise: Noise) -> Candidate:
        """Random positions. The content is made of random boxes on top of each other; for frames, of single cells."""
        boxes = 0 if self.outward else self.k * min(20 * math.prod(self.size), 1000)  # few cells remain uncovered
        colours = self.lanes * (boxes or self.k * math.prod(self.size))
        place, size, top, left, colour = draw_parts(noise, images, 0, math.prod(self.grid), *[boxes] * 3, colours)
        groups, _ = free_groups(place, None, images, self.k)
        bits = corners(colour, self.lanes, self.k, colours // self.lanes // self.k)
        if boxes:
            last = self._last_boxes(size, top, left)[:, None].expand(-1, self.lanes, -1, -1)
            bits = F.pad(bits, (1, 0)).gather(3, last)  # an uncovered cell is 0
        return Candidate(groups, bits)

    def _last_boxes(self, size: Tensor, top: Tensor, left: Tensor) -> Tensor:
        """(B, k, cells), the uppermost box, from 1; 0: none. `size`, `top`, `left`: (B, k * n), random numbers."""
        (kh, kw), (count, boxes), device = self.size, size.shape, size.device
        most = [max(math.ceil(math.sqrt(edge)) - 1, 1) for edge in self.size]
        size, top, left = (draw[..., None, None] for draw in (size, top, left))
        height, width = 1 + _whole(size, most[0]), 1 + _whole(size, most[1])
        i, j = torch.arange(most[0], device=device)[:, None], torch.arange(most[1], device=device)
        row = (_whole(top, kh - height + 1) + i).clamp(max=kh - 1)
        cell = row * kw + (_whole(left, kw - width + 1) + j).clamp(max=kw - 1)  # (B, k * n, *most)
        order = torch.arange(boxes, device=device).view(-1, 1, 1) % (boxes // self.k) + 1
        order = order * ((i < height) & (j < width))
        blank = torch.zeros(count, self.k, kh * kw, dtype=torch.int64, device=device)
        return blank.scatter_reduce(2, cell.view(count, self.k, -1), order.view(count, self.k, -1), "amax")

    def after(self, kept: Candidate, images: Images, it: Tensor, noise: Noise) -> Candidate:
        crowded = self.k > 1 or images.usable is not None
        sizes = self.k, 2 * self.k, 4, self.lanes * TRIES, math.prod(self.grid) * crowded
        slot, shift, box, colour, place = draw_parts(noise, images, it, *sizes)
        moved = slot.argsort(1).argsort(1) < self.count[it][:, None]
        groups = torch.where(moved, self._shifted(kept.groups, shift, it), kept.groups)
        if crowded:
            groups = self._apart(groups, kept.groups, place, images)
        bits = self._painted(kept.bits, slot.argmin(1), box, colour, it)
        return choose(self.relocate[it], Candidate(groups, kept.bits), Candidate(kept.groups, bits))

    def _shifted(self, groups: Tensor, shift: Tensor, it: Tensor) -> Tensor:
        rows, columns = self.grid
        reach = self.reach[it][:, None]
        by = _whole(shift.view(*groups.shape, 2), 2 * reach + 1) - reach
        top = (groups // columns + by[..., 0]).clamp(0, rows - 1)
        left = (groups % columns + by[..., 1]).clamp(0, columns - 1)
        return top * columns + left

    def _apart(self, groups: Tensor, before: Tensor, place: Tensor, images: Images) -> Tensor:
        """Groups at the position of another one, old or new, or at an unusable one, go to a random free position."""
        itself = torch.eye(self.k, dtype=torch.bool, device=groups.device)
        on_old = ((groups[:, :, None] == before[:, None]) & ~itself).any(2)
        on_new = (groups[:, :, None] == groups[:, None]).tril(-1).any(2)
        wrong = on_old | on_new
        if images.usable is not None:
            wrong |= ~images.usable.flatten(1).gather(1, groups)
        fresh, free = free_groups(place, torch.cat([before, groups], 1), images, self.k)
        nth = (wrong.cumsum(1) - 1).clamp(min=0)
        instead = torch.where(free.gather(1, nth), fresh.gather(1, nth), before)  # if none is free, stay
        return torch.where(wrong, instead, groups)

    def _painted(self, bits: Tensor, slot: Tensor, box: Tensor, colour: Tensor, it: Tensor) -> Tensor:
        (kh, kw), sides, level, device = self.size, self.sides[it], self.level[it], bits.device
        cell = self.begin[level, _whole(box[:, 0], self.choices[level])]
        first = torch.stack([cell // kw, cell % kw], 1)
        if self.outward:
            first = first - (sides - 1) * (box[:, 1:3] < 0.5)
        top, left = first[:, :, None].unbind(1)
        height, width = sides[:, :, None].unbind(1)
        i, j = torch.arange(kh, device=device), torch.arange(kw, device=device)
        rows, columns = (i >= top) & (i < top + height), (j >= left) & (j < left + width)
        inside = (rows[:, :, None] & columns[:, None]).view(-1, 1, 1, kh * kw)
        mine = (torch.arange(self.k, device=device) == slot[:, None])[:, None, :, None]

        lane = torch.arange(self.lanes, device=device)
        now = bits[torch.arange(len(bits), device=device)[:, None], lane, slot[:, None], cell[:, None]]
        tries = corners(colour, self.lanes, TRIES)
        single = (sides == 1).all(1, keepdim=True)
        new = torch.where(single, _first_other(tries, tries != now[..., None]), tries[..., 0])
        flipped = now ^ (lane == _whole(box[:, 3:], self.lanes))
        new = torch.where(self.channel[it][:, None], flipped, new)
        return torch.where(inside & mine, new[:, :, None, None], bits)


def _paint(
    schedule: Schedule, pattern: Pattern, kernel: Tensor, k: int, shape: tuple[int, int, int], device: torch.device
) -> Paint:
    (c, h, w), (kh, kw), its = shape, kernel.shape, range(schedule.queries)
    rows, columns, frame = h - kh + 1, w - kw + 1, isinstance(pattern, Frame)
    reach = [(schedule.reach(it, h) * (rows > 1), schedule.reach(it, w) * (columns > 1)) for it in its]
    room = rows * columns > k
    sides = [schedule.sides(it, pattern, kh, kw) for it in its]
    one = next((it for it in its if sides[it] == (1, 1)), schedule.queries)
    levels = sorted(set(sides))
    begin = [_beginnings(kernel, (1, 1) if frame else box) for box in levels]
    return Paint(
        lanes=c,
        grid=(rows, columns),
        k=k,
        size=(kh, kw),
        outward=frame,
        relocate=torch.tensor([room and it % schedule.period == 0 and max(reach[it]) > 0 for it in its], device=device),
        count=torch.tensor([max(int(schedule.patches(it) * k), 1) for it in its], device=device),
        reach=torch.tensor(reach, device=device),
        sides=torch.tensor(sides, device=device),
        channel=torch.tensor([it >= one + (schedule.queries - one) // 2 for it in its], device=device),
        level=torch.tensor([levels.index(box) for box in sides], device=device),
        choices=torch.tensor([len(cells) for cells in begin], device=device),
        begin=pad_sequence(begin, batch_first=True).to(device),
    )


def _beginnings(kernel: Tensor, box: tuple[int, int]) -> Tensor:
    """The upper left cells, in row-major order, of all boxes that contain a cell of the pattern."""
    rows, columns = F.max_pool2d(kernel[None, None], box, stride=1)[0, 0].nonzero(as_tuple=True)
    return rows * kernel.shape[1] + columns


def draw_parts(noise: Noise, images: Images, it: Tensor | int, *sizes: int) -> tuple[Tensor, ...]:
    """The random numbers of an iteration, split into parts (B, size)."""
    return torch.split(noise.uniform(Stream.PROPOSAL, images.index, it, (sum(sizes),)), list(sizes), 1)


def corners(draw: Tensor, *shape: int) -> Tensor:
    """Random corners of the colour cube, (B, *shape) bool."""
    return draw.reshape(-1, *shape) > 0.5


def _whole(draw: Tensor, n: Tensor | int) -> Tensor:
    """Uniform on 0, ..., n - 1."""
    return torch.minimum((draw * n).long(), torch.zeros_like(draw, dtype=torch.int64) + n - 1)


def _first_other(tries: Tensor, differs: Tensor) -> Tensor:
    """(B, L), the first of the colours (B, L, TRIES) that differs in a lane; if none does, its opposite."""
    good = differs.any(1)
    first = good.int().argmax(1)[:, None, None].expand(-1, tries.shape[1], -1)
    return tries.gather(2, first)[..., 0] ^ ~good.any(1, keepdim=True)


def free_groups(draw: Tensor, taken: Tensor | None, images: Images, k: int) -> tuple[Tensor, Tensor]:
    """k random groups that are usable and not taken, and whether each exists, as there may be fewer: (B, k) each."""
    if taken is not None:
        draw = draw.scatter(1, taken, -1.0)
    if images.usable is not None:
        draw = draw.masked_fill(~images.usable.flatten(1), -1.0)
    best = draw.topk(k)
    return best.indices, best.values >= 0
