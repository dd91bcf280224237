"""Triton kernels for GPUs: one kernel instead of a dozen or more operations of torch.

Without a GPU, or without a working Triton, torch computes the same.
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

EAGER: dict[str, Callable[[Tensor], Tensor]] = {  # the activations of the kernels, in torch
    "none": lambda u: u,
    "relu": torch.relu,
    "softplus": F.softplus,
    "silu": F.silu,
}
# golden ratio, first and second factor of SplitMix64 (search/noise.py), as signed integers of torch
SPLITMIX = tuple(one - (1 << 64) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def kernels(device: torch.device) -> Any:
    """The module with the kernels; None: there are none for this device, or not yet. If they were compiled on this
    machine before, they are loaded in less than a second, for which this waits. Otherwise they are compiled, which
    takes many seconds, and torch is used meanwhile. Triton launches on the current GPU only, so there are none for
    another one (`borrowed` makes that of the model the current one)."""
    if device.type != "cuda" or device.index not in (None, torch.cuda.current_device()):
        return None
    future = loading(device)
    return future.result() if future.done() or compiled_before(device) else None


def begin_loading(device: torch.device) -> None:
    """Start to load the kernels, if they will be needed on this device soon."""
    if device.type == "cuda":
        compiled_before(device)
        loading(device)


def wait(device: torch.device) -> None:
    """Wait until the kernels are loaded or compiled."""
    if device.type == "cuda":
        loading(device).result()


def ready(device: torch.device) -> bool:
    """Whether the result of `kernels` will not change any more."""
    return device.type != "cuda" or loading(device).done()


@cache
def loading(device: torch.device) -> Future[Any]:
    """Load them in a thread, while the model classifies the clean images."""
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
    except Exception:  # no Triton, no C compiler for it, or wrong results
        return None
    if not seen:
        with suppress(SparsePGDError):  # without the file other processes do not wait for the kernels
            atomic.write(file, compiler.name().encode())
    return compiled


@cache
def compiled_before(device: torch.device) -> bool:
    """Whether Triton has these kernels for this kind of device in its cache."""
    return marker(device).is_file()


def marker(device: torch.device) -> Path:
    """A file in Triton's cache of kernels. Its name changes when they must be compiled again. It contains the name of
    the compiler."""
    home = os.environ.get("TRITON_HOME") or Path.home()
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
    parts = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))]
    about = (torch.__version__, torch.cuda.get_device_capability(device), compiler.fingerprint())
    parts += [str(one).encode() for one in about]
    return cache / f"sparsepgd-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
