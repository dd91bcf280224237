"""Compile the kernels, and compare their results with those of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.kernels import EAGER, compiled

Comparison = tuple[str, Callable[[], bool]]  # the name of a kernel, and whether its result is that of torch
FIRST_NUMBERS = (0.7782281041145325, 0.6801370978355408, 0.8083280920982361)  # of seed 0, stream 1, image 0, step 0


def load(device: torch.device, seen: bool) -> None:
    """Compile or load the kernels for the usual arguments: fp16, images of 32x32 with three channels, ten classes and a
    seed of 32 bits. `seen`: whether they passed the check on this machine before, in another process."""
    with torch.cuda.device(device):
        if seen:
            launched(device)
        else:
            check(device)


def check(device: torch.device) -> None:
    """Raise an error if a kernel and torch differ. Triton may compile wrongly for a new device."""
    for name, agrees in launched(device):
        if not agrees():
            raise ArithmeticError(f"the kernel of {name} does not compute what torch computes")


def launched(device: torch.device) -> list[Comparison]:
    """Launch every kernel once. The results of torch are only computed if a comparison is called."""
    return [comparison for one in CHECKS for comparison in one(device)]


def check_uniform(device: torch.device) -> Iterator[Comparison]:
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    given = compiled.uniform(0, 1, zero, zero, 0, 3)
    yield "uniform", lambda: torch.equal(given.cpu(), torch.tensor([FIRST_NUMBERS]))


def check_normalisation(device: torch.device) -> Iterator[Comparison]:
    half = _values().view(2, 64, 4, 4).half().contiguous(memory_format=torch.channels_last).to(device).requires_grad_()
    factor, addend = torch.linspace(0.5, 2, 64).to(device), torch.linspace(-1, 1, 64).to(device)

    def agrees(name: str, given: Tensor, slope: Tensor) -> bool:
        whole = half.detach().float().requires_grad_()
        wanted = EAGER[name](whole * factor.view(-1, 1, 1) + addend.view(-1, 1, 1))
        pairs = [(given, wanted), (slope, torch.autograd.grad(wanted.sum(), whole)[0])]
        return all(torch.allclose(a.float(), b, rtol=5e-3, atol=5e-3) for a, b in pairs)

    for name in EAGER:
        given = compiled.Fused.apply(half, factor, addend, name)
        yield name, partial(agrees, name, given, torch.autograd.grad(given.sum(), half)[0])


def check_top_k(device: torch.device) -> Iterator[Comparison]:
    for size in (1024, 20_000):  # in one block, and in parts
        order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
        score = torch.linspace(1e-3, 3, size)[order].repeat(2, 1).to(device)
        count = torch.tensor([1, size - 200], device=device)
        given = compiled.top_k(score, None, count)
        yield f"top_k of {size}", partial(_largest_are, given, score, count)


def _largest_are(given: Tensor, score: Tensor, count: Tensor) -> bool:
    ranks = score.argsort(1, descending=True).argsort(1)
    return torch.equal(given, (ranks < count[:, None]).float())


def check_clip(device: torch.device) -> Iterator[Comparison]:
    p, x = 3 * _values(), _values().abs() / 3
    p, x, low, high = (one.to(device) for one in (p, x, torch.zeros_like(x), torch.ones_like(x)))
    given = compiled.clip(p, x, low, high)
    yield "clip", lambda: torch.equal(given, p.clamp(low - x, high - x))


def check_render(device: torch.device) -> Iterator[Comparison]:
    p = torch.stack([_values().view(2, 32, 32) + i for i in range(3)], 1)
    x, mask = (p / 9).abs(), (p[:, :1] > 1).float()
    p, x, mask, low, high = (one.to(device) for one in (p, x, mask, torch.zeros_like(x), torch.ones_like(x)))
    given = compiled.render(p, mask, x, low, high, 255)
    yield (
        "render",
        lambda: torch.equal(given, torch.where(mask > 0, ((x + p) * 255).round().div(255).clamp(low, high), x)),
    )


def check_put(device: torch.device) -> Iterator[Comparison]:
    new, which = _values(), torch.tensor([True, False])
    given = compiled.put(which.to(device), new.to(device), -new.to(device))
    yield "put", lambda: torch.equal(given.cpu(), torch.where(which[:, None], new, -new))


def check_judged(device: torch.device) -> Iterator[Comparison]:
    """The cross-entropy of one image and the margin of the other."""
    logits = _values()[:, :500:50].sin().contiguous().to(device).requires_grad_()
    label, along = torch.tensor([3, 3], device=device), torch.tensor([0, 1], device=device)
    loss, fooled, slope = compiled.judged(logits, label, label, False, 1.0, 1, along, 4.0)

    def agrees() -> bool:
        margin = logits[1, [0, 1, 2, 4, 5, 6, 7, 8, 9]].max() - logits[1, 3]
        (wanted,) = torch.autograd.grad(4 * (F.cross_entropy(logits[:1], label[:1]) + margin), logits)
        right = torch.allclose(slope, wanted, rtol=1e-4, atol=1e-5) and torch.allclose(loss[1], margin)
        return right and torch.equal(fooled, logits.argmax(1) != label)

    yield "judged", agrees


def check_varied(device: torch.device) -> Iterator[Comparison]:
    """Of two images with one changed point, one gets another point of the same size, point 7, and the other a darker
    colour."""
    mask, x = torch.zeros(2, 1, 32, 32, dtype=torch.bool), torch.full((2, 3, 32, 32), 0.5)
    mask[:, :, 5, 9], wanted = True, torch.zeros_like(x)
    value = 0.25 * mask * torch.ones_like(x)
    draws = torch.full((2, 2 * 1024 + 6 + 4), 0.5)
    draws[:, 7], draws[:, 2048:2051], draws[1, 2051:2054], draws[1, -4] = 0.9, 1.0, 0.25, 0.0
    wanted[0, :, 0, 7], wanted[1, :, 5, 9] = 0.25, 0.1875
    one, single = torch.ones(2, dtype=torch.int64), torch.tensor([False, True])
    tensors = mask, value, x, torch.zeros_like(x), torch.ones_like(x), draws, one, single, wanted
    mask, value, x, low, high, draws, one, single, wanted = (tensor.to(device) for tensor in tensors)
    parts, shares = torch.split(draws, [1024, 1024, 6, 4], 1), (1.0, 0.5, 0.5, 0.2, 0.7, 0.1)
    new = compiled.varied(mask, value, (x, low, high), None, parts, one, single, one, 1, shares)
    yield "varied", lambda: torch.equal(new[0], wanted.any(1, keepdim=True)) and torch.allclose(new[1], wanted)


CHECKS = (
    check_uniform, check_varied, check_normalisation, check_judged, check_top_k, check_render, check_clip, check_put,
)  # fmt: skip


def _values() -> Tensor:
    """On the CPU, because on a GPU torch would have to load its own kernels."""
    return torch.linspace(-3, 3, 2 * 1024).view(2, 1024)
