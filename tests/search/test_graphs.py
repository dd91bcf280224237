"""Steps and their recording. Tests that need a GPU are in tests/gpu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

from sparsepgd.problem.engine import Meter
from sparsepgd.problem.rows import clone, join, select, tensors
from sparsepgd.search import graphs
from sparsepgd.search.graphs import WARM, Recorded, Stepper


@dataclass(frozen=True, eq=False)
class Rows:
    x: Tensor
    inner: Rows | None = None


def test_the_requested_steps_are_taken_and_counted() -> None:
    meter = Meter()
    stepper: Stepper[Rows] = Stepper(lambda now: Rows(now.x + 1), graphs=False, meter=meter)
    now = stepper(stepper(Rows(torch.zeros(4, 2)), 3), 2)
    assert torch.equal(now.x, torch.full((4, 2), 5.0))
    assert (meter.steps, meter.slot_steps) == (5, 20)


@pytest.mark.parametrize("graphs_on", [False, True])
def test_steps_taken_before_memory_ran_out_are_kept(graphs_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They overwrote their input, so they cannot be repeated."""
    monkeypatch.setattr(graphs, "record", lambda work, before: None)
    left = [2]  # steps for which there is memory

    def step(now: Rows) -> Rows:
        if not left[0]:
            raise torch.OutOfMemoryError("no room")
        left[0] -= 1
        now.x.add_(1)
        return now

    stepper: Stepper[Rows] = Stepper(step, graphs=graphs_on, meter=Meter())
    assert stepper(Rows(torch.zeros(3, 1)), 5).x.tolist() == [[2.0]] * 3
    with pytest.raises(torch.OutOfMemoryError):
        stepper(Rows(torch.zeros(3, 1)), 5)


def test_rows_are_chosen_joined_and_copied_through_nested_parts() -> None:
    rows = Rows(torch.arange(4), Rows(torch.arange(8).view(4, 2)))
    parts = select(rows, slice(0, 1)), select(rows, torch.tensor([3, 1]))
    both = join(*parts, parts[0])
    assert [one.tolist() for one in tensors(both)] == [[0, 3, 1, 0], [[0, 1], [6, 7], [2, 3], [0, 1]]]
    copy = clone(both)
    next(tensors(copy)).zero_()
    assert next(tensors(both)).tolist() == [0, 3, 1, 0]


def test_the_step_is_recorded_again_when_the_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is first recorded without them, and once more as soon as they are ready."""
    there: list[bool] = []

    class Graph:
        def __init__(self, work: Any) -> None:
            self.replay = work

    monkeypatch.setattr(graphs, "record", lambda work, before: (Graph(work), None))
    monkeypatch.setattr(graphs, "ready", lambda device: bool(there))
    meter = Meter()
    stepper: Stepper[Rows] = Stepper(lambda now: Rows(now.x + 1), graphs=True, meter=meter)
    now = Rows(torch.zeros(3, 1))
    recorded = []
    for turn in range(5):
        if turn == 2:
            there.append(True)
        now = stepper(now, 4)
        recorded.append(meter.recorded)
    assert recorded == [1, 1, 2, 2, 2]
    assert now.x.tolist() == [[20.0]] * 3


def test_a_batch_whose_recording_does_not_fit_into_memory_runs_unrecorded_and_smaller_ones_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Graph:
        def __init__(self, work: Any) -> None:
            self.replay = work

    def record(work: Any, before: Any) -> Any:
        if size > 2:
            raise torch.OutOfMemoryError("no room")
        return Graph(work), None

    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    meter = Meter()
    stepper: Stepper[Rows] = Stepper(lambda now: Rows(now.x + 1), graphs=True, meter=meter)
    recorded = []
    for size in (4, 4, 3, 2):
        assert stepper(Rows(torch.zeros(size, 1)), 6).x.tolist() == [[6.0]] * size
        recorded.append(meter.recorded)
    assert recorded == [0, 0, 0, 1]


def test_work_whose_recording_does_not_fit_into_memory_goes_on_unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that torch keeps for other work, such as a training step, cannot be used by a recording."""
    tried = []

    def record(work: Any) -> Any:
        tried.append(work)
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    double = Recorded(lambda x: 2 * x)
    for one in range(WARM + 3):
        assert double(torch.tensor(one)).item() == 2 * one
    assert len(tried) == 1


def test_what_a_recording_computed_before_memory_ran_out_is_freed_before_the_steps_that_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Any] = []

    def record(work: Any, before: Any = None) -> Any:
        activations = torch.zeros(1)
        kept.append(ref(activations))
        raise torch.OutOfMemoryError("no room")

    def step(now: Rows) -> Rows:
        assert not any(one() is not None for one in kept)
        return Rows(now.x + 1)

    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    stepper: Stepper[Rows] = Stepper(step, graphs=True, meter=Meter())
    assert stepper(Rows(torch.zeros(3, 1)), 5).x.tolist() == [[5.0]] * 3
    one_more = Recorded(lambda x: step(Rows(x)).x)
    assert [one_more(torch.zeros(1)).tolist() for _ in range(WARM + 1)] == [[1.0]] * (WARM + 1)
    assert len(kept) == 2
