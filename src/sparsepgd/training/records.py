"""The contents of training.json, validated when it is written and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from sparsepgd import atomic
from sparsepgd.runs.records import Strict, read

RECORD = "training.json"


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


def write(folder: Path, **values: Any) -> None:
    record = TrainingRecord(**values)
    atomic.write(folder / RECORD, record.model_dump_json(indent=1).encode())


def load(folder: str | Path) -> TrainingRecord:
    return read(Path(folder) / RECORD, TrainingRecord)
