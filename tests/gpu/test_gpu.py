"""What only a CUDA device can show: recorded steps, no waiting, memory that stays, agreement with the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.analysis.curves import Smallest
from sparsepgd.errors import EngineWarning
from sparsepgd.kernels import kernels, wait
from sparsepgd.problem.compiled import wait_for_compilations
from sparsepgd.problem.engine import Engine, Running, metered
from sparsepgd.runs.audit import audit
from sparsepgd.runs.autoattack import AutoAttack
from sparsepgd.runs.runs import run
from sparsepgd.search.contract import Attacker
from sparsepgd.search.graphs import Recorded
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.standalone import Standalone
from sparsepgd.zoo.networks import small_preact_resnet
from support.models import SmallConvNet, images, labelled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.filterwarnings("ignore:.*script_method. is deprecated:DeprecationWarning"),  # of torch itself
]
X = images(64)
ATTACK = sp.SparsePGD(sp.Budget(k=3), steps=60)


@pytest.fixture(autouse=True, scope="module")
def kernels_are_loaded() -> None:
    """Where they were never compiled, a search begins without them, and rounds differently."""
    wait(torch.device("cuda", torch.cuda.current_device()))


def test_a_search_goes_on_while_the_kernels_are_compiled(tmp_path: Path) -> None:
    program = (
        "import sparsepgd as sp; x, y = sp.zoo.bundled_images(32); "
        "model = sp.zoo.load('small-strades').cuda(); "
        "result = sp.SparseAnneal(sp.Budget(k=20), 300)(model, x.cuda(), y.cuda()); print(int(result.fooled.sum()))"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = [
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        for _ in range(2)  # without a cache, and with it
    ]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    first, second = (int(one.stdout) for one in done)
    assert abs(first - second) <= 2
    assert second > 8


def on_gpu() -> tuple[nn.Module, Tensor, Tensor]:
    model = SmallConvNet().cuda()
    x = X.cuda()
    return model, x, labelled(model, x)


def test_recorded_steps_find_what_plain_steps_find() -> None:
    model, x, y = on_gpu()
    plain = ATTACK(model, x, y, engine=Engine("fp32", False, False))
    with metered() as meter:
        result = ATTACK(model, x, y, engine=Engine("fp32", False, True))
    assert meter.recorded > 0
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


def test_a_search_changes_over_to_compiled_code_and_records_its_steps_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look that finds a compilation under way waits for it, so that no clock is needed."""
    changed, change_over = [], Running.change_over

    def waiting(run: Running) -> bool:
        wait_for_compilations()
        changed.append(change_over(run))
        return changed[-1]

    monkeypatch.setattr(Running, "change_over", waiting)
    model, x, y = on_gpu()
    expected = ATTACK(model, x, y, engine=Engine("fp16"))
    with metered() as meter:
        result = ATTACK(model, x, y, engine=Engine("fp16", compile=True))
    assert sum(changed) == 1
    assert meter.recorded > 0
    assert abs(int(result.fooled.sum()) - int(expected.fooled.sum())) <= 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_a_gpu_that_is_not_the_current_one_finds_what_the_current_one_finds() -> None:
    model, x, y = on_gpu()
    second = torch.device("cuda", (x.device.index + 1) % torch.cuda.device_count())
    wait(second)
    expected = ATTACK(model, x, y, engine=Engine("fp32", False))
    with metered() as meter:
        result = ATTACK(model.to(second), x.to(second), y.to(second), engine=Engine("fp32", False))
    assert meter.recorded > 0
    assert abs(int(result.fooled.sum()) - int(expected.fooled.sum())) <= 2
    assert torch.cuda.current_device() == x.device.index


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


@pytest.mark.parametrize(
    "attack",
    [
        sp.SparseAutoAttack(sp.Budget(k=3), 5, 20, targeted=True, version="standard"),
        sp.SparseRS(sp.Budget(k=3, allowed=torch.arange(144).view(12, 12) % 2 == 0), 20),
        baselines.PGD0(sp.Budget(k=3), 5, restarts=2, targets=2, early_stop=False),
        baselines.SparseFool(sp.Budget(k=3), 3, deepfool_steps=4),
        baselines.OnePixel(sp.Budget(k=3), 12, 4),
        Smallest(sp.SparsePGD(sp.Budget(k=4), 5), sp.Budget(k=4)),
        Smallest(sp.SparseAnneal(sp.Budget(k=4), 5), sp.Budget(k=4)),
    ],
    ids=lambda attack: attack.name,
)
def test_every_attack_takes_images_from_the_host_and_leaves_its_result_there(attack: Attacker) -> None:
    model, x, y = on_gpu()
    engine = {} if isinstance(attack, Standalone) else {"engine": Engine("fp32", False)}
    there, here = attack(model, x, y, **engine), attack(model, X, y.cpu(), **engine)
    for name, value in vars(here).items():
        assert not isinstance(value, Tensor) or value.device.type == "cpu", name
    assert abs(int(here.fooled.sum()) - int(there.fooled.sum())) <= 2


@pytest.mark.parametrize("device", ["cuda", None])
def test_autoattack_takes_images_from_the_host(device: str | None, tmp_path: Path) -> None:
    model, _, y = on_gpu()
    options = {"k": 3, "device": device, "steps": 5, "queries": 20, "verbose": False}
    for _ in range(2):  # the second time from its state
        adversary = AutoAttack(model, **options)
        x_adv, said = adversary.run_standard_evaluation(X, y.cpu(), 16, True, tmp_path / "state.json")
        assert adversary.result is not None
        assert (x_adv.device.type, said.device.type, adversary.result.forwards.device.type) == ("cpu", "cpu", "cpu")
        with torch.no_grad():
            assert torch.equal(model.eval()(x_adv.cuda()).argmax(1).cpu(), said)


def test_a_run_takes_images_from_the_host_and_names_the_gpu(tmp_path: Path) -> None:
    model, _, y = on_gpu()
    record = run(tmp_path / "run", ATTACK, model, (X, y.cpu()), chunk=40)
    assert record.environment["device"].startswith("cuda")
    assert all(row.confidence is not None for row in record.rows)
    assert audit(tmp_path / "run", model).held == sum(row.fooled for row in record.rows) > 0


def test_perturb_takes_images_from_the_host() -> None:
    model, x, y = on_gpu()
    here = ATTACK.perturb(model, X, y.cpu())
    assert here.device.type == "cpu"
    torch.testing.assert_close(here, ATTACK.perturb(model, x, y).cpu())


def test_questions_that_do_not_fit_the_memory_are_asked_in_smaller_parts() -> None:
    class Large(nn.Module):
        """Takes a quarter of the memory for an image."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net, self.room = net, torch.cuda.mem_get_info()[0] // 4

        def forward(self, x: Tensor) -> Tensor:
            torch.empty(len(x), self.room, dtype=torch.uint8, device=x.device)
            out: Tensor = self.net(x)
            return out

    model, x, y = on_gpu()
    attack = baselines.GreedyFool(sp.Budget(k=3), 5)
    expected = attack(model, x, y)
    assert abs(int(attack(Large(model), x, y).fooled.sum()) - int(expected.fooled.sum())) <= 2


def test_the_adversary_of_training_never_waits_and_can_be_recorded() -> None:
    from sparsepgd.problem.oracle import borrowed
    from sparsepgd.search.noise import Noise

    model, x, y = on_gpu()
    attack = sp.SparsePGD(sp.Budget(k=3), 10, "projected")
    recorded = Recorded(lambda x, y, seed: attack.perturb_borrowed(model, x, y, Noise(seed)))
    attack.perturb(model, x, y)
    with borrowed(model, x.device):
        for seed in range(6):
            expected = attack.perturb_borrowed(model, x, y, Noise(seed))
            on_device = torch.tensor(seed, device="cuda")
            torch.cuda.set_sync_debug_mode("error" if seed > 3 else "default")
            try:
                found = recorded(x, y, on_device)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_a_network_with_batch_normalisation_runs_as_a_lean_copy_with_its_logits_and_gradients(
    precision: Literal["fp16", "bf16"], activation: Literal["relu", "softplus"]
) -> None:
    torch.manual_seed(0)
    network = small_preact_resnet(activation=activation).cuda().eval().requires_grad_(False)
    x = images(16, size=32).cuda()
    answers = []
    with Engine(precision, False, False).running(network, x.device) as run:
        run(x)
        assert run.call is not network
        for model in (run, network):
            point = x.clone().requires_grad_()
            logits = model(point).float()
            (gradient,) = torch.autograd.grad(logits.square().sum(), point)
            answers.append((logits.detach(), gradient.flatten(1)))
    (given, slope), (wanted, true) = answers
    assert float((given - wanted).abs().max()) < 0.02 * float(wanted.abs().max()) * (8 if precision == "bf16" else 1)
    assert float(torch.nn.functional.cosine_similarity(slope, true).min()) > 0.95


@pytest.mark.parametrize("seed", [0, -5, 2**70 + 3])
def test_random_numbers_are_those_of_the_cpu_to_the_bit(seed: int) -> None:
    index, step = torch.tensor([0, 3, 2**40, -1]), torch.tensor([0, 5, 7, 9999])
    for shape in ((1,), (3, 32, 32), (3, 224, 224)):
        on_cpu = Noise(seed).uniform(Stream.MASK, index, step, shape)
        assert torch.equal(Noise(seed).uniform(Stream.MASK, index.cuda(), step.cuda(), shape).cpu(), on_cpu)


def test_normal_numbers_come_from_the_same_bits_as_on_the_cpu() -> None:
    index, step = torch.arange(50), torch.arange(50)
    on_cpu = Noise(3).normal(Stream.MASK, index, step, (1, 32, 32))
    torch.testing.assert_close(Noise(3).normal(Stream.MASK, index.cuda(), step.cuda(), (1, 32, 32)).cpu(), on_cpu)


@pytest.mark.parametrize("size", [12, 32, 64, 224])
def test_the_k_largest_are_those_of_the_cpu(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    score = torch.randn(40, 1, size, size, generator=generator)
    usable = torch.rand(score.shape, generator=generator) < 0.7
    counts = torch.randint(0, 60, (40,), generator=generator)
    on_cpu, on_gpu = (sp.Budget(k=9).resolve((3, size, size), device) for device in ("cpu", "cuda"))
    for values in (score.abs(), (9 * score).sigmoid(), (2 * score).round().abs()):  # the last two with equal ones
        for where in (None, usable):
            there = None if where is None else where.cuda()
            assert torch.equal(on_gpu.top_k(values.cuda(), there).cpu(), on_cpu.top_k(values, where))
            given = on_gpu.top_k(values.cuda(), there, counts.cuda(), 60)
            assert torch.equal(given.cpu(), on_cpu.top_k(values, where, counts, 60))


@pytest.mark.parametrize("activation", ["relu", "softplus"])
def test_attacks_compile_no_kernel_besides_those_that_are_loaded(activation: Literal["relu", "softplus"]) -> None:
    torch.manual_seed(0)
    network, x = small_preact_resnet(activation=activation).cuda(), images(24, size=32).cuda()
    found = kernels(x.device)
    assert found is not None
    codes = [found._forward, found._backward, found._uniform, found._top_k, found._clip, found._put]
    before = [len(code.device_caches[x.device.index][0]) for code in codes]
    assert min(before) >= 1
    for attack in (sp.SparsePGD(sp.Budget(k=3), 5), sp.SparseAnneal(sp.Budget(k=3), 240)):
        attack(network, x, labelled(network, x))
    assert [len(code.device_caches[x.device.index][0]) for code in codes] == before
