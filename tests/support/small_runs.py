"""One small run, complete or stopped early, and the parts of it that tests compare."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

import sparsepgd as sp
from sparsepgd.runs import runs
from sparsepgd.runs.folders import load
from sparsepgd.runs.records import Record
from support.models import SmallConvNet, images, labelled

ATTACK = sp.SparsePGD(sp.Budget(k=6), steps=15)
TIMES = {"created", "seconds", "chunks"}  # of a record, which differ from run to run


def problem(count: int = 12, seed: int = 0) -> tuple[SmallConvNet, tuple[Tensor, Tensor]]:
    model, x = SmallConvNet(seed=seed).eval(), images(count)
    return model, (x, labelled(model, x))


def outcome(folder: Path) -> tuple[dict[str, object], bytes]:
    """Everything in a run except the times."""
    return load(folder).model_dump(exclude=TIMES), (folder / "adversarial.safetensors").read_bytes()


def start(folder: Path, stop_after: int | None = None, chunk: int = 4) -> Record:
    """The run that most tests use; it ends early after `stop_after` chunks."""
    model, data = problem()
    asked = iter(range(100))
    return runs.run(folder, ATTACK, model, data, chunk=chunk, stop=lambda: next(asked) == stop_after)
