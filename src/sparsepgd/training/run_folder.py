"""The folder of a training run: its checkpoint, its record training.json, its weights, and curves for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from sparsepgd import atomic
from sparsepgd.extras import needs
from sparsepgd.runs import identity
from sparsepgd.runs.folders import Folder
from sparsepgd.runs.records import Strict, read
from sparsepgd.sources import TRAINED
from sparsepgd.training import state as states
from sparsepgd.training.loop import Run

CHECKPOINT, RECORD, WEIGHTS, BOARD = "checkpoint.pt", "training.json", f"{TRAINED}.safetensors", "tensorboard"


class TrainingRecord(Strict):
    """A training run: its settings, its curves with one value per epoch, and its warnings."""

    version: Literal[1] = 1
    created: str
    configuration: dict[str, Any]
    environment: dict[str, str]
    finished: bool
    epochs: int
    seconds: float
    curves: dict[str, list[float | None]]
    notices: tuple[str, ...] = ()
    weights: str | None = None  # sha256 of model.safetensors

    @field_validator("curves")
    @classmethod
    def _aligned(cls, curves: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
        if len({len(values) for values in curves.values()}) > 1:
            raise ValueError("curves of unequal length; expected one value per epoch")
        return curves


def load(folder: str | Path) -> TrainingRecord:
    return read(Path(folder) / RECORD, TrainingRecord)


@dataclass(eq=False)
class RunFolder:
    """If there are several workers, the first one writes."""

    folder: Path
    run: Run
    configuration: states.Plain
    save_seconds: float
    tensorboard: bool
    saved: float = 0.0  # time of the last checkpoint
    writer: Callable[[str, float, int], None] | None = None  # of TensorBoard: curve, value, epoch

    def train(self) -> None:
        """Start or resume the run and finish it; the folder is locked."""
        first = self.run.team.first
        with ExitStack() as stack:
            if first:
                stack.enter_context(Folder(self.folder).locked())
            if first and self.tensorboard:
                self.writer = stack.enter_context(_board(self.folder))
            states.restore(self.folder / CHECKPOINT, self.run.state, self.configuration)
            self.saved = time.monotonic()
            self.run.train(self.checkpoint)
            if first:
                with self.run.state.averaged():
                    digest = states.write_weights(self.folder / WEIGHTS, self.run.state.network.state_dict())
                self.record(finished=True, weights=digest)

    def checkpoint(self) -> None:
        state = self.run.state
        if not self.run.team.first:
            return
        if self.writer is not None:
            for name, value in state.latest.items():
                self.writer(name, value, state.epoch)
        if state.epoch == self.run.settings.epochs or time.monotonic() - self.saved >= self.save_seconds:
            states.save(self.folder / CHECKPOINT, state, self.configuration)
            self.record(finished=False)
            self.saved = time.monotonic()

    def record(self, **more: Any) -> None:
        state = self.run.state
        record = TrainingRecord(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            configuration=self.configuration,
            environment=identity.environment(state.device),
            epochs=state.epoch,
            seconds=state.seconds,
            curves=state.curves,
            notices=tuple(state.notices),
            **more,
        )
        atomic.write(self.folder / RECORD, record.model_dump_json(indent=1).encode())


@contextmanager
def _board(folder: Path) -> Iterator[Callable[[str, float, int], None]]:
    with needs("tensorboard=True"):
        from torch.utils.tensorboard import SummaryWriter
    with SummaryWriter(str(folder / BOARD)) as writer:
        yield writer.add_scalar
