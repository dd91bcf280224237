"""Check every row of a finished run from its files and the model alone, including rows that report no success.

Values that cannot be measured again from the files are not checked: steps, seconds, the seed, or whether the attack
was allowed as many groups as the budget says. Images that are not those of the named data are found with `data`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparsepgd.errors import SourceError, UnsupportedError, counted
from sparsepgd.problem.checks import check_counts, check_device, check_labels
from sparsepgd.problem.goals import margin
from sparsepgd.problem.oracle import Model, Oracle, borrowed, working_device
from sparsepgd.problem.shapes import seen_as_images, viewable, with_own_shape
from sparsepgd.problem.verify import Extent, measure
from sparsepgd.runs import identity
from sparsepgd.runs.chunks import PLACES, decoded
from sparsepgd.runs.folders import load, load_adversarial
from sparsepgd.runs.records import Row
from sparsepgd.threat import LEVELS, Budget

TIE = 1e-4  # relative to the largest logit: closer classes may swap places on another device or in another batch
SHOWN = 8  # row numbers in a message


@dataclass(frozen=True)
class Audit:
    reported: int  # successes
    held: int  # those confirmed: classified correctly when clean, within the budget, misclassified now
    false: dict[str, tuple[int, ...]]  # field of a row -> the rows where it is not confirmed

    @property
    def sound(self) -> bool:
        return self.held == self.reported and not self.false

    def messages(self) -> Iterator[str]:
        for name, rows in self.false.items():
            named = ", ".join(map(str, rows[:SHOWN])) + (", ..." if len(rows) > SHOWN else "")
            yield f"{name} differs from the record in {counted(len(rows), 'rows')}: {named}"


def audit(
    folder: str | Path,
    model: Model,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    budget: Budget | None = None,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> Audit:
    """Measure every row of a record again.

    `data`: the clean images and labels; default: those in the folder, on `device`.
    `budget`: only for patterns of your own, which cannot be restored from a record.
    A different prediction is accepted if the two classes are tied: their logits differ by at most `TIE`, or by four
    times the machine epsilon of the weights if that is larger, relative to the largest logit.
    """
    check_counts(batch_size=batch_size)
    device = check_device(device)
    record = load(folder)
    tensors = load_adversarial(folder, record)
    if data is None and "x" not in tensors:
        raise SourceError(f"{folder} does not contain the clean images; pass them: data=...")
    x, y = data or (tensors["x"].to(device), tensors["y"].to(device))
    if x.dtype == torch.uint8:
        x = x.float() / LEVELS
    y = check_labels(y, x)
    recorded = record.configuration
    digests = identity.model_digests(model)
    best = "digest" if "digest" in recorded["model"] and "digest" in digests else "sha256"
    _same(f"model.{best}", recorded["model"][best], digests[best])
    _same("data.images", recorded["data"].get("images", len(x)), len(x))
    _same("data.sha256", recorded["data"]["sha256"], identity.digest(x, y))
    budget = budget or identity.budget_of(recorded["attack"], tensors.get("allowed"))
    quantize = tensors["x_adv"].dtype == torch.uint8 or bool(recorded["attack"].get("quantize"))
    x_adv = decoded(tensors["x_adv"].to(x.device), x)
    device = working_device(model, x)
    tie, held = identity.round_off(model, TIE), 0
    false: dict[str, list[int]] = {}
    with borrowed(model, device):
        oracle = Oracle(with_own_shape(model, x) if viewable(x, budget) else model, device=device)
        for start in range(0, len(x), batch_size):
            rows = slice(start, start + batch_size)
            before, after = (seen_as_images(images[rows], budget) for images in (x, x_adv))
            clean, now = (oracle.answers(images, batch_size) for images in (before, after))
            _same("classes", record.classes, clean.shape[1])
            extent = measure(budget.for_rows(rows), before, after, quantize=quantize)
            confirmed, differs = _judged(record.rows[rows], y[rows], clean, now, extent, tie, bool(record.answers))
            held += int(confirmed.sum())
            for name, wrong in differs.items():
                false.setdefault(name, []).extend((wrong.nonzero()[:, 0] + start).tolist())
    reported = sum(row.fooled for row in record.rows)
    return Audit(reported, held, {name: tuple(rows) for name, rows in false.items() if rows})


def _judged(
    rows: tuple[Row, ...], y: Tensor, clean: Tensor, after: Tensor, extent: Extent, tie: float, steady: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """(B,) bool: which successes are confirmed; and by field of a row, (B,) bool: where it is not as recorded.

    `clean`, `after`: logits (B, classes). Confidences are compared only if the model is `steady`, not randomised.
    """

    def recorded(name: str) -> Tensor:
        """The recorded values, with NaN for None; NaN counts as equal to anything."""
        values = (getattr(row, name) for row in rows)
        return torch.tensor([math.nan if value is None else value for value in values], device=y.device)

    fooled, clean_prediction, prediction = (recorded(name) for name in ("fooled", "clean_prediction", "prediction"))
    possible = extent.within & after.isfinite().all(1)
    ahead = margin(after, y)  # the largest wrong logit minus that of the label
    room = tie * after.abs().amax(1)
    confirmed = fooled & _answered(clean, y, tie) & possible & (ahead >= -room)
    surely = (clean.argmax(1) == y) & possible & (ahead > room)
    differs = {
        "label": recorded("label") != y,
        "clean_prediction": ~_answered(clean, clean_prediction, tie),
        "prediction": ~_answered(after, prediction, tie),
        "l0": recorded("l0") != extent.l0,
        "groups": recorded("groups") != extent.groups,
        "budget": ~extent.within,
    }
    if steady:
        differs["clean_confidence"] = _differs(recorded("clean_confidence"), clean, clean_prediction, tie)
        differs["confidence"] = _differs(recorded("confidence"), after, prediction, tie)
    return confirmed, {**differs, "fooled": torch.where(fooled, ~confirmed, surely)}


def _answered(logits: Tensor, label: Tensor, tie: float) -> Tensor:
    """(B,) bool: whether the model predicts `label`, or its logit ties with the largest."""
    known = label < logits.shape[1]
    close = _of_class(logits, label) >= logits.amax(1) - tie * logits.abs().amax(1)
    return known & (close | (logits.argmax(1) == label))  # the latter for logits that are not finite


def _differs(confidence: Tensor, logits: Tensor, label: Tensor, tie: float) -> Tensor:
    """(B,) bool: whether the probability of `label` differs from the recorded one by more than a tie allows."""
    return (_of_class(logits.softmax(1), label) - confidence).abs() > tie * logits.abs().amax(1) + 0.1**PLACES


def _of_class(values: Tensor, label: Tensor) -> Tensor:
    """(B,) the value of class `label` in each row; a label beyond the last class counts as the last."""
    return values.gather(1, label.clamp(max=values.shape[1] - 1)[:, None])[:, 0]


def _same(what: str, recorded: object, now: object) -> None:
    if recorded != now:
        short, was = (text if len(text) <= 12 else f"{text[:12]}..." for text in (str(now), str(recorded)))
        raise UnsupportedError(f"{what} is {short}, the record has {was}; pass the model and images of the run")
