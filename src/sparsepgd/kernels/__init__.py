"""Triton kernels for a GPU, where there is one: one kernel instead of a dozen or more operations of torch.

What they compute, torch computes too, wherever there is no GPU or no Triton that works.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

EAGER: dict[str, Callable[[Tensor], Tensor]] = {  # the activations that a kernel has, by torch
    "none": lambda u: u,
    "relu": torch.relu,
    "softplus": F.softplus,
    "silu": F.silu,
}
# golden ratio, first and second factor of SplitMix64 (search/noise.py), written as the signed integers that torch has
SPLITMIX = tuple(one - (1 << 64) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def kernels(device: torch.device) -> Any:
    """The module with the kernels, once they are loaded; None: not on this device."""
    return loading(device).result() if device.type == "cuda" else None


def begin_loading(device: torch.device) -> None:
    """For whoever will need the kernels on this device soon."""
    if device.type == "cuda":
        loading(device)


@cache
def loading(device: torch.device) -> Future[Any]:
    """A thread loads them while the model classifies the clean images: in each process Triton reads and hashes its own
    compiler, some hundred megabytes, before it finds the kernels in its cache on disk or compiles them."""
    thread = ThreadPoolExecutor(1)
    future = thread.submit(_load, device)
    thread.shutdown(wait=False)
    return future


def _load(device: torch.device) -> Any:
    try:
        from sparsepgd.kernels import checked, compiled

        checked.load(device)
    except Exception:  # there is no Triton, it cannot compile here (without a C compiler), or it compiles wrongly
        return None
    return compiled
