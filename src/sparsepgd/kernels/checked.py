"""Have the kernels compiled, and see that they compute what torch computes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.kernels import EAGER, compiled

FIRST_NUMBERS = (0.7782281041145325, 0.6801370978355408, 0.8083280920982361)  # of seed 0, stream 1, image 0, step 0


def load(device: torch.device) -> None:
    """Have the kernels ready, as far as one can know them: for fp16, images of 32x32 with three channels, ten classes
    and a seed of 32 bits."""
    with torch.cuda.device(device):
        check(device)


def check(device: torch.device) -> None:
    """A kernel that does not compute what torch computes is an error: it may be compiled wrongly for a new device."""
    for one in CHECKS:
        one(device)


def check_uniform(device: torch.device) -> None:
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    _demand(torch.equal(compiled.uniform(0, 1, zero, zero, 0, 3).cpu(), torch.tensor([FIRST_NUMBERS])), "uniform")


def check_normalisation(device: torch.device) -> None:
    half = _values(device).view(2, 64, 4, 4).half().contiguous(memory_format=torch.channels_last).requires_grad_()
    factor, addend = torch.linspace(0.5, 2, 64, device=device), torch.linspace(-1, 1, 64, device=device)
    for name, activation in EAGER.items():
        whole = half.detach().float().requires_grad_()
        wanted = activation(whole * factor.view(-1, 1, 1) + addend.view(-1, 1, 1))
        given = compiled.Fused.apply(half, factor, addend, name)
        pairs = [
            (given, wanted),
            (torch.autograd.grad(given.sum(), half)[0], torch.autograd.grad(wanted.sum(), whole)[0]),
        ]
        _demand(all(torch.allclose(a.float(), b, rtol=5e-3, atol=5e-3) for a, b in pairs), name)


def check_top_k(device: torch.device) -> None:
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(0)).to(device)
    score = _values(device)[:, order].abs() + 1e-3
    count = torch.tensor([1, 800], device=device)
    ranks = score.argsort(1, descending=True).argsort(1)
    _demand(torch.equal(compiled.top_k(score, None, count), (ranks < count[:, None]).float()), "top_k")


def check_clip(device: torch.device) -> None:
    p, x = 3 * _values(device), _values(device).abs() / 3
    low, high = torch.zeros_like(x), torch.ones_like(x)
    _demand(torch.equal(compiled.clip(p, x, low, high), p.clamp(low - x, high - x)), "clip")


def check_render(device: torch.device) -> None:
    p = torch.stack([_values(device).view(2, 32, 32) + i for i in range(3)], 1)
    x, mask = (p / 9).abs(), (p[:, :1] > 1).float()
    low, high = torch.zeros_like(x), torch.ones_like(x)
    wanted = torch.where(mask > 0, ((x + p) * 255).round().div(255).clamp(low, high), x)
    _demand(torch.equal(compiled.render(p, mask, x, low, high, 255), wanted), "render")


def check_judged(device: torch.device) -> None:
    """By the losses of torch, as far as it has them: the cross-entropy of one image, the margin of the other."""
    logits = _values(device)[:, :500:50].sin().requires_grad_()
    label, along = torch.tensor([3, 3], device=device), torch.tensor([0, 1], device=device)
    margin = logits[1, [0, 1, 2, 4, 5, 6, 7, 8, 9]].max() - logits[1, 3]
    (wanted,) = torch.autograd.grad(4 * (F.cross_entropy(logits[:1], label[:1]) + margin), logits)
    loss, fooled, slope = compiled.judged(logits, label, label, False, 1.0, 1, along, 4.0)
    right = torch.allclose(slope, wanted, rtol=1e-4, atol=1e-5) and torch.allclose(loss[1], margin)
    _demand(right and torch.equal(fooled, logits.argmax(1) != label), "judged")


def check_varied(device: torch.device) -> None:
    """Of two images with one changed point, the one gets another point, as strong and at 7, and the other a darker
    colour."""
    mask, x = torch.zeros(2, 1, 32, 32, dtype=torch.bool, device=device), torch.full((2, 3, 32, 32), 0.5, device=device)
    mask[:, :, 5, 9], wanted = True, torch.zeros_like(x)
    value = 0.25 * mask * torch.ones_like(x)
    draws = torch.full((2, 2 * 1024 + 6 + 4), 0.5, device=device)
    draws[:, 7], draws[:, 2048:2051], draws[1, 2051:2054], draws[1, -4] = 0.9, 1.0, 0.25, 0.0
    wanted[0, :, 0, 7], wanted[1, :, 5, 9] = 0.25, 0.1875
    one, single = torch.ones(2, dtype=torch.int64, device=device), torch.tensor([False, True], device=device)
    box, parts = (x, torch.zeros_like(x), torch.ones_like(x)), torch.split(draws, [1024, 1024, 6, 4], 1)
    new = compiled.varied(mask, value, box, None, parts, one, single, one, 1, (1.0, 0.5, 0.5, 0.2, 0.7, 0.1))
    _demand(torch.equal(new[0], wanted.any(1, keepdim=True)) and torch.allclose(new[1], wanted), "varied")


CHECKS = (check_uniform, check_varied, check_normalisation, check_judged, check_top_k, check_render, check_clip)


def _values(device: torch.device) -> Tensor:
    return torch.linspace(-3, 3, 2 * 1024, device=device).view(2, 1024)


def _demand(holds: bool, name: str) -> None:
    if not holds:
        raise ArithmeticError(f"the kernel of {name} does not compute what torch computes")
