"""Work that is recorded once as a CUDA graph and replayed: the host launches all its kernels at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparsepgd.errors import first_line
from sparsepgd.problem.engine import warn

T = TypeVar("T")
WARM = 2  # times that work is done before it is recorded: compiled code and library handles must be there


def record(work: Callable[[], T], before: Any = None) -> tuple[Any, T] | None:
    """A graph of the work, and its result, which every replay writes anew. None, with a warning, if the work cannot
    be recorded: if the model asks the host something in the middle. Nothing of it is done yet. `before`: a graph that
    will not be replayed any more, and leaves its working memory to this one."""
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
        warn(f"the model cannot be recorded as a CUDA graph ({first_line(error)})", "graphs=False")
        return None
    torch.cuda.current_stream().wait_stream(stream)
    return graph, result


@lru_cache(maxsize=16)
def _stream(device: int) -> Any:
    """The one stream for recordings: libraries keep working memory for every stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(eq=False)
class Recorded:
    """A function of tensors, (*inputs) -> tensor, replayed as long as the inputs have the same shapes.

    What else it reads, such as the weights of a model, must stay where it is; its values may change.
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
            self._record(inputs)
        if self.graph is None:
            return self.function(*inputs)
        for into, of in zip(self.inputs, inputs, strict=True):
            into.copy_(of)
        self.graph.replay()
        assert self.output is not None
        return self.output.clone()

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [one.detach().clone() for one in inputs]
        recorded = record(lambda: self.function(*self.inputs))
        if recorded is None:
            self.possible = False
        else:
            self.graph, self.output = recorded
