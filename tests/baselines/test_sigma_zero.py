"""sigma-zero: minimum norm and fixed budget, features and pixels, and the update beside the paper."""

from __future__ import annotations

import pytest
import torch

import sparsepgd as sp
from sparsepgd.baselines import SigmaZero
from support.linear import problem, with_slack
from support.models import Linear, SmallConvNet, images, labelled


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features()], ids=repr)
def test_fools_a_linear_model_with_a_few_more_groups_than_the_best_and_never_with_fewer(pattern: sp.Pattern) -> None:
    """The exact optimum is not promised: with a third more than the fewest groups it must succeed."""
    weight, x, best = problem(sp.Budget(k=6, pattern=pattern))
    for i in range(4):
        one = x[i : i + 1]
        model = with_slack(weight, one, best[i], 1e-2)
        assert bool(SigmaZero(sp.Budget(k=8, pattern=pattern), 250)(model, one, torch.tensor([0])).fooled)
        model = with_slack(weight, one, best[i], -1e-2)
        assert not bool(SigmaZero(sp.Budget(k=6, pattern=pattern), 250)(model, one, torch.tensor([0])).fooled)


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features()], ids=repr)
def test_minimum_norm_comes_near_the_fewest_groups_of_a_linear_model(pattern: sp.Pattern) -> None:
    weight, x, best = problem(sp.Budget(k=6, pattern=pattern))
    whole = sp.Budget(k=8 * 8 * (3 if pattern.per_channel else 1), pattern=pattern)
    attack = SigmaZero(whole, 250, early_stop=False)
    groups = []
    for i in range(4):
        one = x[i : i + 1]
        result = attack(with_slack(weight, one, best[i], 1e-2), one, torch.tensor([0]))
        assert bool(result.fooled)
        groups.append(int(result.groups))
    assert min(groups) >= 6
    assert sum(groups) <= 4 * 8


def test_minimum_norm_goes_on_and_finds_fewer_groups_than_the_first_success() -> None:
    model, x = SmallConvNet(), images(8)
    y = labelled(model, x)
    first = SigmaZero(sp.Budget(k=144), 60)(model, x, y)
    fewest = SigmaZero(sp.Budget(k=144), 60, early_stop=False)(model, x, y)
    both = first.fooled & fewest.fooled
    assert bool(both.any())
    assert bool((fewest.l0 <= first.l0)[both].all())
    assert int(fewest.l0[both].sum()) < int(first.l0[both].sum())
    assert fewest.backwards.tolist() == [60] * 8


def test_a_success_with_too_many_groups_is_cut_to_k_and_asked_once_more() -> None:
    """Of an all but certain dense success the k largest pixels are enough here: found far before l0 falls to k."""
    weight = torch.ones(3, 8, 8)
    weight[:, 0, 0] = 50.0
    x = torch.full((1, 3, 8, 8), 0.5)
    model = Linear(weight, float(-(x * weight).sum() - 20))
    result = SigmaZero(sp.Budget(k=1), 20)(model, x, torch.tensor([0]))
    assert bool(result.fooled)
    assert int(result.forwards) == int(result.backwards) + 1


def test_pixels_are_counted_as_pixels_and_features_as_features() -> None:
    model, x = SmallConvNet(), images(8)
    y = labelled(model, x)
    pixels = SigmaZero(sp.Budget(k=144), 100, early_stop=False)(model, x, y)
    features = SigmaZero(sp.Budget(k=432, pattern=sp.Features()), 100, early_stop=False)(model, x, y)
    both = pixels.fooled & features.fooled
    assert bool(both.any())
    assert torch.equal(pixels.groups, pixels.l0)
    assert int(pixels.l0[both].sum()) <= int(features.l0[both].sum())  # each is better in what it counts
    values = (pixels.x_adv != x).flatten(1).sum(1)
    assert int(features.groups[both].sum()) <= int(values[both].sum())


def test_the_defaults_are_those_of_the_paper() -> None:
    attack = SigmaZero(sp.Budget(k=20))
    assert (attack.steps, attack.eta, attack.sigma, attack.tau, attack.tau_step) == (1000, 1.0, 1e-3, 0.3, 0.01)
    assert (attack.loss, attack.name) == ("margin", "sigma-zero")
    assert attack._rate(0) == pytest.approx(1.0)
    assert attack._rate(1000) == pytest.approx(0.1)
