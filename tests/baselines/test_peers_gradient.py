"""Beside implementations from the package index, on the same model and images: as strong, at no higher cost.

They run where the extra `peers` is installed, and are skipped elsewhere.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.baselines import L1APGD, SigmaZero
from support.models import Counting

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
COUNT = 8


def peer(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, Tensor, Tensor]:
    """Images that the model gets right."""
    model = zoo.load("small-plain").eval()
    x, y = zoo.bundled_images(2 * COUNT)
    with torch.no_grad():
        right = model(x).argmax(1) == y
    return model, x[right][:COUNT], y[right][:COUNT]


def features(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor) -> Tensor:
    """Changed features of each success, (B,); infinite where there is none."""
    with torch.no_grad():
        fooled = model(x_adv).argmax(1) != y
    return torch.where(fooled, (x_adv != x).flatten(1).sum(1).double(), torch.inf)


def test_sigma_zero_finds_perturbations_as_small_as_adv_lib_with_as_many_gradients(plain: Any) -> None:
    theirs = peer("adv_lib.attacks").sigma_zero
    model, x, y = plain
    budget, ours, others = sp.Budget(k=x[0].numel(), pattern=sp.Features()), Counting(model), Counting(model)
    result = SigmaZero(budget, 100, early_stop=False)(ours, x, y)
    own, other = features(model, x, y, result.x_adv), features(model, x, y, theirs(others, x, y, num_steps=100))
    assert float(own.median()) <= 1.1 * float(other.median()) + 1
    assert int(own.isinf().sum()) <= int(other.isinf().sum())
    assert ours.flowed <= others.flowed
    assert ours.asked <= others.asked + 3 * COUNT, "at the start, at the end and to confirm"


def test_sigma_zero_is_at_least_as_small_as_the_fmn_of_foolbox(plain: Any) -> None:
    foolbox = peer("foolbox")
    model, x, y = plain
    attack = foolbox.attacks.L0FMNAttack(steps=100)
    found = attack(foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu"), x, y, epsilons=None)[1]
    ours = SigmaZero(sp.Budget(k=x[0].numel(), pattern=sp.Features()), 100, early_stop=False)(model, x, y)
    own, other = features(model, x, y, ours.x_adv), features(model, x, y, found.detach())
    assert float(own.median()) <= 1.1 * float(other.median()) + 1


def test_l1_apgd_on_k_pixels_is_as_strong_as_that_of_adv_lib_projected(plain: Any) -> None:
    theirs = peer("adv_lib.attacks").apgd
    model, x, y = plain
    budget = sp.Budget(k=20)
    torch.manual_seed(0)
    dense = theirs(model, x, y, eps=7.5, norm=1, n_iter=50, loss_function="ce", use_large_reps=True)
    kept = budget.resolve((3, 32, 32)).top_k(((dense - x) ** 2).sum(1, keepdim=True), None)
    with torch.no_grad():
        robust = int((model(torch.where(kept > 0, dense, x)).argmax(1) == y).sum())
    ours = L1APGD(budget, 50, targets=0)(model, x, y)
    assert int(ours.robust.sum()) <= robust
