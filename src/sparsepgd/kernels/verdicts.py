"""All that an attack computes from logits in one kernel: the loss, the verdict, and the gradient of a loss, which may
differ between images (problem/goals.py)."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

CLASSES = 16384  # largest number: one block holds the logits of an image


@triton.jit
def _largest(z):  # type: ignore[no-untyped-def]
    """The largest of z, where it is, and z without it."""
    place = tl.argmax(z, 0)
    at = tl.arange(0, z.shape[0]) == place
    return tl.max(z, 0), at, tl.where(at, float("-inf"), z)


@triton.jit(do_not_specialize=["classes", "reported", "chosen", "equal"])  # type: ignore[untyped-decorator]
def _judged(  # type: ignore[no-untyped-def]
    LOGITS, LABEL, WANTED, ALONG, LOSS, FOOLED, SLOPE, classes, reported, chosen, equal, sign, scale, tiny,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, j = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here, own = j < classes, j == tl.load(LABEL + row)
    z = tl.load(LOGITS + row * classes + j, mask=here, other=float("-inf"))
    finite = tl.sum((here & ((tl.abs(z) < float("inf")) == 0)).to(tl.int32)) == 0
    z = tl.where(here & (finite == 0), 0.0, z)  # any value: neither loss nor gradient is used
    label = tl.sum(tl.where(own, z, 0.0), 0)
    which = tl.where(chosen != 0, tl.load(ALONG + row).to(tl.int32), reported)

    first, at_first, rest = _largest(z)
    said = tl.sum(tl.where(at_first, j, 0), 0)
    rival = tl.max(tl.where(own, float("-inf"), z), 0)
    rivals = here & (own == 0) & (z == rival)
    margin = rival - label
    margin_slope = tl.div_rn(rivals.to(tl.float32), tl.sum(rivals.to(tl.float32), 0)) - own.to(tl.float32)

    powers = tl.where(here, tl.exp(z - first), 0.0)
    total = tl.sum(powers, 0)
    entropy = tl.log(total) + first - label
    entropy_slope = tl.div_rn(powers, total) - own.to(tl.float32)

    _, _, rest = _largest(rest)
    third, at_third, rest = _largest(rest)
    fourth, at_fourth, _ = _largest(rest)
    few = classes == 3
    fourth, at_fourth = tl.where(few, third, fourth), tl.where(few, at_third, at_fourth)
    wide = first - (third + fourth) / 2
    spread = tl.where(classes == 2, 1.0, tl.maximum(wide, tiny))
    moves = ((wide >= tiny) & (classes > 2)).to(tl.float32)  # whether the spread has a gradient: not if it is clamped
    spread_slope = moves * (at_first.to(tl.float32) - (at_third.to(tl.float32) + at_fourth.to(tl.float32)) / 2)
    dlr = tl.div_rn(margin, spread)
    dlr_slope = tl.div_rn(margin_slope, spread) - tl.div_rn(dlr, spread) * spread_slope

    loss = sign * tl.where(reported == 0, entropy, tl.where(reported == 1, margin, dlr))
    slope = sign * tl.where(which == 0, entropy_slope, tl.where(which == 1, margin_slope, dlr_slope))
    hit = (said == tl.load(WANTED + row)).to(tl.int32) == equal
    tl.store(LOSS + row, tl.where(finite, loss, float("-inf")))
    tl.store(FOOLED + row, (hit & finite).to(tl.uint8))
    tl.store(SLOPE + row * classes + j, tl.where(finite, scale * slope, 0.0), mask=here)


def judged(
    logits: Tensor,
    label: Tensor,
    wanted: Tensor,
    equal: bool,
    sign: float,
    reported: int,
    along: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """For logits (B, classes) float32, at most CLASSES: the loss `reported`, (B,), whether each image is a success,
    (B,) bool, and the gradient (B, classes) of `scale` times the loss `along` (B,), default `reported`. Losses are
    indices in LOSSES. A success: the predicted class is `wanted` (B,), or, if not `equal`, another one. If logits are
    not finite, there is no success, the loss is -inf, and the gradient is 0."""
    rows, classes = logits.shape
    loss, slope = torch.empty(rows, device=logits.device), torch.empty(rows, classes, device=logits.device)
    fooled = torch.empty(rows, dtype=torch.bool, device=logits.device)
    block = triton.next_power_of_2(classes)
    if rows:
        _judged[(rows,)](
            logits.detach().contiguous(), label.contiguous(), wanted.contiguous(),
            label if along is None else along.contiguous(), loss, fooled.view(torch.uint8), slope, classes, reported,
            int(along is not None), int(equal), sign, scale, torch.finfo(torch.float32).tiny, block,
            num_warps=1 if block <= 256 else 4, enable_fp_fusion=False,
        )  # fmt: skip
    return loss, fooled, slope
