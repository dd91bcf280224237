"""Count the operations that torch launches for a step as on a GPU, where each of our kernels is one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sparsepgd.problem import rows

VIEWS = ("view", "expand", "select", "slice", "squeeze", "detach", "alias", "permute", "transpose", "unbind", "split")
USERS = (
    "sparsepgd.problem.goals",
    "sparsepgd.problem.rows",
    "sparsepgd.search.loop",
    "sparsepgd.search.noise",
    "sparsepgd.search.random_search.clusters",
    "sparsepgd.threat.budget",
)


class Kernels:
    """Stand-ins for the kernels of a GPU: arbitrary values of the right shapes."""

    MOST = POINTS = CLASSES = UNROLLED = 4096

    def uniform(self, seed: Any, stream: int, index: Tensor, step: Tensor, left: int, count: int) -> Tensor:
        return torch.full((len(index), count), 0.5)

    def top_k(self, score: Tensor, usable: Tensor | None, count: Tensor) -> Tensor:
        return torch.ones_like(score)

    def clip(self, p: Tensor, *box: Tensor) -> Tensor:
        return p.clone()

    def render(self, p: Tensor, mask: Tensor, x: Tensor, *box: Any) -> Tensor:
        return x.clone()

    def put(self, which: Tensor, new: Tensor, into: Tensor) -> Tensor:
        return into.copy_(new)

    def judged(self, logits: Tensor, *how: Any) -> tuple[Tensor, Tensor, Tensor]:
        return logits.detach()[:, 0], logits.detach()[:, 0] > 0, torch.ones_like(logits)

    def varied(self, mask: Tensor, value: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        return mask, value.clone()


class Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not any(view in str(func) for view in VIEWS)
        return func(*args, **(kwargs or {}))


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "waits_for_host", lambda device: True)
    for user in USERS:
        monkeypatch.setattr(f"{user}.kernels", lambda device: Kernels())


def counted(work: Callable[[], object]) -> int:
    with Counter() as counter:
        work()
    return counter.count
