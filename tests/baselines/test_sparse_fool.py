"""SparseFool: the fewest coordinates of a linear model, the linear solver beside the algorithm, the cut to k."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import SparseFool
from sparsepgd.baselines.sparse_fool import _linear_solver
from sparsepgd.errors import UnsupportedError
from sparsepgd.search.loop import Images
from support.linear import EVERYTHING, grey
from support.models import Linear, SmallConvNet, images, labelled


@pytest.mark.parametrize("pattern", EVERYTHING, ids=repr)
@pytest.mark.parametrize("needed", [1, 2, 5, 9])
def test_needs_the_fewest_coordinates_of_a_linear_model(pattern: sp.Pattern, needed: int) -> None:
    """With lambda = 1 the plane is the boundary; the paper's 3 puts it three times as far, so it takes more."""
    weight, x, gains = grey(pattern)
    score = float((weight * x).sum())
    model = Linear(weight, -score - float(gains[:needed].sum()) + 0.05)
    budget = sp.Budget(k=EVERYTHING[pattern], pattern=pattern)
    exact = SparseFool(budget, lam=1.0)(model, x, torch.tensor([0]))
    papers = SparseFool(budget)(model, x, torch.tensor([0]))
    assert bool(exact.fooled)
    assert bool(papers.fooled)
    assert int(exact.groups) == needed
    enough = int((gains.cumsum(0) < 3 * float(gains[:needed].sum())).sum()) + 1
    assert needed <= int(papers.groups) <= enough


@pytest.mark.parametrize("slack", [0.05, -0.05])
def test_cut_to_k_it_fools_if_and_only_if_k_suffices(slack: float) -> None:
    """The cut keeps the most changed pixels, all moved to the end of their range: of a grey image any are equal in
    size, so the budget is that of the plane itself."""
    weight, x, gains = grey(sp.Pixels())
    model = Linear(weight, -float((weight * x).sum()) - float(gains[:4].sum()) + slack)
    result = SparseFool(sp.Budget(k=4), lam=1.0)(model, x, torch.tensor([0]))
    assert bool(result.fooled) is (slack > 0)
    assert int(result.l0) <= 4


def sequential(x: Tensor, normal: Tensor, x_b: Tensor) -> Tensor:
    """Algorithm 1 of the paper as it stands, one coordinate after the other: x, normal, x_b (n,) in [0, 1]."""
    x, left = x.clone(), normal.clone()
    while float(normal @ (x - x_b)) < 0 and bool((left != 0).any()):
        i = int(left.abs().argmax())
        step = (normal @ (x - x_b) - 1e-3).abs() / left[i].abs()
        x[i] = (x[i] + step * left[i].sign()).clamp(0, 1)
        left[i] = 0
    return x


@pytest.mark.parametrize("seed", range(4))
def test_the_solver_without_a_loop_is_the_algorithm_with_one(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, 3, 4, 4, generator=generator, dtype=torch.float64)
    normal = torch.randn(5, 3, 4, 4, generator=generator, dtype=torch.float64)
    normal = normal / normal.flatten(1).norm(dim=1)[:, None, None, None]
    x_b = x + torch.tensor([0.01, 0.1, 0.5, 1.0, 9.0]).view(-1, 1, 1, 1) * normal  # the last is out of reach
    threat = sp.Budget(k=48, pattern=sp.Features()).resolve((3, 4, 4))
    zero = torch.zeros(5, dtype=torch.int64)
    low, high = threat.box(x, None, quantize=False)
    rows = Images(x, zero, zero, zero.double(), zero, zero, None, low, high)
    found = _linear_solver(threat, rows, x, normal, x_b)
    for i in range(5):
        expected = sequential(x[i].flatten(), normal[i].flatten(), x_b[i].flatten())
        torch.testing.assert_close(found[i].flatten(), expected, rtol=0, atol=1e-6)


def test_a_larger_k_fools_at_least_as_many_and_the_whole_image_is_the_native_attack() -> None:
    model, x = SmallConvNet(), images(8)
    y = labelled(model, x)
    fooled = [int(SparseFool(sp.Budget(k=k), steps=10)(model, x, y).fooled.sum()) for k in (2, 12, 144)]
    assert fooled[0] <= fooled[1] <= fooled[2]
    assert fooled[2] > fooled[0]


def test_the_boundary_is_looked_for_where_pixels_may_change() -> None:
    weight, x, _ = grey(sp.Pixels())
    allowed = torch.arange(64).view(8, 8) >= 32
    reach = float((weight.abs() * 0.5 * allowed).sum())
    model = Linear(weight, -float((weight * x).sum()) - 0.7 * reach)
    result = SparseFool(sp.Budget(k=32, allowed=allowed), lam=1.0)(model, x, torch.tensor([0]))
    assert bool(result.fooled)


@pytest.mark.parametrize("bad", [0.0, torch.nan, torch.inf])
def test_an_image_without_a_usable_gradient_does_no_harm_to_itself_or_others(bad: float) -> None:
    weight, x, gains = grey(sp.Pixels())
    bias = -float((weight * x).sum()) - float(gains[:4].sum()) + 0.05
    two, asked = torch.cat([x, x + 0.25 * torch.ones_like(x)]), []

    def model(x: Tensor) -> Tensor:
        asked.append(x.detach())
        bright, x = x.detach().mean((1, 2, 3)) > 0.6, x.clone()
        if x.requires_grad:
            x.register_hook(lambda g: torch.where(bright.view(-1, 1, 1, 1), bad, g))
        score = torch.where(bright, -1.0, (x * weight).flatten(1).sum(1) + bias)
        return torch.stack([torch.zeros_like(score), score], 1)

    attack = SparseFool(sp.Budget(k=4), 3, lam=1.0, deepfool_steps=3)
    result = attack(model, two, torch.tensor([0, 0]))
    assert all(bool(x.isfinite().all()) for x in asked)
    assert result.fooled.tolist() == [True, False]
    assert torch.equal(result.x_adv[0], attack(model, x, torch.tensor([0])).x_adv[0])


def test_defaults_are_the_papers() -> None:
    attack = SparseFool(sp.Budget(k=20))
    assert (attack.steps, attack.lam, attack.overshoot, attack.deepfool_steps, attack.classes) == (
        3000,
        3,
        0.02,
        50,
        10,
    )


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("lam", 0), ("deepfool_steps", 0), ("classes", 1)])
def test_unusable_hyper_parameters_are_refused(name: str, value: int) -> None:
    """They are the largest values that are too small."""
    with pytest.raises(UnsupportedError, match=f"{name}={value}; expected a number larger than {value}"):
        SparseFool(sp.Budget(k=1), **{name: value})
