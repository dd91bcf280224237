"""Triton kernels: BatchNorm in evaluation mode with an activation, its backward pass, and random numbers.

For the first two, channels come last in memory: a row is one place of one image, with all its channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

CODES = {"none": 0, "relu": 1, "softplus": 2, "silu": 3}
ROWS, CHANNELS = 32, 64  # of a block
BLOCK = 1024  # random numbers


@triton.jit  # type: ignore[untyped-decorator]
def _forward(X, S, B, Y, rows, channels, CODE: tl.constexpr, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    r = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    c = (tl.program_id(1) * C + tl.arange(0, C))[None, :]
    here = (r < rows) & (c < channels)
    scale, shift = tl.load(S + c, mask=c < channels), tl.load(B + c, mask=c < channels)
    u = tl.load(X + r * channels + c, mask=here).to(tl.float32) * scale + shift
    if CODE == 1:
        u = tl.maximum(u, 0.0)
    if CODE == 2:
        u = tl.where(u > 20.0, u, tl.log(1.0 + tl.exp(tl.minimum(u, 20.0))))
    if CODE == 3:
        u = u * tl.sigmoid(u)
    tl.store(Y + r * channels + c, u.to(Y.dtype.element_ty), mask=here)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(G, X, S, B, D, rows, channels, CODE: tl.constexpr, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    r = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    c = (tl.program_id(1) * C + tl.arange(0, C))[None, :]
    here = (r < rows) & (c < channels)
    scale, shift = tl.load(S + c, mask=c < channels), tl.load(B + c, mask=c < channels)
    u = tl.load(X + r * channels + c, mask=here).to(tl.float32) * scale + shift
    d = tl.load(G + r * channels + c, mask=here).to(tl.float32) * scale
    if CODE == 1:
        d = tl.where(u > 0.0, d, 0.0)
    if CODE == 2:
        d = d * tl.sigmoid(u)
    if CODE == 3:
        d = d * tl.sigmoid(u) * (1.0 + u * (1.0 - tl.sigmoid(u)))
    tl.store(D + r * channels + c, d.to(D.dtype.element_ty), mask=here)


class Fused(torch.autograd.Function):
    """activation(x * factor + addend) of x (B, C, H, W) with channels last; only x has a gradient."""

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


@triton.jit  # type: ignore[untyped-decorator]
def _mixed(z, FIRST: tl.constexpr, SECOND: tl.constexpr):  # type: ignore[no-untyped-def]
    z = (z ^ (z.to(tl.uint64, bitcast=True) >> 30).to(tl.int64, bitcast=True)) * FIRST
    z = (z ^ (z.to(tl.uint64, bitcast=True) >> 27).to(tl.int64, bitcast=True)) * SECOND
    return z ^ (z.to(tl.uint64, bitcast=True) >> 31).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["seed", "stream", "step", "n"])  # type: ignore[untyped-decorator]
def _uniform(  # type: ignore[no-untyped-def]
    SEED, INDEX, STEP, OUT, seed, stream, step, n,
    SEED_AT: tl.constexpr, STEP_AT: tl.constexpr, GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    key = tl.load(SEED) if SEED_AT else seed.to(tl.int64)
    key = _mixed(key + (stream.to(tl.int64) + 1) * GOLDEN, FIRST, SECOND)
    key = _mixed(key + (tl.load(INDEX + row) + 1) * GOLDEN, FIRST, SECOND)
    at = tl.load(STEP + row) if STEP_AT else step.to(tl.int64)
    key = _mixed(key + (at + 1) * GOLDEN, FIRST, SECOND)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z = _mixed(key + (j.to(tl.int64) + 1) * GOLDEN, FIRST, SECOND)
    top = (z.to(tl.uint64, bitcast=True) >> 41).to(tl.int64, bitcast=True)
    tl.store(OUT + row.to(tl.int64) * n + j, (top.to(tl.float32) + 0.5) * (2.0**-23), mask=j < n)


def uniform(
    seed: int | Tensor, stream: int, index: Tensor, step: Tensor | int, count: int, constants: tuple[int, int, int]
) -> Tensor:
    """(B, count): the random numbers of search/noise.py, bit for bit. `constants`: those of its mixing function."""
    out = torch.empty(len(index), count, device=index.device)
    at_seed, at_step = isinstance(seed, Tensor), isinstance(step, Tensor)
    if out.numel():
        _uniform[(len(index), triton.cdiv(count, BLOCK))](
            seed if at_seed else index, index.contiguous(), step.contiguous() if isinstance(step, Tensor) else index,
            out, 0 if at_seed else seed, stream, 0 if at_step else step, count, at_seed, at_step, *constants, BLOCK,
        )  # fmt: skip
    return out
