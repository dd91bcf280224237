"""Records of evaluations: what run.json holds, checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparsepgd.errors import SourceError
from sparsepgd.evaluation.summary import Summary

VERSION = 1  # of the format; the Literal below says the same


@dataclass(frozen=True)
class Notice:
    """Something to know before the numbers are believed."""

    code: str
    message: str


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Strict):
    """One image."""

    index: int
    label: int
    clean_prediction: int
    prediction: int
    clean_correct: bool
    fooled: bool
    l0: int
    groups: int
    steps: int
    forwards: int
    backwards: int
    loss: float | None  # None: not searched, or not finite
    broken_by: str | None
    clean_confidence: float | None = None  # the probability of the predicted class; None: not measured, not finite
    confidence: float | None = None  # of `prediction`, on the adversarial image


class Part(Strict):
    """The images start to stop - 1, which were attacked together, and the wall-clock of it."""

    start: int
    stop: int
    seconds: float


class Chunk(Strict):
    """A part with its rows, as it lies in the folder until the end."""

    run: str  # sha256 of the configuration
    images: str  # sha256 of the file with the adversarial images
    part: Part
    rows: tuple[Row, ...]
    warnings: tuple[Notice, ...] = ()


class About(Strict):
    """What is good to know of a run but does not decide its result: a run that goes on may have another one."""

    class_names: tuple[str, ...] = ()  # () if they are not known
    command: str | None = None  # the command line; None: called from Python


class Head(Strict):
    """What is known before the first image is attacked."""

    version: Literal[1] = 1
    created: str
    configuration: dict[str, Any]
    environment: dict[str, str]
    classes: int
    about: About = About()
    warnings: tuple[Notice, ...] = ()


class Record(Head):
    """What run.json holds: everything that was measured, one row an image."""

    finished: bool = True
    images: int
    clean_accuracy: float = Field(ge=0, le=1)
    clean_interval: tuple[float, float]  # 95 %
    robust_accuracy: float = Field(ge=0, le=1)
    robust_interval: tuple[float, float]  # 95 %
    seconds: float
    adversarial: str  # sha256 of adversarial.safetensors
    chunks: tuple[Part, ...]
    rows: tuple[Row, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> Record:
        robust = sum(row.clean_correct and not row.fooled for row in self.rows)
        if len(self.rows) != self.images or abs(robust - self.robust_accuracy * self.images) > 1e-6:
            raise ValueError(f"{len(self.rows)} rows do not give the accuracy of {self.images} images")
        return self

    def summary(self) -> Summary:
        fooled = [row for row in self.rows if row.fooled]
        return Summary(
            images=self.images,
            clean_accuracy=self.clean_accuracy,
            robust_accuracy=self.robust_accuracy,
            interval=self.robust_interval,
            median_l0=median_low([row.l0 for row in fooled]) if fooled else float("nan"),
            median_steps=median_low([row.steps for row in fooled]) if fooled else float("nan"),
            forwards=sum(row.forwards for row in self.rows),
            backwards=sum(row.backwards for row in self.rows),
            seconds=self.seconds,
        )


M = TypeVar("M", bound=Strict)


def read(file: Path, kind: type[M]) -> M:
    """A file of records; one of another version, or a damaged one, is refused with the reason."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        if field == "version":
            raise SourceError(
                f"{file} is a record of version {problem['input']!r}, this sparsepgd reads {VERSION}; "
                "use the sparsepgd that wrote it, or choose another --out"
            ) from None
        raise SourceError(
            f"{file} is no record: {field or 'it'}: {problem['msg']}; delete it or choose another --out"
        ) from None
