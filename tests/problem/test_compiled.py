"""Compilation beside the search: a stand-in for the thread decides when the code is ready, so no clock is needed."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
import torch._dynamo.utils as dynamo
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import EngineWarning, ModelError
from sparsepgd.problem import compiled
from sparsepgd.problem.compiled import Compiled, repeated, wait_for_compilations
from sparsepgd.problem.engine import Engine, Running
from sparsepgd.problem.oracle import Oracle, borrowed
from support.models import Flattening, SmallConvNet, images, labelled

# the compiler looks at the gradient of its inputs, and hides the warning of that unless warnings are errors
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
X = images(12)
ATTACK = sp.SparsePGD(sp.Budget(k=1), steps=15, early_stop=False)
CODE = Engine("fp32", True, backend="aot_eager")


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr("sparsepgd.problem.engine.COMPILED_ON", ("cpu",))  # in the place of a GPU
    yield
    wait_for_compilations()


class Later:
    """In the place of the thread: the work is done when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: list[tuple[Callable[[], Any], Future[Any]]] = []
        monkeypatch.setattr(compiled, "beside", self.put_off)

    def put_off(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((work, future))
        return future

    def do(self) -> None:
        work, future = self.work.pop()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(monkeypatch)


class Calls:
    """Who was asked during a search, call by call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        ask = Running._ask

        def watched(running: Running, call: Any, x: Tensor) -> Any:
            self.made.append("code" if isinstance(call, Compiled) else "making" if call != running.model else "model")
            return ask(running, call, x)

        monkeypatch.setattr(Running, "_ask", watched)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught if issubclass(one.category, EngineWarning)]


def test_the_search_changes_over_at_the_look_that_finds_the_code_ready(later: Later, calls: Calls) -> None:
    model = SmallConvNet()
    y = labelled(model, X)
    looks: list[int] = []

    def progress(done: int, total: int, fooled: int) -> None:
        looks.append(done)
        if len(looks) == 6:
            later.do()

    result = ATTACK(model, X, y, engine=CODE, progress=progress)
    # six steps, the code is made, tried on a few images at the look, and used for the other ten
    assert calls.made == ["model"] * 6 + ["making", "code"] + ["code"] * 10
    assert int(result.forwards.sum()) == 16 * len(X)


def test_until_the_code_is_ready_the_result_is_that_of_the_model_to_the_bit(later: Later, calls: Calls) -> None:
    model = SmallConvNet()
    y = labelled(model, X)
    expected = ATTACK(model, X, y, engine=Engine("fp32"))
    calls.made.clear()
    assert torch.equal(ATTACK(model, X, y, engine=CODE).x_adv, expected.x_adv)
    assert set(calls.made) == {"model"}
    assert len(later.work) == 1  # and nobody waited for it


@pytest.mark.parametrize("attack", [ATTACK, sp.SparseRS(sp.Budget(k=1), 15, early_stop=False)], ids=["spgd", "rs"])
def test_compiled_code_gives_the_same_result(attack: sp.Attack, later: Later) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(9, dtype=torch.float64)
    y = labelled(model, x)
    expected = attack(model, x, y)
    result = attack(
        model, x, y, engine=Engine(compile=True, backend="aot_eager"), progress=lambda *_: later.work and later.do()
    )
    assert torch.equal(result.fooled, expected.fooled)
    torch.testing.assert_close(result.x_adv, expected.x_adv, rtol=0, atol=1e-9)


def refuse(graph: object, inputs: object) -> object:
    raise RuntimeError("not this operator")


def warned(backend: Any, later: Later) -> tuple[sp.Result, sp.Result, str]:
    """The result without and with this compiler, and the only warning."""
    model = SmallConvNet()
    y = labelled(model, X)
    expected = ATTACK(model, X, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = Engine(compile=True, backend=backend)
        result = ATTACK(model, X, y, engine=engine, progress=lambda *_: later.work and later.do())
    (words,) = told(caught)
    return expected, result, words


def test_a_model_that_cannot_be_compiled_runs_as_it_is_after_one_warning(later: Later) -> None:
    expected, result, words = warned(refuse, later)
    assert "SmallConvNet cannot be compiled" in words
    assert "use Engine(compile=False)" in words
    assert torch.equal(result.x_adv, expected.x_adv)


def test_code_that_gives_other_logits_is_not_used(later: Later, calls: Calls) -> None:
    def wrong(graph: Any, inputs: object) -> Any:
        return lambda *args: tuple(one.roll(1) for one in graph(*args))

    expected, result, words = warned(wrong, later)
    assert "compiled code gives other logits" in words
    assert torch.equal(result.x_adv, expected.x_adv)
    assert calls.made.count("code") == 1


@pytest.mark.parametrize(("bad", "used"), [(1, True), (9, False)])
def test_code_for_another_setting_is_made_again_and_given_up_in_the_end(
    bad: int, used: bool, later: Later, calls: Calls
) -> None:
    """The thread may find TF32 switched off, while the search confirms a success."""
    model, made = SmallConvNet(), []
    y = labelled(model, X)

    def at_a_bad_time(*_: object) -> None:
        if later.work:
            made.append(torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if len(made) <= bad else "highest")
            later.do()
            torch.set_float32_matmul_precision("highest")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ATTACK(model, X, y, engine=CODE, progress=at_a_bad_time)
    assert len(made) == (2 if used else 3)
    assert len(told(caught)) == (0 if used else 1)
    assert (calls.made.count("code") > 5) == used


def test_an_error_of_the_model_comes_to_the_caller_and_the_code_is_let_go(later: Later) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.left = SmallConvNet(), 5

        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                self.left -= 1
                if not self.left:
                    raise ValueError("weights are missing")
            out: Tensor = self.net(x)
            return out

    model = Failing()
    y = labelled(model.net, X)
    strides = [one.stride() for one in model.parameters()]
    with pytest.raises(ModelError, match="ValueError: weights are missing"):
        ATTACK(model, X, y, engine=CODE)
    assert len(later.work) == 1
    assert [one.stride() for one in model.parameters()] == strides
    assert all(one.requires_grad for one in model.parameters())
    later.do()  # too late, and harmless
    here = weakref.ref(model)
    del model
    gc.collect()
    assert here() is None


def test_batches_of_any_size_and_repeated_calls_use_the_same_compiled_code() -> None:
    dynamo.counters.clear()
    model = SmallConvNet().eval().requires_grad_(False)
    for size in (40, 33, 24, 17):
        code = Compiled(model, "aot_eager")
        code.make(images(size).requires_grad_())
        assert torch.equal(code(images(29).requires_grad_()), model(images(29)))
    assert dynamo.counters["stats"]["unique_graphs"] == 1


def test_the_second_of_two_calls_finds_the_code_of_the_first(later: Later, calls: Calls) -> None:
    model = SmallConvNet()
    y = labelled(model, X)
    for seed in range(2):
        calls.made.clear()
        ATTACK(model, X, y, seed=seed, engine=CODE, progress=lambda *_: later.work and later.do())
        assert calls.made.count("code") > 5
        before = dynamo.counters["stats"]["unique_graphs"]
    assert dynamo.counters["stats"]["unique_graphs"] == before


def test_weights_that_change_do_not_compile_anew() -> None:
    dynamo.counters.clear()
    model = SmallConvNet()
    for _ in range(3):
        assert torch.equal(Compiled(model.eval(), "aot_eager").make(X), model(X))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
    assert dynamo.counters["stats"]["unique_graphs"] == 1


def test_a_batch_for_which_there_is_no_code_runs_uncompiled(later: Later, calls: Calls) -> None:
    """Of one image, which torch takes for a special case. Nothing is compiled for it, and others go on as before."""
    model, x = SmallConvNet(), images(40)
    with CODE.running(model, x.device) as run:
        run(x)
        run.change_over()
        later.do()
        assert run.change_over()
        before = dynamo.counters["stats"]["unique_graphs"]
        calls.made.clear()
        assert all(len(run(x[:size])) == size for size in (30, 1, 1, 30))
    assert calls.made == ["code", "code", "model", "model", "code"]
    assert dynamo.counters["stats"]["unique_graphs"] == before


def test_a_model_that_views_its_maps_is_compiled_all_the_same(later: Later, calls: Calls) -> None:
    model = Flattening()
    ATTACK(model, X, labelled(model, X), engine=CODE, progress=lambda *_: later.work and later.do())
    assert calls.made.count("code") > 5


def test_a_model_that_says_more_than_logits_is_compiled_all_the_same(later: Later, calls: Calls) -> None:
    class Telling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = SmallConvNet()

        def forward(self, x: Tensor) -> dict[str, Any]:
            logits = self.net(x)
            return {"logits": logits, "said": logits.argmax(1), "more": [logits.square(), "words"]}

    model = Telling()
    y = labelled(model.net, X)
    later_on = lambda *_: later.work and later.do()  # noqa: E731
    ATTACK(model, X, y, engine=CODE, logits=lambda output: output["logits"], progress=later_on)
    assert calls.made.count("code") > 5


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + torch.tanh(self.inner(x))
        return out


class Deep(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3 * 144, widths[0]), nn.Linear(widths[-1], 5)
        self.blocks = nn.Sequential(*(Block(width) for width in widths))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.blocks(self.first(x.flatten(1))))
        return out


def test_of_repeated_blocks_one_is_compiled() -> None:
    dynamo.counters.clear()
    model = Deep((600,) * 8).eval().requires_grad_(False)
    assert len(repeated(model)) == 8
    code, x = Compiled(model, "aot_eager"), images(6).requires_grad_()
    torch.testing.assert_close(code.make(x), model(x))
    assert dynamo.counters["stats"]["unique_graphs"] <= 2  # the input of the first block may lie differently
    torch.testing.assert_close(code(images(9).requires_grad_()), model(images(9)))
    assert "forward" not in vars(model.blocks[0])  # that of the caller is as it was


def test_blocks_that_differ_or_hold_few_weights_are_compiled_as_a_whole() -> None:
    assert repeated(Deep((20,) * 8)) == []  # the first layer holds most
    assert repeated(Deep((600, 600))) == []
    assert repeated(SmallConvNet()) == []


def test_in_a_thread_the_search_goes_on_and_measurements_wait() -> None:
    begun, ready, threads = threading.Event(), threading.Event(), set()

    def slow(graph: Any, inputs: object) -> Any:
        threads.add(threading.current_thread())
        begun.set()
        assert ready.wait(60)
        return graph.forward

    model = SmallConvNet()
    y = labelled(model, X)
    engine = Engine("fp32", True, backend=slow)  # type: ignore[arg-type]
    ATTACK(model, X, y, engine=engine)  # it is over, and the code is not ready
    assert begun.wait(60)
    assert compiled.compiling()
    ready.set()
    wait_for_compilations()
    assert not compiled.compiling()
    assert threading.main_thread() not in threads
    with borrowed(model, X.device), engine.running(model, X.device) as run:
        asked = Oracle(run)
        asked.evaluate(X, y, y, True)
        run.finish()
        assert run.compiled is not None
        asked.evaluate(X, y, y, True)
    assert threading.main_thread() not in threads


def test_a_program_that_ends_before_the_code_is_ready_says_nothing_of_it() -> None:
    """Where python ends, torch logs that it cannot start its workers: here its logger speaks in a thread that outlives
    the main one."""
    program = (
        "import logging, threading, torch; from sparsepgd.problem import compiled\n"
        "def work():\n"
        "    logging.getLogger('torch._inductor').warning('while the program runs')\n"
        "    said.set(); threading.main_thread().join()\n"
        "    logging.getLogger('torch._inductor').warning('at its end')\n"
        "said = threading.Event(); compiled.beside(work); said.wait()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "while the program runs" in done.stderr
    assert "at its end" not in done.stderr


def test_on_a_cpu_nothing_is_compiled_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch, later: Later) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "beside", later.put_off)
    model = SmallConvNet()
    with pytest.warns(EngineWarning, match="compile=True has no effect on cpu"):
        result = ATTACK(model, X, labelled(model, X), engine=Engine(compile=True))
    assert not later.work
    assert torch.equal(result.x_adv, ATTACK(model, X, labelled(model, X)).x_adv)


def test_a_search_without_compile_starts_no_thread_and_does_not_load_the_compiler() -> None:
    program = (
        "import sys, threading, sparsepgd as sp; x, y = sp.zoo.bundled_images(4); model = sp.zoo.load('small-plain'); "
        "sp.SparsePGD(sp.Budget(k=2), 3)(model, x, y); "
        "print(threading.active_count(), [name for name in sys.modules if name.startswith('torch._dynamo')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1 []\n"
