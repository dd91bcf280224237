"""Beside implementations from the package index, on the same model and images: as strong, at no higher cost.

They are in the extra `peers`; what is not installed is skipped. Measured: fooled images, the median of the smallest
perturbations found, and what the model is asked for them; seconds are what `spgd bench` compares.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.baselines import CWL0, GreedyFool, OnePixel, SparseFool
from support.models import Counting

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
N = 6


@pytest.fixture  # afresh for each: others leave the model in other modes
def plain() -> tuple[nn.Module, Tensor, Tensor]:
    x, y = zoo.bundled_images(N)
    return zoo.load("small-plain").eval(), x, y


class Found(NamedTuple):
    """What an attack found, and what it asked of the model."""

    fooled: int
    features: float
    """The median of the changed ones, among the fooled."""
    asked: int
    flowed: int


def measured(find: Callable[[nn.Module], Tensor], model: nn.Module, x: Tensor, y: Tensor) -> Found:
    counting = Counting(model)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002, as theirs draw from the global generators
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x_adv = find(counting)
    with torch.no_grad():
        fooled = model(x_adv).argmax(1) != y
    changed = (x_adv != x).flatten(1).sum(1)[fooled].float()
    median = float(changed.median()) if len(changed) else torch.inf
    return Found(int(fooled.sum()), median, counting.asked, counting.flowed)


def features(attack: Any, **settings: Any) -> Any:
    return attack(sp.Budget(k=3072, pattern=sp.Features()), **settings, early_stop=False)


def of_art(name: str, x: Tensor, y: Tensor | None = None, **settings: Any) -> Callable[[nn.Module], Tensor]:
    kind = getattr(pytest.importorskip("art.attacks.evasion"), name)
    estimators = pytest.importorskip("art.estimators.classification")
    one_hot = None if y is None else np.eye(10)[y.numpy()]

    def find(model: nn.Module) -> Tensor:
        classifier = estimators.PyTorchClassifier(model, nn.CrossEntropyLoss(), (3, 32, 32), 10, clip_values=(0, 1))
        return torch.tensor(kind(classifier, batch_size=N, verbose=False, **settings).generate(x.numpy(), y=one_hot))

    return find


def test_sparse_fool_needs_no_more_features_and_asks_no_more_than_that_of_torchattacks(plain: Any) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    _, x, y = plain
    ours = measured(lambda model: features(SparseFool, steps=20)(model, x, y).x_adv, *plain)
    theirs = measured(lambda model: torchattacks.SparseFool(model, steps=20)(x, y), *plain)
    assert ours.fooled >= theirs.fooled
    assert ours.features <= theirs.features
    assert ours.asked <= theirs.asked
    assert ours.flowed <= theirs.flowed


@pytest.mark.nightly  # that of ART takes most of a minute
def test_cw_needs_no_more_features_and_asks_no_more_than_that_of_art(plain: Any) -> None:
    _, x, y = plain
    attack = features(
        CWL0, steps=100, lr=0.05, c_first=0.1, c_last=100, c_factor=10, small=torch.inf, power=1, rounds=60
    )
    theirs = measured(of_art("CarliniL0Method", x, y, max_iter=5, binary_search_steps=5), *plain)
    ours = measured(lambda model: attack(model, x, y).x_adv, *plain)
    assert ours.fooled >= theirs.fooled
    assert ours.features <= theirs.features
    assert ours.asked <= theirs.asked
    assert ours.flowed <= theirs.flowed


def test_greedy_fool_needs_no_more_features_and_gradients_than_the_saliency_maps_of_art(plain: Any) -> None:
    """It asks for more logits: those of the reductions."""
    _, x, y = plain
    theirs = measured(of_art("SaliencyMapMethod", x, theta=1.0, gamma=0.2), *plain)
    ours = measured(lambda model: features(GreedyFool, steps=300)(model, x, y).x_adv, *plain)
    assert ours.fooled >= theirs.fooled
    assert ours.features <= theirs.features
    assert ours.flowed <= theirs.flowed


def test_one_pixel_fools_as_many_as_that_of_torchattacks_for_as_many_questions(plain: Any) -> None:
    """Both are random: they may differ by an image or two, and so by the questions that those are asked."""
    torchattacks = pytest.importorskip("torchattacks")
    _, x, y = plain
    settings = {"population": 90, "generations": 10}
    ours = measured(lambda model: OnePixel(sp.Budget(k=3), **settings)(model, x, y).x_adv, *plain)
    theirs = measured(lambda model: torchattacks.OnePixel(model, pixels=3, steps=10, popsize=90)(x, y), *plain)
    assert ours.fooled >= theirs.fooled - 2
    assert ours.asked <= 1.2 * theirs.asked
