"""Our attacks as functions of (model, inputs, labels, ...), as adv-lib and AttackBench call them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import sparsepgd as sp
from sparsepgd import adapters
from sparsepgd.adapters import Function
from sparsepgd.errors import UnsupportedError
from support.packages import changed, mixed_mode, modes, predictions, problem, spgd


def test_both_ways_of_calling_give_what_the_attack_gives() -> None:
    model, x, y = problem()
    before = mixed_mode(model)
    ours = spgd()(model, x, y, seed=1).x_adv
    assert torch.equal(Function(spgd(), seed=1)(model, x, y, targeted=False), ours)
    bench = partial(adapters.spgd, k=12, steps=8, seed=1)  # by keyword, with all five names
    assert torch.equal(bench(model=model, inputs=x, labels=y.int(), targeted=False, targets=None), ours)
    assert modes(model) == before


def test_targets_may_stand_apart_or_in_the_place_of_the_labels() -> None:
    model, x, y = problem(12)
    target = (y + 1) % 5
    attack = Function(spgd(k=40, steps=20))
    apart = attack(model, x, y, targets=target, targeted=True)
    assert torch.equal(attack(model, x, target, targeted=True), apart)
    assert bool((predictions(model, apart) == target).any())
    one = attack(model, x, y, targets=2, targeted=True)
    assert torch.equal(one, attack(model, x, torch.full_like(y, 2), targeted=True))


def test_smallest_returns_fewer_pixels_than_the_whole_budget() -> None:
    model, x, y = problem()
    whole = adapters.spgd(model, x, y, k=16, steps=8)
    small = adapters.spgd(model, x, y, k=16, steps=8, smallest=True)
    fooled = predictions(model, small) != y
    assert torch.equal(fooled, predictions(model, whole) != y)
    assert int(changed(x, small)[fooled].sum()) < int(changed(x, whole)[fooled].sum())
    assert bool((changed(x, small)[~fooled] == 0).all())


def test_what_cannot_be_done_is_refused() -> None:
    model, x, y = problem(2)
    with pytest.raises(UnsupportedError, match="targeted=True"):
        Function(spgd())(model, x, y, targets=(y + 1) % 5)
    with pytest.raises(UnsupportedError, match="smallest=False"):
        Function(spgd(), smallest=True)(model, x, y, targeted=True)


def test_other_patterns_by_keyword() -> None:
    model, x, y = problem(2)
    x_adv = adapters.spgd(model, x, y, k=1, pattern=sp.Rows(), steps=2)
    assert int((x_adv != x).any(1).any(2).sum(1).max()) <= 1
