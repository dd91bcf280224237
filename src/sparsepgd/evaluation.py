"""`evaluate`: measure the robustness of a model as `spgd evaluate` does, with a record from which it can resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor, nn

from sparsepgd import atomic, options, tables
from sparsepgd.analysis.sanity import Notice
from sparsepgd.analysis.summary import describe_budget, length
from sparsepgd.distributed import joined
from sparsepgd.errors import UnsupportedError, counted
from sparsepgd.problem import Result, notebook
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.oracle import Model
from sparsepgd.report import PAGE, entry_of, refresh_page, write_page
from sparsepgd.runs import identity, runs
from sparsepgd.runs.autoattack import Extracted
from sparsepgd.runs.chunks import decoded, result_of
from sparsepgd.runs.folders import RECORD, load_adversarial
from sparsepgd.runs.records import About, Record
from sparsepgd.search.attack import check_budget
from sparsepgd.search.contract import Attacker
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Budget

STEPS, QUERIES = 100, 200  # defaults of an attack given by name


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The result of an evaluation; ``print`` shows it as a table with its warnings."""

    record: Record  # the content of run.json: accuracies, one row per image, configuration, versions, warnings
    x: Tensor
    folder: Path | None
    only_read: bool  # the run in the folder was finished before
    images: Tensor | None  # for a run without a folder: the adversarial images as they are stored

    @property
    def clean_accuracy(self) -> float:
        return self.record.clean_accuracy

    @property
    def clean_interval(self) -> tuple[float, float]:
        """95 %, by Wilson's score."""
        return self.record.clean_interval

    @property
    def robust_accuracy(self) -> float:
        return self.record.robust_accuracy

    @property
    def robust_interval(self) -> tuple[float, float]:
        """95 %, by Wilson's score."""
        return self.record.robust_interval

    @property
    def warnings(self) -> tuple[Notice, ...]:
        return self.record.warnings

    @property
    def written(self) -> Record:
        """The record as stored in the folder, without the notice that it was only read."""
        kept = tuple(notice for notice in self.warnings if notice.code != "only-read")
        return self.record.model_copy(update={"warnings": kept})

    @cached_property
    def result(self) -> Result:
        """The `Result` of the attack with the adversarial images, on the device of the images."""
        stored = load_adversarial(self.folder, self.record)["x_adv"] if self.folder is not None else self.images
        assert stored is not None
        return result_of(self.record.rows, decoded(stored.to(self.x.device), self.x))

    def report(self, file: str | Path | None = None) -> Path:
        """Write the HTML page of the run. `file`: default report.html in its folder, or here if the run has none."""
        file = Path(file) if file is not None else (self.folder or Path()) / PAGE
        if self.folder is None:
            return write_page([entry_of(self.record, self.x.cpu(), self.result.x_adv.cpu())], file)
        return refresh_page({self.folder: self.written}, file)

    def __repr__(self) -> str:
        model, attack = (self.record.configuration[part]["name"] for part in ("model", "attack"))
        (low, high), warnings = self.robust_interval, counted(len(self.warnings), "warnings")
        return (
            f"Evaluation({model} under {attack}, {counted(self.record.images, 'images')}, "
            f"clean {self.clean_accuracy:.1%}, "
            f"robust {self.robust_accuracy:.1%} ({100 * low:.1f}-{high:.1%}), {warnings})"
        )

    def __str__(self) -> str:
        told, text = self.record.configuration, StringIO()
        console = Console(
            file=text, width=80, color_system=None, markup=False, emoji=False, highlight=False, force_jupyter=False
        )
        attack = told["attack"]
        parts = (attack["name"], length(attack), describe_budget(attack.get("budget")))
        title = ", ".join(part for part in parts if part)
        caption = f"{counted(self.record.images, 'images')} of {told['data']['name']}, seed {told['seed']}"
        console.print(tables.accuracies([(told["model"]["name"], self.record.summary())], title, caption))
        for notice in self.warnings:
            console.print(f"warning: {notice.message}")
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        pictures = notebook.thumbnails(self.result, self.x, self.record.about.class_names)
        return self.record.shown_in_notebook(pictures)


def evaluate(
    model: Model,
    x: Tensor,
    y: Tensor,
    budget: Budget | None = None,
    attack: str | Attacker = "saa+",
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    queries: int | None = None,
    seed: int = 0,
    logits: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    chunk: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    names: Mapping[str, str] | None = None,
    class_names: Sequence[str] = (),
    command: str | None = None,
) -> Evaluation:
    """Clean and robust accuracy with intervals and warnings: `spgd evaluate` for one model, in Python.

    `budget`: default 20 pixels. `attack`: a name as on the command line, with `steps` (default 100) for gradient
    attacks and `queries` (default 200) for black-box attacks; or an attack object, with its own budget and length.
    `out`: a folder for the record and the adversarial images, written every `chunk` images: the same call resumes a
    run that was stopped, and reads one that is finished. `names`: {"model": ..., "data": ...} for the record; the run
    of a plain function can be resumed only with a name. `class_names`, `command`: for readers of the record.
    `logits`, `batch_size`, `engine`, `progress`: as for the call of an attack.
    Under torchrun all workers call this with the same arguments and share the images through `out`.
    """
    if logits is not None:
        inner = model
        model = Extracted(model, logits) if isinstance(model, nn.Module) else lambda x: logits(inner(x))
    attacker = _attacker(attack, budget, steps, queries)
    about = About(class_names=tuple(map(str, class_names)), command=command)
    folder, kept = atomic.folder(out), list[Tensor]()
    only_read = folder is not None and (folder / RECORD).is_file()
    with joined() as workers:
        record = runs.run(
            folder, attacker, model, (x, y), names, seed=seed, chunk=chunk, batch_size=batch_size, engine=engine,
            progress=progress, workers=workers, about=about, keep=kept.append,
        )  # fmt: skip
    return Evaluation(record, x.detach(), folder, only_read, kept[0] if kept else None)


def _attacker(attack: str | Attacker, budget: Budget | None, steps: int | None, queries: int | None) -> Attacker:
    if budget is not None:
        check_budget(budget)
    if isinstance(attack, str):
        steps, queries = STEPS if steps is None else steps, QUERIES if queries is None else queries
        return options.attack(attack, budget or Budget(k=20), steps, queries=queries)
    for name, value in (("steps", steps), ("queries", queries)):
        if value is not None:
            raise UnsupportedError(f"{name}={value} was given with an attack object, which has its own; set it there")
    own = getattr(attack, "budget", None)
    if budget is not None and identity.plain(budget) != identity.plain(own):
        raise UnsupportedError(f"budget={budget} was given with an attack that has budget={own}; omit one of them")
    return attack
