"""Our attacks in foolbox's call shape: its bounds, its criteria, its epsilons, and its verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from support.packages import MEAN, STD, Normalised, changed, package, predictions, problem, spgd

foolbox = package("foolbox")
from sparsepgd.adapters.foolbox import FoolboxAttack, GroupDistance  # noqa: E402


def wrapped(model: Any, bounds: tuple[float, float] = (0, 1), **options: Any) -> Any:
    return foolbox.PyTorchModel(model, bounds=bounds, device="cpu", **options)


def test_it_is_a_foolbox_attack_and_finds_what_ours_finds() -> None:
    model, x, y = problem()
    attack = FoolboxAttack(spgd(), seed=3)
    assert isinstance(attack, foolbox.attacks.base.Attack)
    raw, clipped, success = attack(wrapped(model), x, y, epsilons=12)
    ours = spgd()(model, x, y, seed=3)
    assert torch.equal(raw, clipped)
    assert torch.equal(clipped, ours.x_adv)
    assert torch.equal(success, ours.fooled)
    assert bool(success.any())


def test_epsilons_are_values_of_k_and_none_is_that_of_the_budget() -> None:
    model, x, y = problem()
    _, clipped, success = FoolboxAttack(spgd(k=7))(wrapped(model), x, y, epsilons=[1, None, 30])
    assert success.shape == (3, len(x))
    assert [int(changed(x, each).max()) for each in clipped] == [1, 7, 30]
    assert bool((success[2] >= success[0]).all())
    for k in (0.5, float("inf")):
        with pytest.raises(UnsupportedError, match=f"k={k}; the number of pixels or groups"):
            FoolboxAttack(spgd())(wrapped(model), x, y, epsilons=k)


@pytest.mark.parametrize("count", [1, 3])
def test_int32_labels_and_a_single_image(count: int) -> None:
    model, x, y = problem(count)
    _, clipped, success = FoolboxAttack(spgd())(wrapped(model), x, y.int(), epsilons=12)
    assert clipped.shape == x.shape
    assert torch.equal(success, predictions(model, clipped) != y)


def test_a_targeted_criterion_leads_to_the_target() -> None:
    model, x, y = problem(12)
    target = (y + 1) % 5
    criterion = foolbox.criteria.TargetedMisclassification(target)
    _, clipped, success = FoolboxAttack(spgd(k=40, steps=20))(wrapped(model), x, criterion, epsilons=None)
    assert torch.equal(success, predictions(model, clipped) == target)
    assert bool(success.any())


def test_other_bounds_leave_untouched_pixels_as_they_were() -> None:
    model, x, _ = problem(24)
    scaled = (2 * x - 1) ** 3  # values that do not survive the way to [0, 1] and back
    behind = Shift(model).eval()
    y = predictions(behind, scaled)
    _, clipped, success = FoolboxAttack(spgd())(wrapped(behind, (-1, 1)), scaled, y, epsilons=12)
    assert int(changed(scaled, clipped).max()) <= 12
    assert float(clipped.min()) >= -1
    assert float(clipped.max()) <= 1
    assert torch.equal(success, predictions(behind, clipped) != y)
    assert bool(success.any())


class Shift(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model((x + 1) / 2)


def test_foolbox_preprocessing_is_part_of_the_model() -> None:
    model, x, y = problem()
    preprocessing = {"mean": MEAN.flatten(), "std": STD.flatten(), "axis": -3}
    fmodel = wrapped(Normalised(model).eval(), preprocessing=preprocessing)
    _, clipped, success = FoolboxAttack(spgd())(fmodel, x, y, epsilons=12)
    assert int(changed(x, clipped).max()) <= 12
    assert torch.equal(success, predictions(model, clipped) != y)
    assert bool(success.any())


def test_the_distance_counts_pixels_and_takes_back_what_is_outside() -> None:
    x = torch.zeros(2, 3, 4, 4)
    x_adv = x.clone()
    x_adv[0, :, 0, 0] = 1
    x_adv[1, 0, 0, :3] = 1
    distance = GroupDistance(sp.Pixels())
    assert distance(x, x_adv).tolist() == [1, 3]
    assert foolbox.distances.l0(x, x_adv).tolist() == [3, 3]  # channels, not pixels
    assert changed(x, distance.clip_perturbation(x, x_adv, 2)).tolist() == [1, 0]


def test_what_cannot_be_done_is_refused() -> None:
    model, x, y = problem(2)
    attack = FoolboxAttack(spgd())
    with pytest.raises(UnsupportedError, match="repeating the attack changes nothing"):
        attack.repeat(3)
    with pytest.raises(TypeError, match="starting_points"):
        attack(wrapped(model), x, y, epsilons=5, starting_points=x)
    either = foolbox.criteria.Misclassification(y) & foolbox.criteria.Misclassification(y)
    with pytest.raises(UnsupportedError, match="TargetedMisclassification"):
        attack(wrapped(model), x, either, epsilons=5)
    numpy_model = foolbox.NumPyModel(lambda array: np.zeros((len(array), 5), np.float32), bounds=(0, 1))
    with pytest.raises(UnsupportedError, match="PyTorchModel"):
        attack(numpy_model, x.numpy(), y.numpy(), epsilons=5)
