"""CUDA graphs: work is recorded once and replayed, so that the host launches all its kernels at once.

Without a graph, a GPU with a small batch waits for the host to launch kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.errors import first_line
from sparsepgd.kernels import ready
from sparsepgd.problem.engine import Meter, warn
from sparsepgd.problem.rows import assign, clone, tensors

T = TypeVar("T")
N = TypeVar("N")  # the slots: a dataclass of tensors with one row per image

# Entries of the largest batch that is recorded: the default batch of an attack (1,024 images of 32x32, 83 of 224x224).
# The kernels of larger batches take much longer than their launch, and a recording needs the memory of another step.
SMALL = 3 << 22
WARM = 2  # runs before a recording, which needs compiled code and library handles


def record(work: Callable[[], T], before: Any = None) -> tuple[Any, T] | None:
    """Record the work without running it. Returns a graph and its result, which every replay overwrites; or None, with
    a warning, if the work cannot be recorded, e.g. because the model synchronises with the host. `before`: a graph that
    will not be replayed again and whose memory is reused."""
    graph, stream = torch.cuda.CUDAGraph(), _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=before and before.pool(), capture_error_mode="thread_local")
            try:
                result = work()
            finally:
                graph.capture_end()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        torch.cuda.synchronize()
        warn(f"the model cannot be recorded as a CUDA graph ({first_line(error.__cause__ or error)})", "graphs=False")
        return None
    torch.cuda.current_stream().wait_stream(stream)
    return graph, result


@lru_cache(maxsize=16)
def _stream(device: int) -> Any:
    """The stream of all recordings: libraries keep working memory for every stream that was used."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(eq=False)
class Recorded:
    """A function of tensors, (*inputs) -> tensor, which is replayed as long as the inputs have the same shapes. If it
    cannot be recorded, or not within the memory, it is called.

    Other tensors that it reads, such as the weights of a model, must stay in place; their values may change.
    """

    function: Callable[..., Tensor]
    calls: int = 0
    shapes: Any = None
    graph: Any = None
    inputs: list[Tensor] = field(default_factory=list)
    output: Tensor | None = None
    possible: bool = True

    def __call__(self, *inputs: Tensor) -> Tensor:
        shapes = [(one.shape, one.dtype, one.stride()) for one in inputs]
        if shapes != self.shapes:
            self.shapes, self.calls, self.graph = shapes, 0, None
        self.calls += 1
        if self.graph is None and self.possible and self.calls > WARM:
            recorded = None
            with suppress(torch.OutOfMemoryError):  # there was enough for work that is not recorded
                self.inputs = [one.detach().clone() for one in inputs]
                recorded = record(lambda: self.function(*self.inputs))
            if recorded is None:
                torch.cuda.empty_cache()
            self.possible = recorded is not None
            self.graph, self.output = recorded or (None, None)
        if self.graph is None:
            return self.function(*inputs)
        for into, of in zip(self.inputs, inputs, strict=True):
            into.copy_(of)
        self.graph.replay()
        assert self.output is not None
        return self.output.clone()


@dataclass(eq=False)
class Stepper(Generic[N]):
    """Several steps without synchronisation with the host. Steps of a small batch are recorded and replayed.

    If memory runs out after some of the steps, only these are taken. They could not be repeated, because a step
    overwrites tensors of the slots before it.
    """

    step: Callable[[N], N]
    graphs: bool
    meter: Meter
    size: int = 0  # of the batch
    warm: int = 0  # steps done with this size
    again: bool = False  # whether another size was recorded before, so that one step suffices as a warm-up
    complete: bool = False  # whether all kernels were loaded when the step was recorded
    static: N | None = None  # the slots that the graph reads and writes
    graph: Any = None  # the last one; a new one reuses its memory
    limit: int = SMALL  # entries of the largest batch that is recorded

    def __call__(self, now: N, steps: int) -> N:
        first = next(tensors(now))
        self.meter.steps += steps
        self.meter.slot_steps += steps * len(first)
        if not self.graphs or first.numel() > self.limit:
            return self._eager(now, steps)
        if len(first) != self.size:
            self.static = None
            self.size, self.warm = len(first), 0
        if self.static is not None and not self.complete and ready(first.device):  # the kernels were compiled meanwhile
            self.static, self.warm = None, 0
        if self.static is None:
            cold = min(steps, max((1 if self.again else WARM) - self.warm, 0))
            now, steps, self.warm = self._eager(now, cold), steps - cold, self.warm + cold
            if not steps:
                return now
            if (static := self._record(now)) is None:
                return self._eager(now, steps, cold)
            self.static = static
        assign(self.static, now)
        for _ in range(steps):
            self.graph.replay()
        return self.static

    def _record(self, now: N) -> N | None:
        """Record the step, and return its slots; None if that is impossible, or needs more memory than there is.

        An error keeps alive what was computed before it, so memory is freed after the error was handled.
        """
        recorded, little = None, False
        try:
            static, self.complete = clone(now), ready(next(tensors(now)).device)
            recorded = record(lambda: assign(static, self.step(static)), self.graph)
        except torch.OutOfMemoryError:  # there was enough for steps that are not recorded
            little = True
        if recorded is None:
            if little:
                self.forget()
                self.limit = next(tensors(now)).numel() - 1
                torch.cuda.empty_cache()
            self.graphs = little
            return None
        self.graph, self.again = recorded[0], True
        self.meter.recorded += 1
        return static

    def forget(self) -> None:
        """Free the memory of the recording; the next recording is made like the first one."""
        self.static, self.graph, self.again, self.size = None, None, False, 0

    def _eager(self, now: N, steps: int, before: int = 0) -> N:
        """`before`: steps that this call took already."""
        for taken in range(before, before + steps):
            try:
                now = self.step(now)
            except torch.OutOfMemoryError:
                if not taken:
                    raise
                break
        return now
