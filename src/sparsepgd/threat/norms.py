"""Structured sparsity of a perturbation (paper, section "Formulation of Structured Sparsity").

Omega_0, the number of groups needed to cover the changed pixels, is a minimum set cover. It is computed exactly, from
index sets only: this module independently checks attacks that expand groups by convolution, so it must not use any.

It builds no table of all groups and all pixels, which for a shape of 60x60 on a photograph would take gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsepgd.errors import BudgetError, PatternError, ShapeError, SparsePGDError
from sparsepgd.threat.groups import Groups
from sparsepgd.threat.patterns import Pattern

Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
WHOLE = 1_000_000  # largest table of pixels and groups for one 0/1 program, in entries


def group_l0(delta: Tensor, pattern: Pattern) -> Tensor:
    """Omega_0 (equation gn): the fewest groups that cover the non-zero pixels of delta (B, C, H, W). (B,), int64.

    A pixel is non-zero if any of its channels is; with a pattern per channel, each entry counts.
    """
    groups, planes = _groups(delta, pattern), _changed(delta, pattern)
    if isinstance(groups, Sliding) and groups.kernel.size == 1:  # single points do not overlap
        return torch.from_numpy(np.count_nonzero(planes, (1, 2, 3))).to(delta.device)
    bare = planes & (groups.holding(np.ones(groups.grid, bool)) == 0)
    if bare.any():
        image, _, *place = np.argwhere(bare)[0].tolist()
        raise BudgetError(f"image {image}: {groups.bare(place)}; leave it unchanged")
    norms = [sum(_fewest(*part) for plane in image for part in groups.parts(plane)) for image in planes]
    return torch.tensor(norms, dtype=torch.int64, device=delta.device)


def surrogate_group_l0(delta: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    """Omega'_0 (equation gn_approx): how many groups of v contain a non-zero pixel of delta. (B,), int64.

    v is 0/1 on the grid of groups, (B, gh, gw) or (B, 1, gh, gw), or (B, C, H, W) for a pattern per
    channel. It must cover the non-zero pixels.
    """
    groups, planes = _groups(delta, pattern), _changed(delta, pattern)
    chosen = _group_mask(v, (*planes.shape[:2], *groups.grid))
    norms = np.zeros(len(planes), np.int64)
    for image, plane in np.ndindex(planes.shape[:2]):
        norms[image] += np.count_nonzero(groups.held(planes[image, plane])[chosen[image, plane]])
        bare = planes[image, plane] & (groups.holding(chosen[image, plane]) == 0)
        if bare.any():
            where = np.argwhere(bare)[0].tolist()
            raise BudgetError(f"image {image}: v does not cover the non-zero pixel {where}; v must cover delta")
    return torch.from_numpy(norms).to(delta.device)


class Sliding:
    """The groups of a kernel that slides over images (H, W).

    The kernel is represented by its corners (its second differences); a rectangle has four. Sums over the pixels of
    every group are then sums of a few shifted tables.
    """

    def __init__(self, kernel: Bools, shape: tuple[int, ...]) -> None:
        self.kernel, self.shape = kernel, shape
        self.grid = gh, gw = shape[0] - kernel.shape[0] + 1, shape[1] - kernel.shape[1] + 1
        corners = np.diff(np.diff(np.pad(kernel, 1).astype(np.int32), axis=0), axis=1)
        places = zip(*(axis.tolist() for axis in corners.nonzero()), strict=True)
        self.corners = [((slice(i, i + gh), slice(j, j + gw)), corners[i, j]) for i, j in places]

    def parts(self, pixels: Bools) -> Iterator[tuple[Sliding, Bools]]:
        """The pixels, split into parts that share no group, each with the image around it."""
        from scipy.ndimage import find_objects, label  # half a second to import

        kh, kw = self.kernel.shape
        box = Sliding(np.ones((kh, kw), bool), (self.shape[0] + kh - 1, self.shape[1] + kw - 1))
        near = label(box.holding(pixels))[0]  # boxes that begin at pixels with a common group overlap
        for number, (rows, columns) in enumerate(find_objects(near), 1):
            around = slice(max(rows.start - kh + 1, 0), rows.stop), slice(max(columns.start - kw + 1, 0), columns.stop)
            part = pixels[around] & (near[: self.shape[0], : self.shape[1]][around] == number)
            yield Sliding(self.kernel, part.shape), part

    def held(self, pixels: Bools) -> Ints:
        """(gh, gw): how many of the pixels (H, W) each group contains."""
        sums = np.pad(pixels, ((1, 0), (1, 0))).cumsum(0, np.int32).cumsum(1, np.int32)
        found = np.zeros(self.grid, np.int32)
        for place, weight in self.corners:
            found += weight * sums[place]
        return found

    def holding(self, chosen: Bools) -> Ints:
        """(H, W): how many of the chosen groups (gh, gw) contain each pixel."""
        steps = np.zeros((self.shape[0] + 1, self.shape[1] + 1), np.int32)
        for place, weight in self.corners:
            steps[place] += weight * chosen
        return steps.cumsum(0, np.int32).cumsum(1, np.int32)[:-1, :-1]

    def bare(self, place: list[int]) -> str:
        return f"no group covers the changed pixel {place}"


class Listed:
    """Groups that are index sets: one row of groups over one row of pixels."""

    def __init__(self, sets: tuple[tuple[int, ...], ...], cells: int) -> None:
        self.shape, self.grid = (1, cells), (1, len(sets))
        self.sizes, self.cells = np.array([len(one) for one in sets]), np.concatenate([np.array(one) for one in sets])

    def parts(self, pixels: Bools) -> Iterator[tuple[Listed, Bools]]:
        yield self, pixels

    def held(self, pixels: Bools) -> Ints:
        starts = self.sizes.cumsum() - self.sizes
        return np.add.reduceat(pixels[0, self.cells], starts, dtype=np.int32)[None]

    def holding(self, chosen: Bools) -> Ints:
        return np.bincount(self.cells[chosen[0].repeat(self.sizes)], minlength=self.shape[1])[None]

    def bare(self, place: list[int]) -> str:
        return f"the changed index {place[1]} is in no group"


def _groups(delta: Tensor, pattern: Pattern) -> Sliding | Listed:
    """The groups of the pattern in images like delta; an error if the pattern does not fit."""
    if delta.dim() != 4:
        raise ShapeError(f"delta of shape {tuple(delta.shape)}; expected (B, C, H, W)")
    channels, height, width = delta.shape[1:]
    if isinstance(pattern, Groups):
        return Listed(pattern.sets, pattern.cells((channels, height, width)))
    kernel: Bools = pattern.kernel(height, width).cpu().numpy() != 0
    if kernel.shape[0] > height or kernel.shape[1] > width:
        size = "x".join(map(str, kernel.shape))
        raise PatternError(f"{pattern} is {size}, the image {height}x{width}; use a smaller pattern")
    return Sliding(kernel, (height, width))


def _changed(delta: Tensor, pattern: Pattern) -> Bools:
    """The non-zero entries, in planes that share no group: (B, C, H, W) for a pattern per channel, else (B, 1, H, W).

    For index sets there is one plane, (B, 1, 1, indices)."""
    changed = delta.detach().cpu() != 0
    if isinstance(pattern, Groups):
        changed = (changed if pattern.features else changed.any(1)).reshape(len(changed), 1, 1, -1)
    elif not pattern.per_channel:
        changed = changed.any(1, keepdim=True)
    planes: Bools = changed.numpy()
    return planes


def _group_mask(v: Tensor, shape: tuple[int, ...]) -> Bools:
    batch, planes, gh, gw = shape
    if tuple(v.shape) != shape and not (planes == 1 and tuple(v.shape) == (batch, gh, gw)):
        raise ShapeError(f"v of shape {tuple(v.shape)}; expected {shape}, one entry per group")
    odd = v[(v != 0) & (v != 1)]
    if odd.numel():
        raise BudgetError(f"v holds {odd[0].item():g}; every entry must be 0 or 1, e.g. (v > 0.5)")
    chosen: Bools = (v != 0).cpu().reshape(shape).numpy()
    return chosen


def _fewest(groups: Sliding | Listed, pixels: Bools) -> int:
    """The smallest number of groups that cover the pixels: by two bounds if they agree, otherwise by a 0/1 program."""
    upper = _greedy(groups, pixels)
    if upper <= 1:
        return upper
    apart, most = _apart(groups, pixels), int(groups.held(pixels).max())
    lower = max(len(apart), -(-np.count_nonzero(pixels) // most))
    return upper if lower == upper else _exact(groups, pixels, apart, upper)


def _greedy(groups: Sliding | Listed, pixels: Bools) -> int:
    """Number of groups that a greedy cover of the pixels takes: an upper bound."""
    bare, count = pixels, 0
    while bare.any():
        bare = bare & (groups.holding(_only(groups.grid, int(groups.held(bare).argmax()))) == 0)
        count += 1
    return count


def _apart(groups: Sliding | Listed, pixels: Bools) -> list[int]:
    """Pixels of which no two share a group, those in few groups first: a lower bound."""
    free, often = pixels, groups.holding(np.ones(groups.grid, bool))
    chosen = []
    while free.any():
        chosen.append(int(np.where(free, often, often.max() + 1).argmin()))
        free = free & (groups.holding(groups.held(_only(groups.shape, chosen[-1])) > 0) == 0)
    return chosen


def _exact(groups: Sliding | Listed, pixels: Bools, some: list[int], upper: int) -> int:
    """The smallest cover by a 0/1 program. If there are many pixels, it begins with some of them and adds uncovered
    ones until all are covered, or until as many groups are needed as are known to suffice."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import

    worth = groups.held(pixels).ravel()
    if np.count_nonzero(pixels) * len(worth) <= WHOLE:
        some = pixels.ravel().nonzero()[0].tolist()
    by_worth = np.argsort(-worth, kind="stable")[: np.count_nonzero(worth)]
    rows = np.zeros((0, len(by_worth)), bool)  # which groups hold each of these pixels
    while True:
        fresh = [groups.held(_only(groups.shape, pixel)).ravel()[by_worth] > 0 for pixel in some]
        rows = np.concatenate((rows, fresh))
        unlike = np.sort(np.unique(np.packbits(rows, axis=0), axis=1, return_index=True)[1])
        program = LinearConstraint(rows[:, unlike].astype(float), lb=1)
        options = {"mip_rel_gap": 0}
        result = milp(np.ones(len(unlike)), constraints=program, integrality=1, bounds=Bounds(0, 1), options=options)
        if not result.success:
            raise SparsePGDError(f"no cover of {len(rows)} pixels by {len(unlike)} groups: {result.message}")
        chosen = np.zeros(groups.grid, bool)
        chosen.flat[by_worth[unlike[result.x > 0.5]]] = True
        count, bare = int(chosen.sum()), pixels & (groups.holding(chosen) == 0)
        if count == upper or not bare.any():
            return count
        some = _apart(groups, bare)


def _only(shape: tuple[int, ...], place: int) -> Bools:
    one = np.zeros(shape, bool)
    one.flat[place] = True
    return one
