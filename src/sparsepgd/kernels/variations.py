"""A random variation of the changed points of an image: `varied` of search/random_search/clusters.py in one kernel."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

POINTS = 4096  # largest number for an image: one block holds all of them
UNROLLED = 16  # largest number of channels: compiling the kernel takes about a second for each of them


@triton.jit(do_not_specialize=["height", "width", "drawn", "most"])  # type: ignore[untyped-decorator]
def _varied(  # type: ignore[no-untyped-def]
    MASK, VALUE, X, LOW, HIGH, USABLE, PLACE, OTHER, COLOUR, COIN, SIDE, SINGLE, K, NEW_MASK, NEW_VALUE,
    height, width, drawn, most, eps, anywhere, copied, tuned, learnt, weakest,
    MASKED: tl.constexpr, LANES: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One image. Names are those of `varied`. `i`: points of the grid, (BLOCK,). `j`: channels, (WIDE,). LANES: 1, or
    the number of channels if they count separately."""
    row, size = tl.program_id(0).to(tl.int64), height * width
    points, i, j = LANES * size, tl.arange(0, BLOCK), tl.arange(0, WIDE)
    MASK, NEW_MASK, USABLE = MASK + row * points, NEW_MASK + row * points, USABLE + row * points
    start = row * CHANNELS * size
    VALUE, X, LOW, HIGH, NEW_VALUE = VALUE + start, X + start, LOW + start, HIGH + start, NEW_VALUE + start
    c, h, w = i // size, i // width % height, i % width
    usable = i < points
    mask = tl.load(MASK + i, mask=usable, other=0) != 0
    place = tl.load(PLACE + row * drawn + i, mask=usable, other=0.5)
    other = tl.load(OTHER + row * drawn + i, mask=usable, other=0.5)
    COIN = COIN + row * drawn
    single, side = tl.load(SINGLE + row) != 0, tl.load(SIDE + row).to(tl.int32)
    strong = tl.load(COIN + 2)

    # old: a random changed point
    # new (`_crowd`, `_place` of clusters.py): a random free point; a single one is often beside changed points
    tune = (tl.load(COIN) < tuned) & single & (tl.sum(mask.to(tl.int32)) > 0)
    old = tl.argmax(tl.where(usable, tl.where(mask, other, 0.0), -1.0), 0)
    near = tl.zeros((BLOCK,), tl.float32)
    for beside in range(9):
        down, right = beside // 3 - 1, beside % 3 - 1
        inside = usable & (h + down >= 0) & (h + down < height) & (w + right >= 0) & (w + right < width)
        near += tl.load(MASK + i + down * width + right, mask=inside, other=0).to(tl.float32)
    if MASKED:
        usable = usable & (tl.load(USABLE + i, mask=usable, other=0) != 0)
    free = usable & (mask == 0)
    near = tl.where(free, tl.div_rn(near, 9.0), 0.0)
    near = tl.div_rn(near, tl.maximum(tl.sum(near), 1e-9))
    share = tl.where(single, 1 - anywhere, 0.0)
    race = tl.div_rn(tl.log(place), tl.div_rn(1 - share, points.to(tl.float32)) + share * near)
    race = tl.where(free, race, -1e30 * (2 - place))
    new = tl.argmax(tl.where(usable, race, float("-inf")), 0)

    # the mask (`_square`, `_dropped`): the square is added; if there are then too many points, others that are nearest
    # to the old point are reset
    corner = tl.where(tune, old, new)
    top, left = corner // width % height, corner % width
    added = usable & (c == corner // size) & (h >= top) & (h < top + side) & (w >= left) & (w < left + side)
    excess = tl.sum((mask | added).to(tl.int32)) - tl.load(K + row).to(tl.int32)
    away = tl.abs(h - old // width % height) + tl.abs(w - old % width) + (c != old // size) * (height + width)
    may_go = mask & (added == 0)
    nearest = tl.where(may_go, -away.to(tl.float32) - other / 2, float("-inf"))
    for _ in range(tl.minimum(excess, most)):
        nearest = tl.where(i == tl.argmax(nearest, 0), float("-inf"), nearest)
    stays = (mask | added) & ((may_go & (nearest == float("-inf"))) == 0)
    tl.store(NEW_MASK + i, stays.to(tl.uint8), mask=i < points)

    # the colour (WIDE,) of the square: a fresh one, that of the neighbours, or that of the old point
    # fresh (`_fresh`, `_with_room`): random signs, of any size or about that of the old point
    real = j < CHANNELS
    shown = tl.load(VALUE + j * size + old % size, mask=real, other=0.0)
    strength = tl.max(tl.abs(shown), 0)
    like = (tl.load(COIN + 1) < learnt) & (strength > 0)
    strength = tl.where(like, strength * tl.exp(strong - 0.5), eps * tl.exp(tl.log(weakest) * (2 * strong - 1)))
    sign = tl.load(COLOUR + row * drawn + j, mask=real, other=0.0)
    wiggle = tl.load(COLOUR + row * drawn + CHANNELS + j, mask=real, other=0.5) - 0.5
    fresh = strength * tl.where(sign > 0.5, 1.0, -1.0)
    there = j * size + new % size
    x = tl.load(X + there, mask=real, other=0.0)
    low, high = tl.load(LOW + there, mask=real, other=0.0) - x, tl.load(HIGH + there, mask=real, other=0.0) - x
    kept = tl.max(tl.abs(tl.minimum(tl.maximum(fresh, low), high)), 0)
    opposite = tl.max(tl.abs(tl.minimum(tl.maximum(-fresh, low), high)), 0)
    fresh = tl.where(opposite > 2 * kept, -fresh, fresh)
    # that of the neighbours (`_around`): the mean over the changed points of the 3x3 square
    total, crowd = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
    lane = j * size if LANES > 1 else 0 * j
    above, before = (new + 0 * j) // width % height - 1, (new + 0 * j) % width - 1
    for beside in range(9):
        v, u = above + beside // 3, before + beside % 3
        inside = real & (v >= 0) & (v < height) & (u >= 0) & (u < width)
        total += tl.load(VALUE + j * size + v * width + u, mask=inside, other=0.0)
        crowd += tl.load(MASK + lane + v * width + u, mask=inside, other=0).to(tl.float32)
    colour = tl.div_rn(tl.div_rn(total, 9.0), tl.maximum(tl.div_rn(crowd, 9.0), 1e-3))
    copy = (tl.load(COIN + 3) < copied) & single & (tl.max(tl.abs(colour), 0) > 0)
    colour = tl.where(tune, shown, colour)
    colour = tl.where(tune | copy, colour + tl.max(tl.abs(colour), 0) * wiggle, fresh)

    # the values (`_painted`): the colour on the square, clipped to the box; 0 on reset points
    for channel in tl.static_range(CHANNELS):
        one = tl.sum(tl.where(j == channel, colour, 0.0), 0)
        here = (i < points) & (c == channel) if LANES > 1 else i < points
        at = i if LANES > 1 else i + channel * size
        x = tl.load(X + at, mask=here)
        low, high = tl.load(LOW + at, mask=here) - x, tl.load(HIGH + at, mask=here) - x
        value = tl.where(added, one, tl.load(VALUE + at, mask=here))
        tl.store(NEW_VALUE + at, tl.where(stays, tl.minimum(tl.maximum(value, low), high), 0.0), mask=here)


def varied(
    mask: Tensor,
    value: Tensor,
    box: tuple[Tensor, Tensor, Tensor],
    usable: Tensor | None,
    draws: tuple[Tensor, ...],
    side: Tensor,
    single: Tensor,
    k: Tensor,
    most: int,
    shares: tuple[float, ...],
) -> tuple[Tensor, Tensor]:
    """The new mask (B, *grid) bool and value (B, C, H, W). `box`: x, low and high. `most`: largest number of points
    that are reset. `shares`: eps and the constants of clusters.py. Values are float32. At most POINTS points and
    UNROLLED channels."""
    (lanes, height, width), channels = mask.shape[1:], value.shape[1]
    value, *box_ = (one.expand_as(value).contiguous() for one in (value, *box))
    new_mask, new_value = torch.empty(mask.shape, dtype=torch.bool, device=mask.device), torch.empty_like(value)
    block = max(triton.next_power_of_2(lanes * height * width), 16)
    mask = mask.contiguous().view(torch.uint8)
    where = mask if usable is None else usable.contiguous().view(torch.uint8)
    if {one.stride() for one in draws} != {(draws[0].stride(0), 1)}:  # they are not parts of one tensor
        draws = torch.split(torch.cat(draws, 1), [one.shape[1] for one in draws], 1)
    if mask.numel():
        _varied[(len(mask),)](
            mask, value, *box_, where, *draws, side.contiguous(), single.contiguous().view(torch.uint8),
            k.contiguous(), new_mask.view(torch.uint8), new_value, height, width, draws[0].stride(0), most, *shares,
            usable is not None, lanes, channels, triton.next_power_of_2(channels), block,
            num_warps=4 if block <= 1024 else 8, enable_fp_fusion=False,
        )  # fmt: skip
    return new_mask, new_value
