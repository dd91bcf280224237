"""Our attacks in ART's call shape: numpy in and out, its clip values, preprocessing, masks and black boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sparsepgd as sp
from sparsepgd.errors import NoGradientError, UnsupportedError
from support.packages import MEAN, STD, Normalised, mixed_mode, modes, package, predictions, problem, spgd, watched

classification = package("art.estimators.classification")
from art.attacks.attack import EvasionAttack  # noqa: E402

from sparsepgd.adapters.art import ARTAttack  # noqa: E402


def classifier(model: nn.Module, clip_values: Any = (0, 1), **options: Any) -> Any:
    loss = nn.CrossEntropyLoss()
    return classification.PyTorchClassifier(
        model, loss, (3, 12, 12), 5, clip_values=clip_values, device_type="cpu", **options
    )


def pixels(x: np.ndarray, x_adv: np.ndarray) -> int:
    return int((x != x_adv).any(1).reshape(len(x), -1).sum(1).max())


def test_it_is_an_art_attack_and_finds_what_ours_finds() -> None:
    model, x, y = problem()
    attack = ARTAttack(classifier(model), spgd(), seed=3)
    assert isinstance(attack, EvasionAttack)
    assert "SparsePGD(budget=Budget(k=12, Pixels())" in repr(attack)
    found = attack.generate(x=x.numpy(), y=y.int().numpy())
    ours = spgd()(model, x, y, seed=3)
    assert found.dtype == np.float32
    assert np.array_equal(found, ours.x_adv.numpy())
    assert bool(ours.fooled.any())


def test_labels_may_be_numbers_one_hot_or_left_out() -> None:
    model, x, y = problem()
    attack = ARTAttack(classifier(model), spgd())
    found = attack.generate(x.numpy(), y.numpy())
    for other in (np.eye(5)[y.numpy()], y.numpy()[:, None], None):
        assert np.array_equal(attack.generate(x.numpy(), other), found)
    assert np.array_equal(attack.generate(x.numpy()[:1], y.numpy()[:1]), found[:1])


def test_other_clip_values_leave_untouched_pixels_as_they_were() -> None:
    model, x, _ = problem(24)
    scaled = ((2 * x - 1) ** 3).numpy()  # values that do not survive the way to [0, 1] and back
    estimator = classifier(model, (-1, 1), preprocessing=(-1.0, 2.0))
    found = ARTAttack(estimator, spgd()).generate(scaled)
    assert 1 <= pixels(scaled, found) <= 12
    assert -1 <= found.min() <= found.max() <= 1
    assert (estimator.predict(found).argmax(1) != estimator.predict(scaled).argmax(1)).any()


def test_whole_numbers_are_not_cut_off() -> None:
    model, x, y = problem()
    attack = ARTAttack(classifier(model, (0, 255), preprocessing=(0.0, 255.0)), spgd())
    whole = (x * 255).round().to(torch.uint8).numpy()
    found = attack.generate(whole, y.numpy())
    assert found.dtype == np.float32
    assert np.array_equal(found, attack.generate(whole.astype(np.float32), y.numpy()))


def test_preprocessing_is_part_of_the_model_and_float64_stays_float64() -> None:
    model, x, y = problem()
    mean, std = MEAN[0].numpy(), STD[0].numpy()
    estimator = classifier(Normalised(model).eval(), preprocessing=(mean, std))
    double = x.double().numpy() + 1e-12 * (x.double().numpy() < 0.5)  # more digits than float32 has
    found = ARTAttack(estimator, spgd()).generate(double, y.numpy())
    assert found.dtype == np.float64
    assert 1 <= pixels(double, found) <= 12
    assert (estimator.predict(found.astype(np.float32)).argmax(1) != y.numpy()).any()


def test_the_model_is_attacked_in_evaluation_mode_and_every_mode_restored() -> None:
    model, x, y = problem()
    attack = ARTAttack(classifier(model), spgd())
    before, seen = mixed_mode(model), watched(model)
    attack.generate(x.numpy(), y.numpy())
    assert seen
    assert not any(seen)
    assert modes(model) == before


def test_a_mask_says_where_pixels_may_change() -> None:
    model, x, y = problem()
    mask = np.zeros((12, 12), np.float32)
    mask[:, :6] = 1
    found = ARTAttack(classifier(model), spgd()).generate(x.numpy(), y.numpy(), mask=mask)
    assert (found != x.numpy())[..., :6].any()
    assert not (found != x.numpy())[..., 6:].any()
    assert (ARTAttack(classifier(model), spgd()).generate(x.numpy(), y.numpy(), mask=mask.tolist()) == found).all()
    channels = np.zeros((3, 12, 12))
    channels[0] = 1
    with pytest.raises(UnsupportedError, match="channels"):
        ARTAttack(classifier(model), spgd()).generate(x.numpy(), y.numpy(), mask=channels)


def test_targeted_leads_to_the_target() -> None:
    model, x, y = problem(12)
    target = (y + 1) % 5
    attack = ARTAttack(classifier(model), spgd(k=40, steps=20), targeted=True)
    found = attack.generate(x.numpy(), target.numpy())
    assert bool((predictions(model, torch.from_numpy(found)) == target).any())
    with pytest.raises(UnsupportedError, match="needs targets"):
        attack.generate(x.numpy())


@pytest.mark.parametrize("channels_first", [True, False])
def test_any_other_classifier_is_a_black_box(channels_first: bool) -> None:
    model, x, y = problem()
    order = (0, 1, 2, 3) if channels_first else (0, 2, 3, 1)

    def predict(array: np.ndarray) -> Any:
        back = array if channels_first else array.transpose(0, 3, 1, 2)
        with torch.no_grad():
            return model(torch.from_numpy(np.ascontiguousarray(back))).numpy()

    shape = (3, 12, 12) if channels_first else (12, 12, 3)
    box = classification.BlackBoxClassifierNeuralNetwork(
        predict, shape, 5, clip_values=(0, 1), channels_first=channels_first
    )
    search = sp.SparseRS(sp.Budget(k=20), queries=60)
    found = ARTAttack(box, search).generate(x.numpy().transpose(order), y.numpy())
    assert np.array_equal(found, search(model, x, y).x_adv.numpy().transpose(order))
    with pytest.raises(NoGradientError, match="SparseRS"):
        ARTAttack(box, spgd()).generate(x.numpy().transpose(order), y.numpy())


def test_what_cannot_be_done_is_refused() -> None:
    model, x, y = problem(2)
    with pytest.raises(UnsupportedError, match="expectation"):
        ARTAttack(classifier(model), spgd()).generate(x.numpy(), y.numpy(), expectation=3)
    uneven = (np.zeros((3, 12, 12)), np.linspace(0.5, 1, 432).reshape(3, 12, 12))
    with pytest.raises(UnsupportedError, match="one pair"):
        ARTAttack(classifier(model, uneven), spgd()).generate(x.numpy(), y.numpy())
    with pytest.raises(ValueError, match="cannot be set"):
        ARTAttack(classifier(model), spgd()).set_params(epsilon=1)
