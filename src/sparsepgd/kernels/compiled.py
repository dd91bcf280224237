"""The kernels: BatchNorm in evaluation mode with an activation, and its backward pass; random numbers; the k largest
values; perturbations clipped to the box; perturbed images; rows that overwrite others. Those of variations.py and
verdicts.py are exported too.

Each is compiled once per dtype: values that differ between calls are arguments, not constants.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from sparsepgd.kernels import EAGER, SPLITMIX
from sparsepgd.kernels.variations import POINTS, UNROLLED, varied
from sparsepgd.kernels.verdicts import CLASSES, judged

__all__ = [
    "CLASSES", "MOST", "POINTS", "UNROLLED", "Fused", "clip", "judged", "put", "render", "top_k", "uniform", "varied",
]  # fmt: skip

CODES = {name: code for code, name in enumerate(EAGER)}
ROWS, CHANNELS = 32, 64  # of a block
BLOCK = 1024  # of random numbers, or entries of images
ROUNDER = tl.constexpr(1.5 * 2**23)  # a float32 plus this, minus this: rounded, halves to even
MOST = 1 << 18  # largest number of values for `top_k`
HELD, PART = 16384, 8192  # values that one block holds; more values are read in parts


# BatchNorm and activation. Channels are last in memory: a row is one position of one image, with all its channels.


@triton.jit(do_not_specialize=["rows", "code"])  # type: ignore[untyped-decorator]
def _forward(X, S, B, Y, rows, channels, code, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    r = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    c = (tl.program_id(1) * C + tl.arange(0, C))[None, :]
    here = (r < rows) & (c < channels)
    scale, shift = tl.load(S + c, mask=c < channels), tl.load(B + c, mask=c < channels)
    u = tl.load(X + r * channels + c, mask=here).to(tl.float32) * scale + shift
    if code == 1:
        u = tl.maximum(u, 0.0)
    if code == 2:
        u = tl.where(u > 20.0, u, tl.log(1.0 + tl.exp(tl.minimum(u, 20.0))))
    if code == 3:
        u = u * tl.sigmoid(u)
    tl.store(Y + r * channels + c, u.to(Y.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["rows", "code"])  # type: ignore[untyped-decorator]
def _backward(G, X, S, B, D, rows, channels, code, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    r = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    c = (tl.program_id(1) * C + tl.arange(0, C))[None, :]
    here = (r < rows) & (c < channels)
    scale, shift = tl.load(S + c, mask=c < channels), tl.load(B + c, mask=c < channels)
    u = tl.load(X + r * channels + c, mask=here).to(tl.float32) * scale + shift
    d = tl.load(G + r * channels + c, mask=here).to(tl.float32) * scale
    if code == 1:
        d = tl.where(u > 0.0, d, 0.0)
    if code == 2:
        d = d * tl.sigmoid(u)
    if code == 3:
        d = d * tl.sigmoid(u) * (1.0 + u * (1.0 - tl.sigmoid(u)))
    tl.store(D + r * channels + c, d.to(D.dtype.element_ty), mask=here)


class Fused(torch.autograd.Function):
    """activation(x * factor + addend) for x (B, C, H, W) with channels last. Only x has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, addend: Tensor, name: str) -> Tensor:
        out = torch.empty_like(x)
        ctx.save_for_backward(x, factor, addend)
        ctx.name = name
        _forward[_grid(x)](x, factor, addend, out, *_sizes(x), CODES[name], ROWS, CHANNELS)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, factor, addend = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(x)
        _backward[_grid(x)](gradient, x, factor, addend, out, *_sizes(x), CODES[ctx.name], ROWS, CHANNELS)
        return out, None, None, None


def _sizes(x: Tensor) -> tuple[int, int]:
    return x.numel() // max(x.shape[1], 1), x.shape[1]


def _grid(x: Tensor) -> tuple[int, int]:
    rows, channels = _sizes(x)
    return triton.cdiv(rows, ROWS), triton.cdiv(channels, CHANNELS)


# Random numbers


@triton.jit  # type: ignore[untyped-decorator]
def _mixed(z, FIRST: tl.constexpr, SECOND: tl.constexpr):  # type: ignore[no-untyped-def]
    z = (z ^ (z.to(tl.uint64, bitcast=True) >> 30).to(tl.int64, bitcast=True)) * FIRST
    z = (z ^ (z.to(tl.uint64, bitcast=True) >> 27).to(tl.int64, bitcast=True)) * SECOND
    return z ^ (z.to(tl.uint64, bitcast=True) >> 31).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["seed", "stream", "left", "n"])  # type: ignore[untyped-decorator]
def _uniform(  # type: ignore[no-untyped-def]
    SEED, INDEX, STEP, OUT, seed, stream, left, n,
    SEED_AT: tl.constexpr, GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    key = tl.load(SEED) if SEED_AT else seed.to(tl.int64)
    key = _mixed(key + (stream.to(tl.int64) + 1) * GOLDEN, FIRST, SECOND)
    key = _mixed(key + (tl.load(INDEX + row) + 1) * GOLDEN, FIRST, SECOND)
    key = _mixed(key + (tl.load(STEP + row) + 1) * GOLDEN, FIRST, SECOND)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z = _mixed(key + (j.to(tl.int64) + 1) * GOLDEN, FIRST, SECOND) << left.to(tl.int64)
    top = (z.to(tl.uint64, bitcast=True) >> 41).to(tl.int64, bitcast=True)
    tl.store(OUT + row.to(tl.int64) * n + j, (top.to(tl.float32) + 0.5) * (2.0**-23), mask=j < n)


def uniform(seed: int | Tensor, stream: int, index: Tensor, step: Tensor, left: int, count: int) -> Tensor:
    """(B, count), the random numbers of search/noise.py, bit for bit. `left`: the bits are shifted left by so many."""
    out = torch.empty(len(index), count, device=index.device)
    at_seed = isinstance(seed, Tensor)
    if out.numel():
        _uniform[(len(index), triton.cdiv(count, BLOCK))](
            seed if at_seed else index, index.contiguous(), step.contiguous(), out, 0 if at_seed else seed, stream,
            left, count, at_seed, *SPLITMIX, BLOCK,
        )  # fmt: skip
    return out


# The k largest


@triton.jit  # type: ignore[untyped-decorator]
def _ranked(SCORE, USABLE, place, n, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of the values without the sign, which are ordered like them; -1: not usable, -2: beyond the end."""
    bits = tl.load(SCORE + place, mask=place < n, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if MASKED:
        bits = tl.where(tl.load(USABLE + place, mask=place < n, other=0) != 0, bits, -1)
    return tl.where(place < n, bits, -2)


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
def _top_k(SCORE, USABLE, COUNT, OUT, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of the smallest chosen value are found one by one, the highest first. Of the values equal to it, the
    first ones are chosen until there are enough."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    bits = _ranked(SCORE + row * n, USABLE + row * n, place, n, MASKED)
    count = tl.load(COUNT + row).to(tl.int32)
    last = 0
    for i in range(31):
        higher = last | (1 << (30 - i))
        last = tl.where(tl.sum((bits >= higher).to(tl.int32)) >= count, higher, last)
    last = tl.where(tl.sum((bits >= 0).to(tl.int32)) >= count, last, -1)
    above, equal = bits > last, bits == last
    enough = tl.cumsum(equal.to(tl.int32), 0) <= count - tl.sum(above.to(tl.int32))
    tl.store(OUT + row * n + place, (above | (equal & enough)).to(tl.float32), mask=place < n)


@triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
def _top_k_of_many(  # type: ignore[no-untyped-def]
    SCORE, USABLE, COUNT, OUT, n, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    """The same for more values than one block holds: they are read again for every three bits, a digit from 0 to 7. Of
    the values that begin like the smallest chosen one, those with each next digit are counted: eight counts of six
    bits in one number, because a place has at most MOST / PART values."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    SCORE, USABLE, OUT = SCORE + row * n, USABLE + row * n, OUT + row * n
    count = tl.load(COUNT + row).to(tl.int32)
    usable = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        usable += (_ranked(SCORE, USABLE, start + place, n, MASKED) >= 0).to(tl.int32)
    last, larger = 0, 0  # the smallest chosen value, and the number of larger ones
    for i in range(11):
        shift = 30 - 3 * i
        counted = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, n, BLOCK):
            digit = (_ranked(SCORE, USABLE, start + place, n, MASKED) >> shift) - (last >> shift)
            alike = (digit >= 0) & (digit < 8)
            counted += alike.to(tl.int64) << (6 * tl.where(alike, digit, 0))
        most = 0
        for j in tl.static_range(7, 0, -1):
            found = tl.sum(((counted >> (6 * j)) & 63).to(tl.int32))
            here = (most == 0) & (found > 0) & (larger + found >= count)
            most = tl.where(here, j, most)
            larger += tl.where(most == 0, found, 0)
        last = last | (most << shift)
    few = tl.sum(usable) < count
    last = tl.where(few, -1, last)
    room = count - tl.where(few, tl.sum(usable), larger)
    taken = 0
    for start in range(0, n, BLOCK):
        bits = _ranked(SCORE, USABLE, start + place, n, MASKED)
        equal = (bits == last).to(tl.int32)
        enough = taken + tl.cumsum(equal, 0) <= room
        chosen = (bits > last) | ((bits == last) & enough)
        tl.store(OUT + start + place, chosen.to(tl.float32), mask=start + place < n)
        taken += tl.sum(equal)


def top_k(score: Tensor, usable: Tensor | None, count: Tensor) -> Tensor:
    """(B, n) float32: 1 on the `count` (B,) largest absolute values of score (B, n) float32, n <= MOST, where `usable`
    (B, n) is true; 0 elsewhere. Of equal values the first one wins, as in Threat.top_k."""
    out, n = torch.empty_like(score), score.shape[1]
    block = triton.next_power_of_2(n)
    if out.numel():
        where = score if usable is None else usable.contiguous().view(torch.uint8)
        inputs = score, where, count.contiguous(), out, n, usable is not None
        if block <= HELD:
            _top_k[(len(score),)](*inputs, block, num_warps=4 if block <= 1024 else 8)
        else:
            _top_k_of_many[(len(score),)](*inputs, PART, num_warps=16)
    return out


# Perturbations within the box


@triton.jit  # type: ignore[untyped-decorator]
def _clip(P, X, LOW, HIGH, OUT, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, p = tl.load(X + i, mask=i < n), tl.load(P + i, mask=i < n)
    low, high = tl.load(LOW + i, mask=i < n), tl.load(HIGH + i, mask=i < n)
    p = tl.maximum(p, low - x, propagate_nan=tl.PropagateNan.ALL)
    p = tl.minimum(p, high - x, propagate_nan=tl.PropagateNan.ALL)
    tl.store(OUT + i, p, mask=i < n)


def clip(p: Tensor, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """p.clamp(low - x, high - x) of float32 tensors with one shape; the result is contiguous."""
    p, x, low, high = (one.expand_as(p).contiguous() for one in (p, x, low, high))
    out = torch.empty_like(p)
    if out.numel():
        _clip[(triton.cdiv(out.numel(), BLOCK),)](p, x, low, high, out, out.numel(), BLOCK)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _render(P, MASK, X, LOW, HIGH, OUT, entries, size, levels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here, i = j < entries, row * entries + j
    x = tl.load(X + i, mask=here)
    moved = x + tl.load(P + i, mask=here)
    on_grid = tl.div_rn((moved * levels + ROUNDER) - ROUNDER, tl.maximum(levels, 1.0))
    moved = tl.where(levels > 0, on_grid, moved)
    moved = tl.maximum(moved, tl.load(LOW + i, mask=here), propagate_nan=tl.PropagateNan.ALL)
    moved = tl.minimum(moved, tl.load(HIGH + i, mask=here), propagate_nan=tl.PropagateNan.ALL)
    chosen = tl.load(MASK + row * size + j % size, mask=here, other=0) > 0
    tl.store(OUT + i, tl.where(chosen, moved, x), mask=here)


def render(p: Tensor, mask: Tensor, x: Tensor, low: Tensor, high: Tensor, levels: int) -> Tensor:
    """x + p, float32 (B, C, H, W), where mask (B, 1 or C, H, W) > 0, clipped to low and high, and x elsewhere.
    `levels`: of the grid to which x + p is rounded; 0: no rounding."""
    p, x, low, high = (one.expand_as(x).contiguous() for one in (p, x, low, high))
    mask = mask.contiguous().view(torch.uint8) if mask.dtype == torch.bool else mask.contiguous()
    out, entries = torch.empty_like(x), x[0].numel() if len(x) else 0
    if out.numel():
        _render[(len(x), triton.cdiv(entries, BLOCK))](
            p, mask, x, low, high, out, entries, mask[0].numel(), float(levels), BLOCK, enable_fp_fusion=False
        )
    return out


# Rows that overwrite others


@triton.jit(do_not_specialize=["entries"])  # type: ignore[untyped-decorator]
def _put(WHICH, NEW, INTO, entries, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = j < tl.where(tl.load(WHICH + row) != 0, entries, 0)
    tl.store(INTO + row * entries + j, tl.load(NEW + row * entries + j, mask=here), mask=here)


def put(which: Tensor, new: Tensor, into: Tensor) -> Tensor:
    """Where which (B,) is true, overwrite the rows of into (B, ...), float32 and contiguous, by those of new."""
    entries = into[0].numel() if len(into) else 0
    if into.numel():
        grid = len(into), triton.cdiv(entries, BLOCK)
        _put[grid](which.contiguous().view(torch.uint8), new.contiguous(), into, entries, BLOCK)
    return into
