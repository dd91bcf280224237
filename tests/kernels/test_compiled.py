"""The Triton kernels compute what torch computes, in Triton's interpreter; on a GPU: tests/gpu."""

from __future__ import annotations

import pytest

from support.scripts import without_gpu

NORMALISATION = """
import torch
from torch.nn import functional as F
from sparsepgd.kernels.compiled import Fused
torch.manual_seed(0)
eager = {"none": lambda u: u, "relu": torch.relu, "softplus": F.softplus, "silu": F.silu}
for shape in ((3, 48, 5, 7), (2, 130, 4, 4), (1, 16, 1, 1)):
    x = (3 * torch.randn(shape)).half().contiguous(memory_format=torch.channels_last)
    factor, addend, weight = torch.rand(shape[1]) + 0.5, torch.randn(shape[1]), torch.randn(shape)
    for name, activation in eager.items():
        a, b = x.clone().requires_grad_(), x.float().requires_grad_()
        one = Fused.apply(a, factor, addend, name)
        two = activation(b * factor.view(-1, 1, 1) + addend.view(-1, 1, 1))
        torch.testing.assert_close(one.float(), two, rtol=2e-3, atol=2e-3)
        gradients = [torch.autograd.grad((y.float() * weight).sum(), z)[0].float() for y, z in ((one, a), (two, b))]
        torch.testing.assert_close(*gradients, rtol=2e-3, atol=2e-3)
print("equal")
"""

NUMBERS = """
import torch
from sparsepgd.kernels import compiled
from sparsepgd.search import noise
index, steps = torch.tensor([0, 3, 2**40, -1]), torch.tensor([0, 5, 7, 9999])
seeds = (0, 1, -5, 2**63 - 1, torch.tensor(12345))
asked = [(seed, step, count) for seed in seeds for step in (steps, 17) for count in (1, 7, 1024, 3072)]

def drawn():
    for seed, step, count in asked:
        for draw in (noise.Noise(seed).uniform, noise.Noise(seed).normal):
            yield draw(noise.Stream.MASK, index, step, (count,))

by_torch = list(drawn())
noise.kernels = lambda device: compiled
assert all(torch.equal(one, other) for one, other in zip(by_torch, drawn(), strict=True))
print("equal")
"""

LARGEST = """
import torch
from sparsepgd import Budget, Features
from sparsepgd.kernels import compiled
from sparsepgd.threat import budget
torch.manual_seed(0)
few = torch.randint(0, 4, (6, 1, 9, 11)).float()  # many are equal
scores = {
    "all different": torch.rand(6, 1, 9, 11),
    "few values": few,
    "saturated": (40 * torch.randn(6, 1, 9, 11)).sigmoid(),
    "zeros with either sign": torch.where(few > 1, few, -torch.zeros_like(few)),
    "tiny and infinite": torch.where(few > 2, torch.inf, few * 1e-42),
    "of 32x32": torch.rand(2, 1, 32, 32),
    "not contiguous": torch.rand(6, 1, 11, 9).transpose(2, 3),
}

def chosen():
    for name, score in scores.items():
        rows = len(score)
        threat = Budget(k=5).resolve((3, *score.shape[2:]))
        usable = torch.arange(score[0].numel()).view(score.shape[1:]).expand_as(score) % 3 > 0
        counts = torch.tensor([0, 1, 5, 17, 33, 3])[:rows]
        for where in (None, usable):
            yield threat.top_k(score, where)
            yield threat.top_k(score, where, counts, 33)
            yield threat.top_k(score, where, counts, 4)
            yield threat.top_k(score, where, counts)
    entries = Budget(k=7, pattern=Features()).resolve((3, 9, 11))
    yield entries.top_k(torch.rand(4, 3, 9, 11, generator=torch.Generator().manual_seed(1)), None)

by_torch = list(chosen())
budget.kernels = lambda device: compiled
by_kernel = list(chosen())
assert len(by_torch) == 57
for one, other in zip(by_torch, by_kernel, strict=True):
    assert other.dtype == torch.float32 and torch.equal(one, other)
print("equal")
"""

CLIPPED = """
from dataclasses import replace
import torch
from sparsepgd import Budget
from sparsepgd.kernels import compiled
from sparsepgd.search import loop
torch.manual_seed(0)
for shape in ((3, 3, 9, 11), (2, 3, 32, 32), (1, 1, 1, 1), (0, 3, 4, 4)):
    x, p = torch.rand(shape), 2 * torch.randn(shape)
    p.flatten()[:1] = torch.nan
    for budget in (Budget(1), Budget(1, eps=0.1)):
        y, threat = torch.zeros(len(x), dtype=torch.int64), budget.resolve(shape[1:])
        waiting = loop.Waiting.of(threat, x, y, clean_loss=torch.zeros(len(x)), index=y)
        images = loop.Images.entering(waiting, threat, False)
        turned = replace(images, x=images.x.contiguous(memory_format=torch.channels_last))
        for given in (images, turned):
            for change in (p, p.transpose(2, 3).contiguous().transpose(2, 3)):
                loop.kernels = lambda device: None
                by_torch = given.clip(change)
                loop.kernels = lambda device: compiled
                torch.testing.assert_close(given.clip(change), by_torch, rtol=0, atol=0, equal_nan=True)
print("equal")
"""

CHECKED = """
import torch
from sparsepgd.kernels import compiled
compiled.check(torch.device("cpu"))
for name in ("top_k", "clip", "uniform"):
    right = getattr(compiled, name)
    setattr(compiled, name, lambda *args, right=right: right(*args) + 1)
    try:
        compiled.check(torch.device("cpu"))
    except ArithmeticError as error:
        print(error)
    setattr(compiled, name, right)
compiled.CODES["silu"] = 1
compiled.check(torch.device("cpu"))
"""


def test_batch_normalisation_and_activation_with_their_gradients() -> None:
    assert without_gpu(NORMALISATION) == "equal\n"


def test_random_numbers_to_the_bit() -> None:
    assert without_gpu(NUMBERS) == "equal\n"


def test_the_k_largest_and_the_first_of_equal_ones() -> None:
    assert without_gpu(LARGEST) == "equal\n"


def test_changes_within_the_box_to_the_bit() -> None:
    assert without_gpu(CLIPPED) == "equal\n"


def test_kernels_that_compute_something_else_are_refused_when_they_are_loaded() -> None:
    told = without_gpu(CHECKED.replace('compiled.CODES["silu"] = 1\ncompiled.check(torch.device("cpu"))\n', ""))
    assert [line.split()[3] for line in told.splitlines()] == ["top_k", "clip", "uniform"]
    with pytest.raises(AssertionError, match="the kernel of silu does not compute what torch computes"):
        without_gpu(CHECKED)
