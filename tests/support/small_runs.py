"""One small run, complete or stopped early, and the parts of it that tests compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch import Tensor

import sparsepgd as sp
from sparsepgd.runs import runs
from sparsepgd.runs.folders import load
from support.models import SmallConvNet, images, labelled

ATTACK = sp.SparsePGD(sp.Budget(k=6), steps=15)
TIMES = {"created", "seconds", "chunks"}  # of a record, which differ from run to run


def problem(count: int = 12, seed: int = 0) -> tuple[SmallConvNet, tuple[Tensor, Tensor]]:
    model, x = SmallConvNet(seed=seed).eval(), images(count)
    return model, (x, labelled(model, x))


def outcome(folder: Path) -> tuple[dict[str, object], bytes]:
    """Everything in a run except the times."""
    return load(folder).model_dump(exclude=TIMES), (folder / "adversarial.safetensors").read_bytes()


@contextmanager
def killed_after(chunks: int) -> Iterator[None]:
    """The run in this context is interrupted after so many chunks, as by Ctrl-C."""
    left, attack_chunk = iter(range(chunks)), runs.attack_chunk

    def attacked(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return attack_chunk(*args)

    with mock.patch.object(runs, "attack_chunk", attacked), pytest.raises(KeyboardInterrupt):
        yield


def start(folder: Path, stop_after: int | None = None, chunk: int = 4) -> Any:
    """The record of the run that most tests use; None if it is killed after `stop_after` chunks."""
    model, data = problem()
    with nullcontext() if stop_after is None else killed_after(stop_after):
        return runs.run(folder, ATTACK, model, data, chunk=chunk)
