"""Evaluations of the model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Event, Thread

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import ModelError
from sparsepgd.problem.goals import LOSSES
from sparsepgd.problem.oracle import Oracle, borrowed, logits_of
from support.models import SmallConvNet, images, labelled


class _BadSlope(torch.autograd.Function):
    """The image itself; its gradient is spoilt at the first pixel of the first image."""

    @staticmethod
    def forward(ctx: object, x: Tensor, bad: float) -> Tensor:
        ctx.bad = bad  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        g = g.clone()
        g[0, :, 0, 0] = ctx.bad  # type: ignore[attr-defined]
        return g, None


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_gradients_that_are_not_finite_reach_no_attack(bad: float, scale: float) -> None:
    w = torch.linspace(-1, 1, 12)

    def model(x: Tensor) -> Tensor:
        score = (_BadSlope.apply(x, bad).flatten(1) * w).sum(1)
        return torch.stack([score, -score], 1)

    x, y = torch.full((2, 3, 2, 2), 0.5), torch.zeros(2, dtype=torch.int64)
    g = Oracle(model, sp.Untargeted(), scale=scale).evaluate(x, y, y, gradient=True).gradient
    assert g is not None
    assert not g[0, :, 0, 0].any()
    assert torch.equal(g[0, :, 1], g[1, :, 1])  # all else is as it was
    assert g[1].all()


def test_the_gradient_goes_along_the_loss_of_each_image_and_the_loss_that_is_reported_stays() -> None:
    model, x = SmallConvNet(dtype=torch.float64).eval(), images(6, dtype=torch.float64)
    y, names = labelled(model, x), list(LOSSES)
    along = torch.tensor([0, 1, 2, 2, 1, 0])
    seen = Oracle(model, sp.Untargeted(), "margin").evaluate(x, y, y, gradient=True, along=along)
    alone = {name: Oracle(model, sp.Untargeted(), name).evaluate(x, y, y, gradient=True) for name in names}  # type: ignore
    assert torch.equal(seen.loss, alone["margin"].loss)
    assert seen.gradient is not None
    for row, place in enumerate(along.tolist()):
        for name, one in alone.items():
            assert one.gradient is not None
            assert torch.allclose(seen.gradient[row], one.gradient[row], rtol=1e-9) == (name == names[place])


SLOPE = """
import sys
import torch
from sparsepgd.problem.goals import Untargeted, Verdict
from sparsepgd.problem.oracle import Oracle

class AtOnce(Untargeted):
    def verdict(self, logits, *more):
        return Verdict(logits.sum(1), logits.sum(1) > 0, torch.arange(3.0).expand_as(logits))

x, y = torch.rand(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)
g = Oracle(lambda x: 5 * x.flatten(1)[:, :3], AtOnce()).evaluate(x, y, y, gradient=True).gradient
assert g.flatten(1).tolist() == [[0, 5, 10, 0]] * 2
assert "sympy" not in sys.modules
"""


def test_a_gradient_of_known_logits_does_not_import_sympy() -> None:
    done = subprocess.run([sys.executable, "-c", SLOPE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "attack", [sp.SparsePGD(sp.Budget(k=20), 20), sp.SparseRS(sp.Budget(k=20), 40)], ids=["gradient", "black box"]
)
def test_a_model_built_under_inference_mode_is_attacked_and_restored(attack: sp.Attack) -> None:
    with torch.inference_mode():
        model = SmallConvNet()
    x = images(6)
    y = labelled(SmallConvNet(), x)
    before = [*model.parameters(), *model.buffers()]
    result, expected = attack(model, x, y), attack(SmallConvNet(), x, y)
    assert bool(expected.fooled.any())
    assert torch.equal(result.x_adv, expected.x_adv)
    assert all(now is then for now, then in zip([*model.parameters(), *model.buffers()], before, strict=True))
    assert all(parameter.requires_grad and parameter.is_inference() for parameter in model.parameters())
    assert model.training


def test_a_model_built_under_inference_mode_is_restored_after_an_error_and_shared_tensors_stay_shared() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
    before = list(model.parameters())

    def broken() -> None:
        with borrowed(model, torch.device("cpu")):
            assert not any(parameter.is_inference() for parameter in model.parameters())
            assert model[0].weight.data_ptr() == model[1].weight.data_ptr()
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        broken()
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_images_of_another_dtype_than_the_model_are_refused_with_advice() -> None:
    x, y = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    with pytest.raises(
        sp.errors.DTypeError, match=r"images are torch.float64, but the model is torch.float32.*x\.float"
    ):
        sp.SparsePGD(sp.Budget(2), 3)(SmallConvNet(), x.double(), y)
    with pytest.raises(
        sp.errors.DTypeError, match=r"but the model is torch.float64.*; use x\.double\(\) or model\.float"
    ):
        sp.SparsePGD(sp.Budget(2), 3)(SmallConvNet().double(), x, y)
    assert sp.SparsePGD(sp.Budget(2), 3)(SmallConvNet().double(), x.double(), y).x_adv.dtype == torch.float64


def test_an_error_of_the_model_is_reported_with_the_shape_of_the_images() -> None:
    x, y = torch.rand(2, 4, 8, 8), torch.tensor([0, 1])
    with pytest.raises(
        sp.errors.ModelError, match=r"images of shape \(2, 4, 8, 8\): RuntimeError: Given groups=1"
    ) as told:
        sp.SparsePGD(sp.Budget(2), 3)(SmallConvNet(), x, y)
    assert isinstance(told.value.__cause__, RuntimeError), "for --debug"


class _Meeting(SmallConvNet):
    """Each of two attacks waits inside the model for the other one: the first until the second has come, for a while,
    the second until the first has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.first_in, self.second_in, self.first_out = Event(), Event(), Event()
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.first_in.is_set():
            self.first_in.set()
            self.second_in.wait(0.3)
        elif not self.second_in.is_set():
            self.second_in.set()
            self.first_out.wait(10)
        self.modes.append(self.training)
        return super().forward(x)


def test_attacks_of_two_threads_on_one_model_do_not_disturb_each_other() -> None:
    model, x, attack = _Meeting().train(), images(4), sp.SparsePGD(sp.Budget(k=3), 4)
    y = labelled(SmallConvNet(), x)
    found: dict[int, sp.Result] = {}

    def first() -> None:
        found[0] = attack(model, x, y, seed=0)
        model.first_out.set()

    def second() -> None:
        model.first_in.wait(10)
        found[1] = attack(model, x, y, seed=1)

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (0, 1):
        assert torch.equal(found[seed].x_adv, attack(SmallConvNet(), x, y, seed=seed).x_adv)
    assert not any(model.modes)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(model.net[1].running_mean, SmallConvNet().net[1].running_mean)


def test_the_batch_that_the_model_refuses_is_named() -> None:
    def model(x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("expected more than 1 value per channel")
        return x.flatten(1)[:, :3]

    with pytest.raises(ModelError, match=r"images of shape \(1, 3, 12, 12\): ValueError: expected more than 1 value"):
        logits_of(model, images(5), batch_size=2)


def test_the_gpu_of_a_borrowed_model_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        before, current[0] = current[0], device.index
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    with borrowed(SmallConvNet(), torch.device("cuda", 1)):
        assert current == [1]
    assert current == [0]
