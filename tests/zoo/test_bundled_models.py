"""The shipped models are what their cards say, and the attacks act on them as they should."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd import zoo

X, Y = zoo.bundled_images(48)


@pytest.mark.parametrize("name", zoo.bundled_names())
def test_weights_are_small_and_the_card_tells_their_origin(name: str) -> None:
    weights = files("sparsepgd.zoo").joinpath("bundled", f"{name}.safetensors").read_bytes()
    assert len(weights) <= 2_000_000
    card = zoo.card(name)
    assert "--recipe recipes/subjects/" in card.command or f"--name {name}" in card.command
    assert tuple(card.classes) == zoo.CIFAR10_CLASSES


@pytest.mark.parametrize("name", zoo.bundled_names())
def test_clean_accuracy_is_that_of_the_card(name: str) -> None:
    x, y = zoo.bundled_images()
    with torch.no_grad():
        accuracy = float((zoo.load(name)(x).argmax(1) == y).float().mean())
    assert accuracy == pytest.approx(zoo.card(name).clean_accuracy, abs=0.06)  # 500 images of 10,000


def test_models_without_defence_of_the_paper_and_of_this_project_are_shipped_in_the_order_of_their_robustness() -> None:
    assert zoo.bundled_names() == ["small-plain", "small-strades", "small-anneal"]
    attack = sp.SparseAnneal(sp.Budget(k=20), steps=60)
    plain, paper, ours = (attack(zoo.load(name), X, Y).robust_accuracy for name in zoo.bundled_names())
    assert plain < 0.15
    assert plain + 0.25 < paper < ours - 0.1


@pytest.mark.parametrize(
    ("pattern", "gradient"),
    [
        (sp.Rows(), "projected"),
        pytest.param(sp.Rows(), "unprojected", marks=pytest.mark.nightly),
        pytest.param(sp.Patches(5), "projected", marks=pytest.mark.nightly),
        pytest.param(sp.Patches(5), "unprojected", marks=pytest.mark.nightly),
    ],
)
def test_structured_attacks_beat_a_random_place_by_far(pattern: sp.Pattern, gradient: Any) -> None:
    """Same rule for the magnitudes, but the groups stay where they were drawn."""
    model, x, y = zoo.load("small-plain"), X[:40], Y[:40]
    budget = sp.Budget(k=1, pattern=pattern)
    # The paper's pace: with the faster default a random place is nearly as good for the unprojected gradient.
    searched = sp.SparsePGD(budget, 250, gradient, alpha=0.0125, beta=0.0125, tolerance=50)(model, x, y)
    somewhere = sp.SparsePGD(budget, 250, gradient, alpha=0.0125, beta=1e-12, tolerance=10**9)(model, x, y)
    assert int(searched.robust.sum()) <= 0.7 * int(somewhere.robust.sum())
