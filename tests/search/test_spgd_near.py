"""Sparse-PGD that begins near the clean image: the first step, budgets, flat places, strength."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import linear
import sparsepgd as sp
from conftest import Linear, SmallConvNet, images, labelled
from search.updates import GRADIENT, one_update
from sparsepgd.errors import UnsupportedError


def test_near_begins_at_the_clean_image_and_steps_along_the_gradient_where_it_is_largest() -> None:
    budget = sp.Budget(k=4)
    weight, x, _ = linear.problem(budget)
    seen: list[Tensor] = []

    class Watched(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            return super().forward(x)

    attack = sp.SparsePGD(budget, 1, "projected", near=0.1, loss="margin", early_stop=False)
    attack.perturb(Watched(weight, -100.0), x, torch.zeros(len(x), dtype=torch.long))
    first, second = seen[-2:]
    assert torch.equal(first, x)
    delta = second - x
    assert torch.all(delta.abs() <= 0.1 + 1e-6)
    gain = (((x + 0.1 * weight.sign()).clamp(0, 1) - x) * weight).sum(1).flatten(1)
    best = torch.zeros_like(gain).scatter(1, gain.topk(budget.k).indices, 1).bool()
    assert torch.equal((delta != 0).any(1).flatten(1), best)
    assert torch.all((delta * weight)[delta != 0] > 0)


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features(), sp.Rows(), sp.Patches(2)], ids=repr)
def test_near_stays_within_every_budget(pattern: sp.Pattern, size: int) -> None:
    x, model = images(6, size=size), SmallConvNet()
    budget = sp.Budget(k=1, pattern=pattern, eps=0.5)
    result = sp.SparsePGD(budget, 12, near=0.3, early_stop=False)(model, x, labelled(model, x))
    assert int(result.groups.max()) <= 1
    assert float((result.x_adv - x).abs().max()) <= 0.5 + 1e-6
    assert bool(result.loss.isfinite().all())


def test_near_goes_on_from_the_random_start_where_the_clean_gradient_is_zero() -> None:
    """A network that is flat around black images, and only there; what the others do does not change."""
    flat, other = torch.zeros(2, 1, 6, 6), torch.full((2, 1, 6, 6), 0.9)

    def model(x: Tensor) -> Tensor:
        score = torch.relu(x - 0.4).flatten(1).sum(1) * torch.where(x.amax((1, 2, 3)) > 0.85, -1.0, 1.0)
        return torch.stack([torch.ones_like(score), score], 1)

    attack = sp.SparsePGD(sp.Budget(k=4), 30, "projected", near=0.1)
    y = torch.zeros(4, dtype=torch.int64)
    result = attack(model, torch.cat([flat, other]), y)
    assert result.fooled[:2].tolist() == [True, True]
    assert torch.equal(result.x_adv[2:], attack(model, other, y[2:], index=torch.tensor([2, 3])).x_adv)
    state, after, rows = one_update(
        sp.SparsePGD(sp.Budget(k=2), near=0.1), GRADIENT * torch.tensor([0.0, 1]).view(2, 1, 1, 1)
    )
    paper = one_update(sp.SparsePGD(sp.Budget(k=2)), GRADIENT)[0]
    assert not bool(state.v.any())
    assert torch.equal(after.p[0], paper.p[0])
    assert torch.equal(after.v[0], paper.v[0])
    torch.testing.assert_close(after.p[1], (0.1 * GRADIENT[1].sign()).clamp(-rows.x[1], 1 - rows.x[1]))


def test_near_has_a_slow_pace_and_a_name_of_its_own() -> None:
    near = sp.SparsePGD(sp.Budget(k=1), gradient="projected", near=0.1)
    assert (near.alpha, near.name) == (pytest.approx(0.02), "spgd-projected-near")
    assert sp.SparsePGD(sp.Budget(k=1), near=0.1, alpha=0.3).alpha == 0.3
    with pytest.raises(UnsupportedError, match="near=0"):
        sp.SparsePGD(sp.Budget(k=1), near=0.0)


def test_near_breaks_a_model_that_was_trained_against_spgd_where_a_random_start_does_not() -> None:
    x, y = sp.zoo.bundled_images(48)
    model = sp.zoo.load("small-strades")
    paper, near = (sp.SparsePGD(sp.Budget(k=20), 20, "projected", near=start)(model, x, y) for start in (None, 0.1))
    assert int(near.fooled.sum()) >= 3 * int(paper.fooled.sum()) + 5
