"""The precision of float32 on a GPU: with or without TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """A context without autocast and TF32, for everything that decides a result."""
    kinds = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    with tf32(False), torch.autocast(kinds[0], enabled=False), torch.autocast(kinds[-1], enabled=False):
        yield


@contextmanager
def tf32(allowed: bool = True) -> Iterator[None]:
    """A context with or without TF32. torch does not allow a mixture of its old and new settings, so those that the
    caller uses are set."""
    try:
        cudnn, matmul = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:
        cudnn_newer: Any = torch.backends.cudnn
        switches: list[Any] = [cudnn_newer.conv, torch.backends.cuda.matmul]
        before = [switch.fp32_precision for switch in switches]
        try:
            for switch in switches:
                switch.fp32_precision = "tf32" if allowed else "ieee"
            yield
        finally:
            for switch, value in zip(switches, before, strict=True):
                switch.fp32_precision = value
        return
    try:
        torch.backends.cudnn.allow_tf32 = allowed
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = cudnn
        torch.set_float32_matmul_precision(matmul)
