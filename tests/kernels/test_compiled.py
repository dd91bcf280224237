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
assert compiled.MOST // compiled.PART < 64, "counts of one place have six bits"
compiled.HELD, compiled.PART = 16, 64  # up to 16 parts
in_parts = list(chosen())
assert len(by_torch) == 57
for one, other, third in zip(by_torch, by_kernel, in_parts, strict=True):
    assert other.dtype == third.dtype == torch.float32 and torch.equal(one, other) and torch.equal(one, third)
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

PUT = """
import torch
from sparsepgd.kernels import compiled
torch.manual_seed(0)
for shape in ((5, 3, 9, 11), (3, 3, 32, 32), (4, 1), (6,), (0, 3, 4, 4), (2, 0)):
    which, new, old = torch.rand(2 * shape[0])[::2] > 0.5, torch.rand(shape), torch.rand(shape)
    new.flatten()[:1] = torch.nan
    for other in (new, new.contiguous(memory_format=torch.channels_last) if new.dim() == 4 else new):
        into = old.clone()
        assert compiled.put(which, other, into) is into
        wanted = torch.where(which.view(-1, *[1] * (new.dim() - 1)), new, old)
        torch.testing.assert_close(into, wanted, rtol=0, atol=0, equal_nan=True)
print("equal")
"""

RENDERED = """
from dataclasses import replace
import torch
from sparsepgd import Budget, Features
from sparsepgd.kernels import compiled
from sparsepgd.search import loop
torch.manual_seed(0)
for shape in ((3, 3, 9, 11), (2, 3, 32, 32), (1, 1, 1, 1), (0, 3, 4, 4)):
    x, p = torch.rand(shape), torch.randn(shape)
    p.flatten()[:1] = torch.nan
    p[:, :, :1] = torch.randint(-255, 256, p[:, :, :1].shape) / 510 - x[:, :, :1]  # many halves of levels
    for budget in (Budget(1), Budget(1, eps=0.1, pattern=Features())):
        y, threat = torch.zeros(len(x), dtype=torch.int64), budget.resolve(shape[1:])
        waiting = loop.Waiting.of(threat, x, y, clean_loss=torch.zeros(len(x)), index=y)
        images = loop.Images.entering(waiting, threat, False)
        turned = replace(images, x=images.x.contiguous(memory_format=torch.channels_last))
        chosen = torch.rand(len(x), *threat.grid) > 0.4
        for given in (images, turned):
            for mask in (chosen, chosen.float()):
                for quantize in (False, True):
                    loop.kernels = lambda device: None
                    by_torch = given.render(p, mask, quantize)
                    loop.kernels = lambda device: compiled
                    by_kernel = given.render(p, mask, quantize)
                    torch.testing.assert_close(by_kernel, by_torch, rtol=0, atol=0, equal_nan=True)
print("equal")
"""

JUDGED = """
import torch
from sparsepgd.kernels import compiled
from sparsepgd.problem import goals
from sparsepgd.problem.oracle import Oracle
torch.manual_seed(0)
weights = torch.randn(12, 100)
for classes in (2, 3, 4, 10, 100):
    x, label = torch.randn(12, 12), torch.randint(0, classes, (12,))
    x[:2] = 0  # all logits are equal
    x[2, 3], x[3, 4] = torch.inf, torch.nan
    y, along = (label + 1) % classes, torch.arange(12) % 3
    for goal in (goals.Untargeted(), goals.Targeted(1), goals.Targeted(1, accept="any")):
        truth = label if goal == goals.Untargeted() else y
        for name in goals.LOSSES:
            oracle = Oracle(lambda x: x @ weights[:, :classes], goal, name, scale=4.0)
            for asked in ((True, None), (True, along), (False, None)):
                goals.kernels = lambda device: None
                by_torch = oracle.evaluate(x, truth, label, *asked)
                goals.kernels = lambda device: compiled
                by_kernel = oracle.evaluate(x, truth, label, *asked)
                torch.testing.assert_close(by_kernel.loss, by_torch.loss)
                assert torch.equal(by_kernel.fooled, by_torch.fooled)
                if asked[0]:  # of equal logits, which of them is the third is left open
                    equal = [] if name == "dlr" or asked[1] is not None else [0, 1]
                    given, wanted = (one.gradient[[*equal, *range(4, 12)]] for one in (by_kernel, by_torch))
                    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)
                    assert not by_kernel.gradient[2:4].any()
print("equal")
"""

VARIED = """
import torch
from sparsepgd import Budget, Features
from sparsepgd.kernels import compiled
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search import clusters
torch.manual_seed(0)
cases = (
    (Budget(k=20), (3, 12, 12)),
    (Budget(k=30, pattern=Features()), (3, 9, 11)),
    (Budget(k=4, eps=0.1), (1, 8, 8)),
    (Budget(k=12, allowed=torch.rand(9, 11) > 0.4), (3, 9, 11)),
    (Budget(k=4), (3, 2, 2)),
)
for budget, shape in cases:
    x, y, threat = torch.rand(8, *shape), torch.arange(8), budget.resolve(shape)
    x[:3] = x[:3].round()
    allowed, usable = threat.masks(8) or (None, None)
    here = Images(x, y, y, torch.zeros(8), y, y, usable, *threat.box(x, allowed, False))
    kept = clusters.Change(torch.zeros(8, *threat.grid, dtype=torch.bool), torch.zeros_like(x))
    for step in range(20):
        sizes = clusters.numbers(here, kept.mask)
        draws = Noise(3).uniform(Stream.VARIATION, y, step, (sum(sizes),)).split(list(sizes), 1)
        k = torch.full_like(y, budget.k) - y % 3
        side = torch.where(y % 2 == step % 2, clusters.longest_side(k), 1)
        side = side if step % 3 else side.float()
        given = budget, here, kept, draws, side, (side == 1) & (y < 6), k if step > 10 else None
        clusters.kernels = lambda device: None
        by_torch = clusters.varied(*given)
        clusters.kernels = lambda device: compiled
        by_kernel = clusters.varied(*given)
        assert torch.equal(by_kernel.mask, by_torch.mask)
        torch.testing.assert_close(by_kernel.value, by_torch.value)
        kept = by_torch
print("equal")
"""

CHECKED = """
import torch
from sparsepgd.kernels import checked, compiled
checked.check(torch.device("cpu"))

def off(found):
    return tuple(map(off, found)) if isinstance(found, tuple) else ~found if found.dtype == torch.bool else found + 1

for name in ("uniform", "varied", "judged", "top_k", "render", "clip", "put"):
    right = getattr(compiled, name)
    setattr(compiled, name, lambda *args, right=right: off(right(*args)))
    try:
        checked.check(torch.device("cpu"))
    except ArithmeticError as error:
        print(error)
    setattr(compiled, name, right)
compiled.CODES["silu"] = 1
checked.check(torch.device("cpu"))
"""


def test_batch_normalisation_and_activation_with_their_gradients() -> None:
    assert without_gpu(NORMALISATION) == "equal\n"


def test_random_numbers_to_the_bit() -> None:
    assert without_gpu(NUMBERS) == "equal\n"


def test_the_k_largest_and_the_first_of_equal_ones() -> None:
    assert without_gpu(LARGEST) == "equal\n"


def test_changes_within_the_box_to_the_bit() -> None:
    assert without_gpu(CLIPPED) == "equal\n"


def test_images_with_changes_to_the_bit() -> None:
    assert without_gpu(RENDERED) == "equal\n"


def test_rows_that_overwrite_others() -> None:
    assert without_gpu(PUT) == "equal\n"


def test_losses_verdicts_and_gradients_of_logits() -> None:
    assert without_gpu(JUDGED) == "equal\n"


def test_variations_of_changed_points() -> None:
    assert without_gpu(VARIED) == "equal\n"


def test_kernels_with_wrong_results_are_refused_when_they_are_loaded() -> None:
    told = without_gpu(CHECKED.replace('compiled.CODES["silu"] = 1\nchecked.check(torch.device("cpu"))\n', ""))
    named = [line.split()[3] for line in told.splitlines()]
    assert named == ["uniform", "varied", "judged", "top_k", "render", "clip", "put"]
    with pytest.raises(AssertionError, match="the kernel of silu does not compute what torch computes"):
        without_gpu(CHECKED)
