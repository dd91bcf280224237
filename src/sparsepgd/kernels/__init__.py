"""Triton kernels for a GPU, where there is one: one kernel instead of a dozen or more operations of torch.

What they compute, torch computes too, wherever there is no GPU or no Triton that works.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd import atomic
from sparsepgd.errors import SparsePGDError
from sparsepgd.kernels import compiler

EAGER: dict[str, Callable[[Tensor], Tensor]] = {  # the activations that a kernel has, by torch
    "none": lambda u: u,
    "relu": torch.relu,
    "softplus": F.softplus,
    "silu": F.silu,
}
# golden ratio, first and second factor of SplitMix64 (search/noise.py), written as the signed integers that torch has
SPLITMIX = tuple(one - (1 << 64) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def kernels(device: torch.device) -> Any:
    """The module with the kernels; None: not on this device, or not yet. On a machine where they were compiled before,
    they are loaded in less than a second, for which this waits. Elsewhere compiling them takes many seconds: meanwhile
    torch does the work."""
    if device.type != "cuda":
        return None
    future = loading(device)
    return future.result() if future.done() or compiled_before(device) else None


def begin_loading(device: torch.device) -> None:
    """For whoever will need the kernels on this device soon."""
    if device.type == "cuda":
        compiled_before(device)
        loading(device)


def wait(device: torch.device) -> None:
    """For whoever will need them for so long that it does not matter how long they take."""
    if device.type == "cuda":
        loading(device).result()


def ready(device: torch.device) -> bool:
    """Whether `kernels` returns the same from now on."""
    return device.type != "cuda" or loading(device).done()


@cache
def loading(device: torch.device) -> Future[Any]:
    """A thread loads them while the model classifies the clean images."""
    thread = ThreadPoolExecutor(1)
    future = thread.submit(_load, device)
    thread.shutdown(wait=False)
    return future


def _load(device: torch.device) -> Any:
    file, seen = marker(device), compiled_before(device)
    try:
        from sparsepgd.kernels import checked, compiled

        if seen:
            compiler.set_name(file.read_text())
        checked.load(device, seen)
    except Exception:  # there is no Triton, it cannot compile here (without a C compiler), or it compiles wrongly
        return None
    if not seen:
        with suppress(SparsePGDError):  # without the file another process does not wait for what is there
            atomic.write(file, compiler.name().encode())
    return compiled


@cache
def compiled_before(device: torch.device) -> bool:
    """Whether Triton has these kernels in its cache, for such a device."""
    return marker(device).is_file()


def marker(device: torch.device) -> Path:
    """A file beside Triton's cache of kernels, with a name that changes when they must be compiled anew. It holds the
    name of the compiler."""
    home = os.environ.get("TRITON_HOME") or Path.home()
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
    parts = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))]
    about = (torch.__version__, torch.cuda.get_device_capability(device), compiler.fingerprint())
    parts += [str(one).encode() for one in about]
    return cache / f"sparsepgd-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
