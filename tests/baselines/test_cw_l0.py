"""Carlini and Wagner's l0 attack: the fewest pixels of a linear model, freezing by the authors' rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.baselines import CWL0
from sparsepgd.baselines.cw_l0 import State
from sparsepgd.errors import UnsupportedError
from support.linear import EVERYTHING, grey
from support.models import Linear, SmallConvNet, images, labelled

PACE = {"lr": 0.1, "c_first": 1, "c_last": 100, "c_factor": 10}


@pytest.mark.parametrize("pattern", EVERYTHING, ids=repr)
def test_needs_the_fewest_pixels_of_a_linear_model(pattern: sp.Pattern) -> None:
    weight, x, gains = grey(pattern)
    score = float((weight * x).sum())
    attack = CWL0(sp.Budget(k=EVERYTHING[pattern], pattern=pattern), 100, **PACE, early_stop=False)
    for needed in (1, 5):
        model = Linear(weight, -score - 0.8 * float(gains[:needed].sum()) - 0.2 * float(gains[: needed - 1].sum()))
        result = attack(model, x, torch.tensor([0]))
        assert bool(result.fooled)
        assert int(result.groups) == needed


@pytest.mark.parametrize("enough", [True, False])
def test_within_k_it_fools_if_and_only_if_k_suffices(enough: bool) -> None:
    weight, x, gains = grey(sp.Pixels())
    model = Linear(weight, -float((weight * x).sum()) - float(gains[:4].sum()) * (0.9 if enough else 1.01))
    result = CWL0(sp.Budget(k=4), 100, **PACE)(model, x, torch.tensor([0]))
    assert bool(result.fooled) is enough
    assert int(result.l0) <= 4


def test_freezes_the_smallest_effects_by_the_authors_rule() -> None:
    """What has no more effect than `small`, and one more, but at most share * sqrt(changed), rounded up."""
    effect = torch.zeros(3, 1, 4, 5)
    effect[0].view(-1)[:16] = torch.arange(1.0, 17.0)  # all above: one
    effect[1].view(-1)[:16] = torch.arange(1.0, 17.0) * 1e-4  # all below: ceil(0.3 * 4) = 2
    effect[2].view(-1)[:9] = torch.tensor([5.0, 1e-3, 7, 8, 9, 10, 11, 12, 13])  # one below, but ceil(0.9) = 1
    zero, image = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 3, 4, 5)
    state = State(image, torch.ones_like(effect), torch.ones(3), zero + 7, image + 1, image + 1, zero + 9, zero)
    after = CWL0(sp.Budget(k=3))._freeze(state, effect)
    valid = after.valid.flatten(1)
    assert valid[0].nonzero()[:, 0].tolist() == list(range(1, 16))
    assert valid[1].nonzero()[:, 0].tolist() == list(range(2, 16))
    assert valid[2].nonzero()[:, 0].tolist() == [0, 2, 3, 4, 5, 6, 7, 8]
    assert after.step.tolist() == after.t.tolist() == [0, 0, 0]  # Adam begins afresh
    assert not bool(after.m.any() | after.v.any())
    assert after.rounds.tolist() == [1, 1, 1]


def test_goes_to_the_next_constant_after_all_steps_and_gives_up_after_the_last() -> None:
    weight, x, _ = grey(sp.Pixels())
    hopeless = Linear(weight, -1e4)
    result = CWL0(sp.Budget(k=4), 7, lr=0.01, c_first=1, c_last=100, c_factor=10)(hopeless, x, torch.tensor([0]))
    assert not bool(result.fooled)
    assert int(result.forwards) == int(result.backwards) == 3 * 7  # c = 1, 10, 100


def test_the_native_attack_needs_no_more_pixels_than_the_first_success_within_k() -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    attack = CWL0(sp.Budget(k=30), 20, lr=0.2, c_first=1, c_last=100, c_factor=10, small=torch.inf, power=1, rounds=20)
    first, native = attack(model, x, y), dataclasses.replace(attack, early_stop=False)(model, x, y)
    both = first.fooled & native.fooled
    assert torch.equal(first.fooled, native.fooled)
    assert int(both.sum()) >= 3
    assert bool((native.l0 <= first.l0)[both].all())
    assert int(native.l0[both].sum()) < int(first.l0[both].sum())


def test_defaults_are_the_papers() -> None:
    attack = CWL0(sp.Budget(k=20))
    assert (attack.steps, attack.lr, attack.c_first, attack.c_last, attack.c_factor) == (1000, 0.01, 1e-3, 2e6, 2)
    assert (attack.small, attack.share, attack.power) == (0.01, 0.3, 0.5)


@pytest.mark.parametrize(
    "arguments", [{"steps": 0}, {"lr": 0}, {"c_factor": 1}, {"c_first": 0}, {"share": 0}, {"rounds": 0}, {"loss": "ce"}]
)
def test_unusable_hyper_parameters_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        CWL0(sp.Budget(k=1), **arguments)
