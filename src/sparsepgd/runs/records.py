"""Records of evaluations: the content of run.json, validated when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median_low
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparsepgd.analysis.sanity import Notice
from sparsepgd.analysis.summary import Summary, describe_budget, wilson
from sparsepgd.errors import SourceError
from sparsepgd.problem import notebook
from sparsepgd.validation import problem

VERSION = 1  # of the format; the Literal below says the same
Count = Annotated[int, Field(ge=0, lt=2**63)]  # fits into an int64 tensor


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Strict):
    index: Count
    label: Count
    clean_prediction: Count
    prediction: Count
    clean_correct: bool
    fooled: bool
    l0: Count
    groups: Count
    steps: Count
    forwards: Count
    backwards: Count
    loss: float | None  # None: not attacked, or not finite
    broken_by: str | None
    clean_confidence: float | None = None  # probability of the predicted class; None: not measured, or not finite
    confidence: float | None = None  # of `prediction`, on the adversarial image

    @property
    def robust(self) -> bool:
        """Classified correctly when clean, and not fooled."""
        return self.clean_correct and not self.fooled


class Part(Strict):
    """The images start to stop - 1, which were attacked together, and the wall-clock time that this took."""

    start: int = Field(ge=0)
    stop: int
    seconds: float = Field(ge=0)


class Chunk(Strict):
    """A part with its rows, stored in the folder until the run is finished."""

    run: str  # sha256 of the configuration
    images: str  # sha256 of the file with the adversarial images
    part: Part
    rows: tuple[Row, ...]
    warnings: tuple[Notice, ...] = ()


class About(Strict):
    """Information about a run that does not decide its result, so a resumed run may differ in it."""

    class_names: tuple[str, ...] = ()  # () if they are not known
    command: str | None = None  # the command line; None: called from Python


def like(choose: Callable[[Any], type[BaseModel] | None]) -> AfterValidator:
    """A validator that leaves plain values unchanged. `choose` returns the pydantic model that they must match, or
    None."""

    def check(value: Any) -> Any:
        if kind := choose(value):
            kind.model_validate(value)
        return value

    return AfterValidator(check)


class Written(BaseModel):
    """Part of the output of `identity.configuration`: the entries that readers of a record rely on, among others."""

    model_config = ConfigDict(strict=True, extra="allow")


class PatternPart(Written):
    kind: str


class ShapePart(PatternPart):
    name: str
    kernel: list[str]


class GroupsPart(PatternPart):
    sets: list[Any]


PATTERNS: dict[str, type[PatternPart]] = {"Shape": ShapePart, "Groups": GroupsPart}


class BudgetPart(Written):
    k: int
    pattern: Annotated[dict[str, Any], like(lambda value: PATTERNS.get(str(value.get("kind")), PatternPart))]
    eps: float


def _budget(value: Any) -> type[BudgetPart] | None:
    """Attacks of other packages may have budgets of their own kind."""
    return BudgetPart if isinstance(value, dict) and value.get("kind", "Budget") == "Budget" else None


class AttackPart(Written):
    name: str
    budget: Annotated[Any, like(_budget)] = None


class ModelPart(Written):
    name: str
    sha256: str | None
    digest: str | None = None


class DataPart(Written):
    name: str
    sha256: str


class Configuration(Written):
    attack: AttackPart
    model: ModelPart
    data: DataPart
    seed: int


class Head(Strict):
    """What is known before the first image is attacked."""

    version: Literal[1] = 1
    created: str
    configuration: Annotated[dict[str, Any], like(lambda value: Configuration)]
    environment: dict[str, str]
    classes: int
    answers: tuple[tuple[float, ...], ...] = ()  # logits of the first images; () in older records, or if randomised
    about: About = About()
    warnings: tuple[Notice, ...] = ()


class Record(Head):
    """The content of run.json: everything that was measured, with one row per image."""

    finished: Literal[True] = True
    images: int
    clean_accuracy: float = Field(ge=0, le=1)
    clean_interval: tuple[float, float]  # 95 %
    robust_accuracy: float = Field(ge=0, le=1)
    robust_interval: tuple[float, float]  # 95 %
    seconds: float = Field(ge=0)
    adversarial: str  # sha256 of adversarial.safetensors
    chunks: tuple[Part, ...]
    rows: tuple[Row, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> Record:
        n = len(self.rows)
        clean = sum(row.clean_correct for row in self.rows)
        robust = sum(row.robust for row in self.rows)
        if n != self.images or not _close(robust / max(n, 1), self.robust_accuracy):
            raise ValueError(f"{n} rows do not give the accuracy of {self.images} images")
        if not _close(clean / max(n, 1), self.clean_accuracy):
            raise ValueError(f"{n} rows do not give the clean accuracy {self.clean_accuracy}")
        for name, hits in (("clean", clean), ("robust", robust)):
            interval = getattr(self, f"{name}_interval")
            if not all(map(_close, wilson(hits, n), interval)):
                raise ValueError(f"{hits} of {n} do not give the {name}_interval {interval}")
        if [row.index for row in self.rows] != list(range(n)):
            raise ValueError("the rows are not numbered one by one")
        for row in self.rows:
            if row.clean_correct != (row.clean_prediction == row.label) or (row.fooled and not row.clean_correct):
                raise ValueError(f"row {row.index} contradicts itself: label, clean_prediction, clean_correct, fooled")
            if row.fooled == (row.broken_by is None):
                raise ValueError(f"row {row.index} contradicts itself: fooled, broken_by")
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

    def shown_in_notebook(self, pictures: Iterable[str] = ()) -> str:
        """An HTML table with the warnings; `pictures`: HTML to show below it."""
        attack, row = self.configuration["attack"], self.summary()
        cells = {
            "model": self.configuration["model"]["name"],
            "attack": attack["name"],
            "budget": describe_budget(attack.get("budget")),
            "images": f"{row.images:,}",
            "clean accuracy": f"{row.clean_accuracy:.1%}",
            "robust accuracy": f"{row.robust_accuracy:.1%}",
            "95 % interval": f"{100 * row.interval[0]:.1f}-{row.interval[1]:.1%}",
        }
        notes = [f"warning: {notice.message}" for notice in self.warnings]
        return notebook.render(cells, notebook.fooled_by(one.broken_by for one in self.rows) + notes, pictures)

    def _repr_html_(self) -> str:
        return self.shown_in_notebook()


def _close(a: float, b: float) -> bool:
    return abs(a - b) < 1e-9


M = TypeVar("M", bound=Strict)


def read(file: Path, kind: type[M]) -> M:
    """Read a record from a file. A damaged file, or one of another version, is a SourceError with the reason."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        if (first := error.errors()[0])["loc"] == ("version",):
            raise SourceError(
                f"{file} is a record of version {first['input']!r}, but this sparsepgd reads version {VERSION}; "
                "use the sparsepgd that wrote it, or choose another --out"
            ) from None
        raise SourceError(
            f"{file} is not a valid record: {problem(error)}; delete it or choose another --out"
        ) from None
