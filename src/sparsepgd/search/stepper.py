"""Several steps at once, without a word to the host; on a GPU a step of a small batch is recorded and replayed.

A small batch leaves a GPU waiting for the host to launch its kernels; a CUDA graph launches all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sparsepgd.problem.engine import Meter
from sparsepgd.problem.rows import clone, tensors
from sparsepgd.search.recorded import WARM, record

N = TypeVar("N")  # the slots: a dataclass of tensors with one row an image

SMALL = 2048 * 3 * 32 * 32  # entries of a batch; above, the kernels take far longer than their launch


@dataclass(eq=False)
class Stepper(Generic[N]):
    """Calls `step` on the slots again and again."""

    step: Callable[[N], N]
    graphs: bool
    meter: Meter
    size: int = 0  # of the batch
    warm: int = 0  # steps done with this size
    again: bool = False  # whether another size was recorded before, so that one step will do to warm up
    static: N | None = None  # the slots that the graph reads and writes
    graph: Any = None  # the last one, if only for its memory

    def __call__(self, now: N, steps: int) -> N:
        first = next(tensors(now))
        self.meter.steps += steps
        self.meter.slot_steps += steps * len(first)
        if not self.graphs or first.numel() > SMALL:
            return self._eager(now, steps)
        if len(first) != self.size:
            self.static = None
            self.size, self.warm = len(first), 0
        if self.static is None:
            cold = min(steps, max((1 if self.again else WARM) - self.warm, 0))
            now, steps, self.warm = self._eager(now, cold), steps - cold, self.warm + cold
            if not steps or not self._record(now):
                return self._eager(now, steps)
        return self._replay(now, steps)

    def forget(self) -> None:
        """Give back the memory of what was recorded; the next recording is like the first."""
        self.static, self.graph, self.again = None, None, False

    def _eager(self, now: N, steps: int) -> N:
        for _ in range(steps):
            now = self.step(now)
        return now

    def _replay(self, now: N, steps: int) -> N:
        assert self.static is not None
        if now is not self.static:
            for into, of in zip(tensors(self.static), tensors(now), strict=True):
                into.copy_(of)
        for _ in range(steps):
            self.graph.replay()
        return self.static

    def _record(self, now: N) -> bool:
        static = clone(now)
        recorded = record(lambda: self._in_place(static), self.graph)
        if recorded is None:
            self.graphs = False
            return False
        self.static, self.graph, self.again = static, recorded[0], True
        self.meter.recorded += 1
        return True

    def _in_place(self, static: N) -> None:
        for into, of in zip(tensors(static), tensors(self.step(static)), strict=True):
            if into is not of:
                into.copy_(of)
