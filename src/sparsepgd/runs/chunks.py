"""One chunk of a run: the attack on some of the images, and what is stored of its result."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from sparsepgd.analysis.sanity import Notice
from sparsepgd.errors import ProbabilitiesWarning, SparsePGDWarning, UnsupportedError
from sparsepgd.problem import Result
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.oracle import Model, Oracle, borrowed, working_device
from sparsepgd.runs import tensor_file
from sparsepgd.runs.records import Chunk, Part, Row
from sparsepgd.search.contract import Attacker
from sparsepgd.search.loop import Progress
from sparsepgd.threat import LEVELS

FINE = 1000  # units of progress in an image
TOGETHER = 64  # default batch size for computing confidences
PLACES = 6  # decimal places of a confidence


@dataclass(frozen=True, eq=False)
class Task:
    attack: Attacker
    model: Model
    x: Tensor
    y: Tensor
    seed: int
    batch_size: int | None
    engine: Engine | None
    progress: Progress | None


def attack_chunk(task: Task, run_id: str, start: int, stop: int, fooled: int) -> tuple[Chunk, Tensor]:
    """Attack one chunk; return its rows and its adversarial images as they are stored."""
    begun = time.perf_counter()
    index = torch.arange(start, stop, device=task.x.device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = task.attack.for_rows(index)(
            task.model,
            task.x[start:stop],
            task.y[start:stop],
            seed=task.seed,
            index=index,
            batch_size=task.batch_size,
            engine=task.engine,
            progress=None if task.progress is None else partial(_report, task, start, stop, fooled),
        )
    _check_like(task.x[start:stop], result.x_adv, task.attack.name)
    part = Part(start=start, stop=stop, seconds=time.perf_counter() - begun)
    rows = _rows(result, task.y[start:stop], start, _confidences(task, task.x[start:stop], result))
    chunk = Chunk(run=run_id, images="", part=part, rows=rows, warnings=tuple(_kept(caught, part)))
    return chunk, _stored(result.x_adv, task.attack.quantize)


def _check_like(x: Tensor, x_adv: Tensor, name: str) -> None:
    """Attacks of other packages may return anything; the file of a run has one type and shape for all images."""
    if (x_adv.dtype, x_adv.shape) != (x.dtype, x.shape):
        raise UnsupportedError(
            f"{name} returned images of type {x_adv.dtype} and shape {tuple(x_adv.shape)}; expected {x.dtype} and "
            f"{tuple(x.shape)}, as it was given"
        )


def _stored(x: Tensor, quantize: bool) -> Tensor:
    """Images as they are stored: 8-bit images as their levels, others unchanged."""
    return ((x.double() * LEVELS).round().to(torch.uint8) if quantize else x).cpu().contiguous()


def _restorable(x: Tensor) -> bool:
    """Whether clean images can be restored from their 8-bit levels, to the last bit."""
    return x.dtype == torch.float32 and _stored(x, True).float().div(LEVELS).equal(x.cpu())


def _kept(caught: list[warnings.WarningMessage], part: Part) -> Iterator[Notice]:
    """Warnings of this package belong to the record, others to the caller."""
    for warning in caught:
        if not issubclass(warning.category, SparsePGDWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif not issubclass(warning.category, ProbabilitiesWarning):  # sanity has reported it
            message = f"images {part.start} to {part.stop - 1}: {warning.message}"
            yield Notice(warning.category.__name__, message)


def _report(task: Task, start: int, stop: int, before: int, done: int, total: int, fooled: int) -> None:
    """The progress of a chunk as progress of the run. `before`: images fooled in other chunks."""
    assert task.progress is not None
    images = start + (stop - start) * (done / total if total else 1)
    task.progress(round(images * FINE), len(task.x) * FINE, before + fooled)


def _confidences(task: Task, x: Tensor, result: Result) -> dict[str, list[float | None]]:
    """The probabilities of the predicted classes, in full precision; a `Result` does not contain them."""
    predictions = {"clean_confidence": (x, result.clean_prediction), "confidence": (result.x_adv, result.prediction)}
    confidences, device = {}, working_device(task.model, x)
    with borrowed(task.model, device):
        oracle = Oracle(task.model, device=device)
        for name, (images, prediction) in predictions.items():
            probability = oracle.answers(images, task.batch_size or TOGETHER).softmax(1)
            values = probability.gather(1, prediction[:, None])[:, 0].tolist()
            confidences[name] = [round(value, PLACES) if math.isfinite(value) else None for value in values]
    return confidences


def _rows(result: Result, y: Tensor, start: int, confidences: dict[str, list[float | None]]) -> tuple[Row, ...]:
    names = ("clean_prediction", "prediction", "clean_correct", "fooled", "l0", "groups", "steps", "forwards")
    columns = {name: getattr(result, name).tolist() for name in (*names, "backwards")}
    loss = [value if math.isfinite(value) else None for value in result.loss.tolist()]
    columns |= {"label": y.tolist(), "loss": loss, "broken_by": list(result.broken_by), **confidences}
    return tuple(
        Row(index=start + i, **{name: column[i] for name, column in columns.items()}) for i in range(len(result))
    )


def result_of(rows: Sequence[Row], x_adv: Tensor) -> Result:
    """The `Result` with these rows, on the device of `x_adv`."""
    columns = {
        field.name: torch.tensor([getattr(row, field.name) for row in rows], device=x_adv.device)
        for field in fields(Result)
        if field.name not in ("x_adv", "loss", "broken_by")
    }
    loss = [math.nan if row.loss is None else row.loss for row in rows]
    columns["loss"] = torch.tensor(loss, dtype=x_adv.dtype, device=x_adv.device)
    return Result(x_adv, broken_by=tuple(row.broken_by for row in rows), **columns)


def all_images(task: Task, parts: Sequence[Part], x_adv: Iterable[Tensor]) -> dict[str, tensor_file.Parts]:
    """The content of adversarial.safetensors: with the model, enough to check every row of the record.
    `parts`: the chunks of the run; `x_adv`: their adversarial images, each loaded when it is written."""
    x, quantize, shape = task.x, task.attack.quantize, tuple(task.x.shape)
    clean = [x[part.start : part.stop] for part in parts]
    as_levels = quantize and all(map(_restorable, clean))
    stored = (_stored(one, as_levels) for one in clean)
    tensors = {
        "x": tensor_file.Parts(shape, torch.uint8 if as_levels else x.dtype, stored),
        "x_adv": tensor_file.Parts(shape, torch.uint8 if quantize else x.dtype, x_adv),
        "y": tensor_file.whole(task.y),
    }
    if (allowed := task.attack.budget.allowed) is not None:
        tensors["allowed"] = tensor_file.whole(allowed)
    return tensors


def decoded(stored: Tensor, x: Tensor) -> Tensor:
    """Stored images as the attack returned them: entries with the same 8-bit level as x are equal to x."""
    if stored.dtype != torch.uint8:
        return stored
    same = stored == (x.double() * LEVELS).round()
    return torch.where(same, x, (stored.to(x.dtype) / LEVELS))
