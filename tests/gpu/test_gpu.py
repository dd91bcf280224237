"""What only a CUDA device can show: recorded steps, no waiting, memory that stays, agreement with the CPU."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from conftest import SmallConvNet, images, labelled
from sparsepgd.errors import EngineWarning
from sparsepgd.problem.engine import Engine
from sparsepgd.search.recorded import Recorded

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
X = images(64)
ATTACK = sp.SparsePGD(sp.Budget(k=3), steps=60)


def on_gpu() -> tuple[nn.Module, Tensor, Tensor]:
    model = SmallConvNet().cuda()
    x = X.cuda()
    return model, x, labelled(model, x)


def test_recorded_steps_find_what_plain_steps_find() -> None:
    model, x, y = on_gpu()
    plain = ATTACK(model, x, y, engine=Engine("fp32", False, False))
    recorded = Engine("fp32", False, True)
    result = ATTACK(model, x, y, engine=recorded)
    assert recorded.meter.recorded > 0
    assert torch.equal(result.fooled, plain.fooled)
    assert torch.equal(result.steps, plain.steps)


def test_cpu_and_gpu_agree_in_full_precision() -> None:
    model, x, y = on_gpu()
    gpu = ATTACK(model, x, y, engine=Engine("fp32", False))
    cpu = ATTACK(model.cpu(), X, y.cpu())
    assert abs(int(gpu.fooled.sum()) - int(cpu.fooled.sum())) <= 2


def test_a_model_that_asks_the_host_is_not_recorded_and_gives_the_same_result() -> None:
    class Asking(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.net(x) * (1.0 if float(x.detach().amax()) > 0 else 2.0)
            return out

    model, x, y = on_gpu()
    expected = ATTACK(model, x, y, engine=Engine("fp32", False, False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = ATTACK(Asking(model), x, y, engine=Engine("fp32", False, True))
    assert sum(issubclass(one.category, EngineWarning) for one in caught) == 1
    assert torch.equal(result.fooled, expected.fooled)


def test_memory_stays_the_same_from_call_to_call() -> None:
    model, x, y = on_gpu()
    seen = []
    for seed in range(4):
        ATTACK(model, x, y, seed=seed, engine=Engine("bf16", False))
        seen.append(torch.cuda.memory_allocated())
    assert seen[-1] == seen[1]


def test_images_may_stay_on_the_host() -> None:
    model, x, y = on_gpu()
    there = ATTACK(model, x, y, engine=Engine("fp32", False))
    here = ATTACK(model, X, y.cpu(), engine=Engine("fp32", False))
    assert here.x_adv.device.type == "cpu"
    assert torch.equal(here.fooled, there.fooled.cpu())


def test_the_adversary_of_training_never_waits_and_can_be_recorded() -> None:
    from sparsepgd.problem.oracle import borrowed
    from sparsepgd.search.noise import Noise

    model, x, y = on_gpu()
    attack = sp.SparsePGD(sp.Budget(k=3), 10, "projected")
    recorded = Recorded(lambda x, y, seed: attack.in_borrowed(model, x, y, Noise(seed)))
    attack.perturb(model, x, y)
    with borrowed(model, x.device):
        for seed in range(6):
            expected = attack.in_borrowed(model, x, y, Noise(seed))
            on_device = torch.tensor(seed, device="cuda")
            torch.cuda.set_sync_debug_mode("error" if seed > 3 else "default")
            try:
                found = recorded(x, y, on_device)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.testing.assert_close(found, expected)
