"""When the kernels are loaded, and what happens if that is not possible."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace

import pytest
import torch

import sparsepgd as sp
from sparsepgd import kernels
from sparsepgd.kernels import compiler
from support.models import SmallConvNet, images, labelled

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernels.loading.cache_clear()
    kernels.compiled_before.cache_clear()
    yield
    kernels.loading.cache_clear()
    kernels.compiled_before.cache_clear()


class Load:
    """Replaces `_load` and ends when it is released."""

    def __init__(self) -> None:
        self.devices: list[torch.device] = []
        self.may_end = Event()

    def __call__(self, device: torch.device) -> str:
        self.devices.append(device)
        assert self.may_end.wait(60)
        return "the kernels"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    made = Load()
    monkeypatch.setattr(kernels, "_load", made)
    yield made
    made.may_end.set()


def test_kernels_that_were_compiled_before_are_loaded_once_in_a_thread_and_waited_for(load: Load) -> None:
    kernels.marker(GPU).touch()
    kernels.begin_loading(GPU)  # does not wait
    assert not kernels.ready(GPU)
    load.may_end.set()
    assert kernels.kernels(GPU) == kernels.kernels(GPU) == "the kernels"
    assert kernels.ready(GPU)
    assert load.devices == [GPU]


def test_kernels_that_must_be_compiled_are_not_waited_for(load: Load) -> None:
    kernels.begin_loading(GPU)
    assert kernels.kernels(GPU) is None
    assert not kernels.ready(GPU)
    load.may_end.set()
    kernels.wait(GPU)
    assert kernels.ready(GPU)
    assert kernels.kernels(GPU) == "the kernels"
    assert load.devices == [GPU]


def test_there_are_no_kernels_for_another_gpu_than_the_current_one_on_which_triton_launches_them(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.may_end.set()
    second = torch.device("cuda", 1)
    kernels.wait(second)
    assert kernels.kernels(second) is None
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert kernels.kernels(second) == "the kernels"


def test_a_marker_shows_that_kernels_were_compiled_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from sparsepgd.kernels import checked, compiled

    monkeypatch.setattr(checked, "load", lambda device, seen: None)
    first = kernels.marker(GPU)
    assert not first.exists()
    assert kernels._load(GPU) is compiled
    assert first.read_text() == compiler.name()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not kernels.marker(GPU).exists()


def test_another_process_does_not_compute_the_name_of_the_compiler_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from sparsepgd.kernels import checked

    told = [(place, place.triton_key) for place in compiler._modules()]
    assert told
    for place, function in told:
        monkeypatch.setattr(place, "triton_key", function)  # as it was, after the test
    monkeypatch.setattr(checked, "load", lambda device, seen: None)
    kernels.marker(GPU).write_text("the name of another process")
    assert kernels._load(GPU) is not None
    assert {place.triton_key() for place, _ in told} == {"the name of another process"}


@pytest.mark.parametrize("file", ["_C/libtriton.so", "runtime/cache.py"])
def test_another_compiler_has_another_marker(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "triton" / file
    changed.parent.mkdir(parents=True)
    changed.write_bytes(b"one")
    (tmp_path / "triton" / "__init__.py").touch()
    monkeypatch.setattr(compiler, "find_spec", lambda name: SimpleNamespace(origin=f"{tmp_path}/{name}/__init__.py"))
    first = kernels.marker(GPU)
    assert kernels.marker(GPU) == first
    changed.write_bytes(b"three")
    assert kernels.marker(GPU) != first


def test_there_is_a_marker_without_triton_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (None, SimpleNamespace(origin=None)):
        with monkeypatch.context() as patch:
            patch.setattr(compiler, "find_spec", lambda name, spec=spec: spec)
            assert kernels.marker(GPU).name.startswith("sparsepgd-")
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))  # python does not know where it is
    assert compiler.fingerprint() == ""


def test_an_attack_begins_to_load_before_it_calls_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    monkeypatch.setattr("sparsepgd.search.contract.begin_loading", lambda device: events.append(device))

    class Told(SmallConvNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            events.append("the model")
            return super().forward(x)

    model, x = Told(), images(2)
    y = labelled(model, x)
    events.clear()
    sp.SparsePGD(sp.Budget(k=1), 1)(model, x, y)
    assert events[:2] == [torch.device("cpu"), "the model"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there they can be loaded")
def test_there_are_no_kernels_if_they_cannot_be_loaded() -> None:
    kernels.wait(GPU)
    assert kernels.kernels(GPU) is None


@pytest.mark.parametrize("wrong", [None, 0, 3])
@pytest.mark.parametrize("seen", [False, True], ids=["compiled now", "compiled before"])
def test_there_are_no_kernels_if_one_is_wrong(wrong: int | None, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared with torch when they are compiled; another process only launches them."""
    pytest.importorskip("triton")
    from sparsepgd.kernels import checked, compiled

    launches, comparisons = [], []

    def check(number: int) -> Iterator[checked.Comparison]:
        def agrees() -> bool:
            comparisons.append(number)
            return number != wrong

        launches.append(number)
        yield f"number {number}", agrees

    checks = tuple(lambda device, number=number: check(number) for number in range(4))
    monkeypatch.setattr(checked, "CHECKS", checks)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    if seen:
        kernels.marker(GPU).touch()
    kernels.begin_loading(GPU)
    kernels.wait(GPU)
    assert kernels.kernels(GPU) is (compiled if seen or wrong is None else None)
    assert launches == [0, 1, 2, 3]
    assert comparisons == ([] if seen else launches if wrong is None else launches[: wrong + 1])


def test_without_a_gpu_triton_is_not_imported() -> None:
    program = (
        "import sys, torch, sparsepgd as sp; x, y = sp.zoo.bundled_images(2); "
        "sp.SparseAnneal(sp.Budget(k=1), 2)(sp.zoo.load('small-plain'), x, y); "
        "assert not {'triton', 'sparsepgd.kernels.compiled'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
