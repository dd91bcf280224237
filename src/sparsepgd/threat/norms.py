"""Structured sparsity of a perturbation (paper, section "Formulation of Structured Sparsity").

Omega_0, the number of groups that it takes to cover the changed pixels, is a minimum set cover. It is
computed exactly, from index sets alone: this module is the independent check of attacks that spread
their groups by convolutions, so it must not use any.

A cover problem is an incidence matrix A: one row for each changed pixel, one column for each group that
holds at least one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsepgd.errors import BudgetError, PatternError, ShapeError, SparsePGDError
from sparsepgd.threat.groups import Groups
from sparsepgd.threat.patterns import Pattern

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def group_l0(delta: Tensor, pattern: Pattern) -> Tensor:
    """Omega_0 (equation gn): how few groups cover the non-zero pixels of delta (B, C, H, W). (B,), int64.

    A pixel is non-zero if any of its channels is; with a pattern per channel, each entry counts.
    """
    kernel = _kernel(delta, pattern)
    if not isinstance(kernel, Groups) and kernel.size == 1:  # single points do not overlap
        return torch.from_numpy(np.count_nonzero(_changed(delta, pattern), (1, 2, 3))).to(delta.device)
    norms = [
        sum(_minimum(_incidence(plane.nonzero(), plane.shape, kernel, b)) for plane in planes)
        for b, planes in enumerate(_changed(delta, pattern))
    ]
    return torch.tensor(norms, dtype=torch.int64, device=delta.device)


def surrogate_group_l0(delta: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    """Omega'_0 (equation gn_approx): how many groups of v hold a non-zero pixel of delta. (B,), int64.

    v is 0/1 on the grid of groups, (B, gh, gw) or (B, 1, gh, gw), or (B, C, H, W) for a pattern per
    channel. It must cover the non-zero pixels.
    """
    kernel = _kernel(delta, pattern)
    planes = _changed(delta, pattern)
    chosen = _group_mask(v, (*planes.shape[:2], *_grid(planes.shape[2:], kernel)))
    norms = np.zeros(len(planes), np.int64)
    for image, plane in np.ndindex(planes.shape[:2]):
        changed = planes[image, plane]
        groups = [_cells(kernel, i, j) for i, j in zip(*chosen[image, plane].nonzero(), strict=True)]
        norms[image] += sum(bool(changed[cells].any()) for cells in groups)
        for cells in groups:
            changed[cells] = False
        if changed.any():
            where = np.argwhere(changed)[0].tolist()
            raise BudgetError(f"image {image}: v does not cover the non-zero pixel {where}; v must cover delta")
    return torch.from_numpy(norms).to(delta.device)


def _kernel(delta: Tensor, pattern: Pattern) -> Bools | Groups:
    """The pattern's kernel (kh, kw), or its index sets, checked to fit delta."""
    if delta.dim() != 4:
        raise ShapeError(f"delta of shape {tuple(delta.shape)}; expected (B, C, H, W)")
    channels, height, width = delta.shape[1:]
    if isinstance(pattern, Groups):
        pattern.cells((channels, height, width))
        return pattern
    kernel: Bools = pattern.kernel(height, width).cpu().numpy() != 0
    if kernel.shape[0] > height or kernel.shape[1] > width:
        size = "x".join(map(str, kernel.shape))
        raise PatternError(f"{pattern} is {size}, the image {height}x{width}; use a smaller pattern")
    return kernel


def _changed(delta: Tensor, pattern: Pattern) -> Bools:
    """What is not zero, in planes that share no group: (B, C, H, W) for a pattern per channel, else (B, 1, H, W).

    For index sets one plane, (B, 1, 1, indices)."""
    changed = delta.detach().cpu() != 0
    if isinstance(pattern, Groups):
        changed = (changed if pattern.features else changed.any(1)).reshape(len(changed), 1, 1, -1)
    elif not pattern.per_channel:
        changed = changed.any(1, keepdim=True)
    planes: Bools = changed.numpy()
    return planes


def _grid(shape: tuple[int, ...], kernel: Bools | Groups) -> tuple[int, int]:
    if isinstance(kernel, Groups):
        return 1, len(kernel.sets)
    return shape[0] - kernel.shape[0] + 1, shape[1] - kernel.shape[1] + 1


def _cells(kernel: Bools | Groups, i: int, j: int) -> tuple[Ints, Ints]:
    """Rows and columns of the pixels of one group."""
    if isinstance(kernel, Groups):
        cells = np.array(kernel.sets[j])
        return np.zeros_like(cells), cells
    a, b = kernel.nonzero()
    return i + a, j + b


def _group_mask(v: Tensor, shape: tuple[int, ...]) -> Bools:
    batch, planes, gh, gw = shape
    if tuple(v.shape) != shape and not (planes == 1 and tuple(v.shape) == (batch, gh, gw)):
        raise ShapeError(f"v of shape {tuple(v.shape)}; expected {shape}, one entry per group")
    odd = v[(v != 0) & (v != 1)]
    if odd.numel():
        raise BudgetError(f"v holds {odd[0].item():g}; every entry must be 0 or 1, e.g. (v > 0.5)")
    chosen: Bools = (v != 0).cpu().reshape(shape).numpy()
    return chosen


def _incidence(pixels: tuple[Ints, ...], shape: tuple[int, ...], kernel: Bools | Groups, image: int) -> csr_array:
    """A for the pixels (rows, columns) of an image: which positions of the kernel's corner reach each."""
    if isinstance(kernel, Groups):
        return _listed_incidence(pixels[1], kernel, image)
    (y, x), (a, b) = pixels, kernel.nonzero()
    gh, gw = _grid(shape, kernel)
    i, j = y[:, None] - a, x[:, None] - b  # (pixels, ones of the kernel)
    pixel, one = ((i >= 0) & (i < gh) & (j >= 0) & (j < gw)).nonzero()
    reached = np.bincount(pixel, minlength=len(y)) > 0
    if not reached.all():
        where = [int(y[~reached][0]), int(x[~reached][0])]
        raise BudgetError(f"image {image}: no group covers the changed pixel {where}; leave that pixel unchanged")
    group = i[pixel, one] * gw + j[pixel, one]
    used = np.zeros(gh * gw, bool)
    used[group] = True
    return _matrix(pixel, (used.cumsum() - 1)[group], (len(y), int(used.sum())))


def _listed_incidence(pixels: Ints, groups: Groups, image: int) -> csr_array:
    """A for some indices: which sets hold each."""
    row = {index: i for i, index in enumerate(pixels.tolist())}
    held = [some for one in groups.sets if (some := [row[index] for index in one if index in row])]
    pairs = [(i, j) for j, some in enumerate(held) for i in some]
    rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
    bare = np.setdiff1d(np.arange(len(pixels)), rows)
    if len(bare):
        raise BudgetError(f"image {image}: the changed index {pixels[bare[0]]} is in no group; leave it unchanged")
    return _matrix(rows, columns, (len(pixels), len(held)))


def _matrix(rows: Ints, columns: Ints, shape: tuple[int, int]) -> csr_array:
    from scipy.sparse import csr_array  # half a second to import

    return csr_array((np.ones(len(rows), np.int32), (rows, columns)), shape=shape)


def _minimum(A: csr_array) -> int:
    """The least number of columns that cover all rows: split A into parts, bound each, solve the rest."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    if (np.diff(A.indptr) == 1).all():  # groups do not overlap: pixels, rows, columns
        return len(np.unique(A.indices))
    pixels = A.shape[0]
    tail = np.full(A.shape[1], A.nnz)
    graph = csr_array((A.data, A.indices + pixels, np.concatenate((A.indptr, tail))), shape=(sum(A.shape),) * 2)
    parts, label = connected_components(graph, directed=False)
    row_part, column_part = label[:pixels], label[pixels:]
    upper = np.bincount(column_part[_greedy(A)], minlength=parts)
    largest = np.zeros(parts, np.int64)
    np.maximum.at(largest, column_part, np.bincount(A.indices))
    lower = np.maximum(np.bincount(row_part[_independent(A)], minlength=parts), -(-np.bincount(row_part) // largest))
    total = int(lower.sum())
    for part in (lower < upper).nonzero()[0]:
        total += _exact(A[row_part == part][:, column_part == part]) - int(lower[part])
    return total


def _greedy(A: csr_array) -> list[int]:
    """Columns that cover all rows, the one that covers most first: an upper bound."""
    groups, bare = A.T.tocsr(), np.ones(A.shape[0], bool)
    gain = np.diff(groups.indptr).astype(np.int64)
    chosen = []
    while bare.any():
        best = int(gain.argmax())
        pixels = groups.indices[groups.indptr[best] : groups.indptr[best + 1]]
        pixels = pixels[bare[pixels]]
        bare[pixels] = False
        np.subtract.at(gain, A[pixels].indices, 1)
        chosen.append(best)
    return chosen


def _independent(A: csr_array) -> list[int]:
    """Rows of which no two share a column, those with few columns first: a lower bound."""
    taken = np.zeros(A.shape[1], bool)
    chosen = []
    for pixel in np.argsort(np.diff(A.indptr), kind="stable").tolist():
        groups = A.indices[A.indptr[pixel] : A.indptr[pixel + 1]]
        if not taken[groups].any():
            taken[groups] = True
            chosen.append(pixel)
    return chosen


def _exact(A: csr_array) -> int:
    """The least cover of one connected part, as a 0/1 program."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, seldom needed

    result = milp(
        np.ones(A.shape[1]),
        constraints=LinearConstraint(A, lb=1),
        integrality=1,
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0},
    )
    if not result.success:
        raise SparsePGDError(f"no cover of {A.shape[0]} pixels by {A.shape[1]} groups: {result.message}")
    fewest: int = round(result.fun)
    return fewest
