"""The lean copy of a model: the same logits and gradients as under autocast, and a model that it does not suit is run
as it is."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparsepgd as sp
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.lean import Affine, lean
from support.models import images, labelled

HALF = torch.bfloat16


class Net(nn.Module):
    """Convolution and BatchNorm, then the function of a test."""

    def __init__(self, after: Any) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 10)
        self.after = after
        with torch.no_grad():
            for tensor in (self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var):
                assert tensor is not None
                tensor.uniform_(0.2, 1.5)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.after(self.norm(self.conv(x))).mean((2, 3)))
        return logits


def in_place(u: Tensor) -> Tensor:
    F.relu(u, inplace=True)
    return u


def in_place_by_name(u: Tensor) -> Tensor:
    u.relu_()
    return u + 1


AFTER: dict[str, Any] = {
    "nothing": lambda u: u,
    "relu": torch.relu,
    "module": nn.ReLU(),
    "softplus": nn.Softplus(),
    "another softplus": nn.Softplus(beta=2),
    "silu": F.silu,
    "leaky relu": F.leaky_relu,
    "in place": in_place,
    "in place by name": in_place_by_name,
    "used twice": lambda u: torch.relu(u) + u,
    "in a list": lambda u: torch.cat([u, 2 * u], 2),
    "a branch on its shape": lambda u: torch.relu(u) if u.shape[1] == 8 else u,
    "indexing": lambda u: u[:, :, ::2],
}


def under(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits under autocast, and their gradient."""
    point = x.clone().requires_grad_()
    with torch.autocast("cpu", HALF, cache_enabled=False):
        logits = model(point)
    (gradient,) = torch.autograd.grad(logits.float().square().sum(), point)
    return logits.detach().float(), gradient


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_logits_and_gradients_are_those_of_the_model(after: Any) -> None:
    torch.manual_seed(0)
    model, x = Net(after), images(6)
    twin = lean(model, HALF)
    assert twin is not None
    assert isinstance(twin.norm, Affine)
    wanted, given = under(model, x), under(twin, x)
    torch.testing.assert_close(given[0], wanted[0], rtol=0.03, atol=0.03)
    assert float(F.cosine_similarity(given[1].flatten(1), wanted[1].flatten(1)).min()) > 0.99


def test_the_model_itself_stays_as_it_is() -> None:
    model = Net(torch.relu)
    before = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    twin = lean(model, HALF)
    assert twin is not None
    assert twin.conv.weight.dtype == HALF
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert type(model.norm) is nn.BatchNorm2d


def test_a_model_without_batch_normalisation_or_that_cannot_be_copied_has_no_lean_copy() -> None:
    assert lean(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), HALF) is None
    model = Net(torch.relu)
    model.lock = sys.stdout  # files cannot be copied
    assert lean(model, HALF) is None


def running(model: nn.Module, x: Tensor) -> nn.Module:
    """What the engine runs after the first answer."""
    with Engine("bf16", graphs=False).running(model, torch.device("cpu")) as run:
        run(x)
        called: nn.Module = run.call
        return called


def test_the_engine_runs_the_copy_only_if_it_answers_like_the_model() -> None:
    x = images(6)
    plain, noisy = Net(torch.relu), Net(lambda u: u + torch.randn(u.shape))
    assert running(plain, x) is not plain
    assert running(noisy, x) is noisy

    class Odd(Net):
        def forward(self, x: Tensor) -> Tensor:
            scale = 1.0 if type(self.norm) is nn.BatchNorm2d else 3.0
            return super().forward(x) * scale

    odd = Odd(torch.relu)
    assert running(odd, x) is odd


def test_a_model_that_rejects_deferred_tensors_runs_as_it_is() -> None:
    class Strict(Net):
        def forward(self, x: Tensor) -> Tensor:
            u = self.norm(self.conv(x))
            if type(u) is not Tensor:
                raise TypeError("a tensor, please")
            logits: Tensor = self.head(u.mean((2, 3)))
            return logits

    model = Strict(None)
    assert running(model, images(6)) is model


def test_an_attack_in_half_precision_reports_the_predictions_of_the_model_itself() -> None:
    torch.manual_seed(1)
    model, x = Net(torch.relu), images(16)
    y = labelled(model, x)
    result = sp.SparseAnneal(sp.Budget(k=6), 40)(model, x, y, engine=Engine("bf16", graphs=False))
    assert torch.equal(model(result.x_adv).argmax(1) != y, result.fooled)
