"""Beside implementations from the package index, on the same model and images: as strong, and not slower.

They are in the extra `peers`; what is not installed is skipped. Measured: fooled images, the median of the smallest
perturbations found, seconds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.baselines import CWL0, GreedyFool, OnePixel, SparseFool

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
N = 6


@pytest.fixture  # afresh for each: others leave the model in other modes
def plain() -> tuple[nn.Module, Tensor, Tensor]:
    x, y = zoo.bundled_images(N)
    return zoo.load("small-plain").eval(), x, y


def measured(find: Callable[[], Tensor], model: nn.Module, x: Tensor, y: Tensor) -> tuple[int, float, float]:
    """Images fooled, the median of changed features among them, seconds."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x_adv = find()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        fooled = model(x_adv).argmax(1) != y
    features = (x_adv != x).flatten(1).sum(1)[fooled].float()
    return int(fooled.sum()), float(features.median()) if len(features) else torch.inf, seconds


def features(attack: Any, **settings: Any) -> Any:
    return attack(sp.Budget(k=3072, pattern=sp.Features()), **settings, early_stop=False)


def wrapped(model: nn.Module) -> Any:
    art = pytest.importorskip("art.estimators.classification")
    return art.PyTorchClassifier(model, nn.CrossEntropyLoss(), (3, 32, 32), 10, clip_values=(0, 1))


def test_sparse_fool_needs_no_more_features_than_that_of_torchattacks(plain: Any) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    model, x, y = plain
    ours = measured(lambda: features(SparseFool, steps=20)(model, x, y).x_adv, *plain)
    theirs = measured(lambda: torchattacks.SparseFool(model, steps=20)(x, y), *plain)
    print(f"SparseFool {ours}, torchattacks {theirs}")
    assert ours[0] >= theirs[0]
    assert ours[1] <= theirs[1]
    assert ours[2] <= theirs[2]


def test_cw_needs_no_more_features_than_that_of_art(plain: Any) -> None:
    evasion = pytest.importorskip("art.attacks.evasion")
    model, x, y = plain
    classifier = wrapped(model)
    attack = features(
        CWL0, steps=100, lr=0.05, c_first=0.1, c_last=100, c_factor=10, small=torch.inf, power=1, rounds=60
    )
    art = evasion.CarliniL0Method(classifier, max_iter=5, binary_search_steps=5, batch_size=N, verbose=False)
    ours = measured(lambda: attack(model, x, y).x_adv, *plain)
    theirs = measured(lambda: torch.tensor(art.generate(x.numpy(), y=np.eye(10)[y.numpy()])), *plain)
    print(f"CWL0 {ours}, ART {theirs}")
    assert ours[0] >= theirs[0]
    assert ours[1] <= theirs[1]
    assert ours[2] <= theirs[2]


def test_greedy_fool_needs_no_more_features_than_the_saliency_maps_of_art(plain: Any) -> None:
    evasion = pytest.importorskip("art.attacks.evasion")
    model, x, y = plain
    art = evasion.SaliencyMapMethod(wrapped(model), theta=1.0, gamma=0.2, batch_size=N, verbose=False)
    ours = measured(lambda: features(GreedyFool, steps=300)(model, x, y).x_adv, *plain)
    theirs = measured(lambda: torch.tensor(art.generate(x.numpy())), *plain)
    print(f"GreedyFool {ours}, ART JSMA {theirs}")
    assert ours[0] >= theirs[0]
    assert ours[1] <= theirs[1]
    assert ours[2] <= theirs[2]


class Counted(nn.Module):
    """Counts the images it is asked about."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.asked = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return self.model(x)


def test_one_pixel_fools_as_many_as_that_of_torchattacks_and_asks_as_fast(plain: Any) -> None:
    """Both are random: they may differ by an image or two. Nearly all the time is the model's, so it is that of a
    question which is compared, the best of two turns."""
    torchattacks = pytest.importorskip("torchattacks")
    model, x, y = plain
    found: dict[str, list[tuple[int, float]]] = {"ours": [], "theirs": []}
    for _ in range(2):
        for name in found:
            counted = Counted(model)
            ours = OnePixel(sp.Budget(k=3), population=90, generations=10)
            theirs = torchattacks.OnePixel(counted, pixels=3, steps=10, popsize=90)
            find = partial(_run, ours, counted, x, y) if name == "ours" else partial(theirs, x, y)
            fooled, _, seconds = measured(find, *plain)
            found[name].append((fooled, seconds / counted.asked))
    print(f"OnePixel {found['ours']}, torchattacks {found['theirs']}")
    assert max(found["ours"])[0] >= max(found["theirs"])[0] - 2
    assert min(pace for _, pace in found["ours"]) <= 1.2 * min(pace for _, pace in found["theirs"])


def _run(attack: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x_adv: Tensor = attack(model, x, y).x_adv
    return x_adv
