"""The engine: faster ways to run the model never change what counts."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.engine import PRECISIONS, Engine, in_parts
from sparsepgd.problem.lean import lean
from sparsepgd.problem.oracle import Oracle
from sparsepgd.search import stepwise
from sparsepgd.search.stepwise import Stepwise
from support.models import Flattening, SmallConvNet, Tight, images, labelled

X = images(12)
ATTACK = sp.SparsePGD(sp.Budget(k=4), steps=15)
NET = SmallConvNet()
CUDA = torch.device("cuda")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_success_of_a_reduced_precision_holds_in_full_precision(precision: str) -> None:
    model = SmallConvNet().eval()
    y = labelled(model, X)
    result = ATTACK(model, X, y, engine=Engine(precision))  # type: ignore[arg-type]
    assert int(result.fooled.sum()) > 0
    with torch.no_grad():
        assert torch.equal(model(result.x_adv).argmax(1) != y, result.fooled)


def test_an_unknown_precision_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedError, match="precision='half'; use one of 'fp32', 'tf32', 'bf16', 'fp16'"):
        Engine("half")  # type: ignore[arg-type]


def test_on_a_gpu_half_precision_and_graphs_are_the_default_and_code_is_compiled_if_asked_for() -> None:
    chosen = Engine().decided(NET, X, CUDA)
    assert (chosen.precision, chosen.compile, chosen.graphs) == ("fp16", False, True)
    asked = Engine("tf32", True, False).decided(NET, X, CUDA)
    assert (asked.precision, asked.compile, asked.graphs) == ("tf32", True, False)
    double = Engine().decided(NET, X.double(), CUDA)
    assert (double.precision, double.compile) == (None, False)
    assert Engine().decided(NET.forward, X, CUDA).graphs is False  # who knows what it does


def test_on_a_cpu_the_model_runs_as_it_is() -> None:
    decided = Engine().decided(NET, X, X.device)
    assert (decided.precision, decided.compile, decided.graphs) == (None, False, False)


def test_kernels_have_channels_last_during_a_run_and_lie_as_they_were_after_it() -> None:
    model = SmallConvNet()
    before = [(p.data_ptr(), p.stride()) for p in model.parameters()]
    with Engine().running(model, X.device):
        kernels = [p for p in model.parameters() if p.dim() == 4]
        assert kernels
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    assert [(p.data_ptr(), p.stride()) for p in model.parameters()] == before


@pytest.mark.parametrize("engine", [Engine(), Engine("bf16")], ids=["plain", "bf16"])
def test_a_model_that_views_its_maps_runs_all_the_same(engine: Engine) -> None:
    torch._dynamo.reset()
    model = Flattening()
    before = [p.stride() for p in model.parameters()]
    result = ATTACK(model, X, labelled(model, X), engine=engine)
    assert len(result) == len(X)
    assert [p.stride() for p in model.parameters()] == before


@pytest.mark.parametrize(
    ("count", "size", "room", "parts", "last"),
    [
        (7, 3, 9, [(0, 3), (3, 6), (6, 7)], 3),
        (7, 64, 9, [(0, 7)], 64),  # it is the memory that decides, not how much there was to do
        (7, 64, 2, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)], 1),
        (8, 64, 4, [(0, 4), (4, 8)], 4),
        (0, 4, 1, [], 4),
    ],
)
def test_work_that_does_not_fit_the_memory_is_halved(
    count: int, size: int, room: int, parts: list[tuple[int, int]], last: int
) -> None:
    def work(rows: slice) -> tuple[int, int]:
        if rows.stop - rows.start > room:
            raise torch.OutOfMemoryError("no room")
        return rows.start, rows.stop

    assert in_parts(work, count, size) == (parts, last)
    with pytest.raises(torch.OutOfMemoryError):
        in_parts(lambda rows: work(slice(0, 99)), 3, 2)


def test_a_model_that_views_its_maps_and_does_not_fit_at_first_runs_all_the_same() -> None:
    tight = Tight(3, Flattening())
    assert len(ATTACK(tight, X, labelled(tight.net, X))) == len(X)
    assert tight.refused > 0


def test_a_scaled_loss_gives_the_gradient_of_the_loss() -> None:
    model = SmallConvNet().eval()
    y = labelled(model, X)
    plain, scaled = (Oracle(model, sp.Untargeted(), scale=scale).evaluate(X, y, y, True) for scale in (1.0, 1024.0))
    torch.testing.assert_close(plain.gradient, scaled.gradient)
    assert torch.equal(plain.loss, scaled.loss)
    assert {Engine(precision).scale for precision in PRECISIONS} == {1.0, 1024.0}  # type: ignore[arg-type]


class Loud(nn.Module):
    """Its logits are beyond what fp16 can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = SmallConvNet(), nn.Linear(5, 5)
        nn.init.eye_(self.last.weight)
        self.last.weight.data.mul_(1e6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.net(x))
        return out


class Steep(nn.Module):
    """Its logits are within the range of fp16, their gradients are not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SmallConvNet()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = 300 * self.net(x)
        return out


RANDOM, GRADIENT = sp.SparseRS(sp.Budget(k=2), 3), sp.SparsePGD(sp.Budget(k=2), 3)


@pytest.mark.parametrize(
    ("model", "attack", "expected"),
    [
        (SmallConvNet(), RANDOM, "fp16"),
        (SmallConvNet(), GRADIENT, "fp16"),
        (Loud(), RANDOM, "bf16"),
        (Loud(), GRADIENT, "bf16"),
        (Steep(), RANDOM, "fp16"),
        (Steep(), GRADIENT, "bf16"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_model_beyond_the_range_of_fp16_gets_bf16_unless_fp16_was_asked_for(
    model: nn.Module, attack: Stepwise[Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    used: list[object] = []
    running, run = Engine.running, stepwise.run

    def watched(self: Engine, *args: object) -> object:
        tried.append(self.precision)
        return running(self, *args)  # type: ignore[arg-type]

    def searched(search: Any, task: Any, model: Any) -> Any:
        used.append(model.engine.precision)
        return run(search, task, model)

    monkeypatch.setattr(Engine, "decided", lambda self, *args: Engine("fp16", False, False))
    monkeypatch.setattr(Engine, "running", watched)
    monkeypatch.setattr(stepwise, "run", searched)
    y = labelled(model, X)
    attack(model, X, y)
    assert tried == (["fp16"] if expected == "fp16" else ["fp16", "bf16"])  # bf16 only if fp16 falls short
    assert used == [expected]
    attack(model, X, y, engine=Engine("fp16"))
    assert used == [expected, "fp16"]


class Normalised(nn.Module):
    """With batch normalisation; notes the sizes of its batches in half precision, for itself and its copies."""

    sizes: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            self.sizes.append(len(x))
        out: Tensor = self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
        return out


@pytest.mark.parametrize("batch_size", [None, 7])
def test_before_the_first_step_the_model_is_copied_once_and_asked_three_times_in_the_size_of_the_batch(
    batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a comparison of the copy with the model and a trial of fp16; another size would cost a GPU far more."""
    copied: list[object] = []
    monkeypatch.setattr("sparsepgd.problem.engine.lean", lambda *args: copied.append(args) or lean(*args))
    monkeypatch.setattr(Engine, "decided", lambda self, *args: Engine("fp16", False, False))
    torch.manual_seed(0)
    model = Normalised()
    y = labelled(model, X)
    Normalised.sizes.clear()
    sp.SparsePGD(sp.Budget(k=1), 1, early_stop=False)(model, X, y, batch_size=batch_size)
    assert len(copied) == 1
    steps = 2 if batch_size is None else 2 * -(-len(X) // batch_size)
    assert len(Normalised.sizes) == 3 + steps
    assert set(Normalised.sizes[:5]) == {batch_size or len(X)}


def test_while_the_kernels_are_loaded_a_backward_pass_loads_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, asked = Normalised().eval().requires_grad_(False), []
    for loaded, calls in ((True, 3), (False, 4)):
        monkeypatch.setattr("sparsepgd.problem.engine.ready", lambda device, loaded=loaded: loaded)
        Normalised.sizes.clear()
        with Engine("bf16", graphs=False).running(model, X.device) as run:
            asked.append(run(X.clone().requires_grad_()).detach())
        assert len(Normalised.sizes) == calls  # of the model, of its copy for comparison, and of the copy
    assert torch.equal(*asked)


def test_the_images_that_decide_need_not_fit_the_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "decided", lambda self, *args: Engine("fp16", False, False))
    tight = Tight(5, SmallConvNet())
    result = GRADIENT(tight, X, labelled(tight.net, X))
    assert len(result) == len(X)
