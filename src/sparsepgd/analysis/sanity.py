"""Sanity checks: of the model and the images before a run, and of its rows afterwards.

No check stops a run: each gives at most one notice, which is printed under the table and kept in the record.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.analysis.summary import Row
from sparsepgd.errors import ModelError, ProbabilitiesWarning, SparsePGDWarning, first_line
from sparsepgd.problem.checks import check_classes
from sparsepgd.problem.engine import in_parts
from sparsepgd.problem.oracle import Model, Oracle, borrowed, check_logits, working_device
from sparsepgd.problem.precision import full_precision
from sparsepgd.problem.shapes import shape_of
from sparsepgd.search import SparseAnneal, SparseAutoAttack, SparsePGD, SparseRS
from sparsepgd.search.contract import Attacker
from sparsepgd.search.registry import black_box
from sparsepgd.search.stepwise import Stepwise

SAMPLE = 32  # images on which the model is evaluated
ENTRIES = 1 << 20  # pixels on the device at a time
ALONE = 4  # of these, evaluated one by one
ROUND_OFF = 1e-3  # relative change that is allowed between batch sizes
VANISHING = 1e-10  # gradients with a smaller norm are useless
FEW = 0.05  # shares and differences of accuracy that cause no notice; significance level
TRIED, STEPS, MORE = (16, 32), (12, 40), 3  # images and steps of the trial of SparseAnneal; images that matter
SHARE = 25  # passes of the run per pass of the trial, at least
FALLING = 0.005  # share of the images that may be fooled in the last half of a run without a notice
LONG = {"steps": 1000, "queries": 5000}  # lengths of runs for publication


@dataclass(frozen=True)
class Notice:
    """A reason to doubt the numbers."""

    code: str
    message: str


def examine(model: Model, x: Tensor, y: Tensor, batch_size: int | None = None) -> tuple[int, tuple[Notice, ...]]:
    """Check before a run, with a few forward passes and one gradient; return the number of classes and the notices.
    x and y must have passed problem.checks."""
    size = min(batch_size or SAMPLE, max(8, ENTRIES // math.prod(shape_of(x)[1:])))
    notices = [*_range(x), *_mode(model)]
    device = working_device(model, x)
    sample, true = x[:SAMPLE].to(device), y[:SAMPLE].to(device)
    oracle = Oracle(model)
    with borrowed(model, device):
        first, again = (oracle.answers(sample, size) for _ in range(2))
        check_classes(y, first.shape[1])
        notices += _outputs(first)
        random = list(_randomised(first, again))
        notices += random or _batch(oracle, sample, first)
        with full_precision():
            notices += _gradients(oracle, sample[:size], true[:size])
    return first.shape[1], tuple(notices)


def trial(attack: Attacker, model: Model, x: Tensor, y: Tensor) -> tuple[Notice, ...]:
    """Check before a long run of the paper's attacks whether, on a few images, SparseAnneal fools more of them than
    each of these attacks does with as many passes."""
    members = attack.members if isinstance(attack, SparseAutoAttack) else (attack,)
    papers = [member for member in members if isinstance(member, SparsePGD | SparseRS)]
    if not papers or any(isinstance(member, SparseAnneal) for member in members):
        return ()
    passes = len(x) * sum(member.evaluations * (1 + member.needs_gradient) for member in papers)
    room = passes // (2 * SHARE * (1 + len(papers)))  # steps for all images together, for each attack that is tried
    count = max(TRIED) if room >= max(TRIED) * max(STEPS) else min(TRIED)
    few = torch.arange(min(count, len(x)))
    steps = min(room // max(len(few), 1), max(STEPS))
    if steps < min(STEPS):
        return ()

    def fooled(short: Attacker) -> int:
        return int(short.for_rows(few)(model, x[few], y[few]).fooled.sum())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsePGDWarning)  # the run itself will warn
        try:
            most = fooled(SparseAnneal(papers[0].budget, steps, quantize=papers[0].quantize))
        except ModelError:
            return ()
        others = [(fooled(_shortened(member, steps)), member.name) for member in papers if most >= MORE]
    best, name = max(others, default=(most, ""))
    if most < best + MORE:
        return ()
    message = (
        f"with {steps} steps SparseAnneal fools {most} of {len(few)} images, {name} only {best} with as many "
        "passes; without SparseAnneal the robust accuracy may be overestimated; "
        "use --attack saa+"
    )
    return (Notice("anneal-wins", message),)


def _shortened(member: SparsePGD | SparseRS, steps: int) -> SparsePGD | SparseRS:
    """The attack with as many passes as SparseAnneal has in `steps` steps, at the pace of a short run."""
    if isinstance(member, SparseRS):
        return replace(member, queries=2 * steps)
    # the random start of sPGD is evaluated, too
    return replace(member, steps=steps - 1, alpha=None, beta=None, tolerance=None)


def review(rows: Sequence[Row], classes: int, attack: Attacker) -> tuple[Notice, ...]:
    """Check after a run of the attack."""
    clean = sum(row.clean_correct for row in rows)
    notices = list(_chance(clean, len(rows), classes))
    by_box = sum(row.clean_correct and black_box(row.broken_by or "") for row in rows)
    if by_box >= MORE and any(row.backwards for row in rows):  # without a backward pass there was no gradient to beat
        robust = sum(row.robust for row in rows)
        notices += _masking((robust + by_box) / max(len(rows), 1), robust / max(len(rows), 1))
    return (*notices, *_too_short(rows, attack))


def longer(unit: str, length: int) -> int:
    """How many steps or queries to use if `length` were too few."""
    return max(LONG[unit], 4 * length)


def compare(robust: Mapping[str, float]) -> tuple[Notice, ...]:
    """Check after runs of several attacks on the same model and images; `robust`: the robust accuracy under each."""
    white = [value for name, value in robust.items() if not black_box(name)]
    black = [value for name, value in robust.items() if black_box(name)]
    return tuple(_masking(min(white), min(black))) if white and black else ()


def _range(x: Tensor) -> Iterator[Notice]:
    low, high = float(x.amin()), float(x.amax())
    if high <= 0.02:
        advice = "were they divided by 255 twice? multiply by 255"
    elif low == high:
        advice = "every value is the same; check how they were loaded"
    else:
        return
    yield Notice("range", f"the images are in [{low:.4g}, {high:.4g}], expected [0, 1]; {advice}")


def _mode(model: Model) -> Iterator[Notice]:
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    depends = nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd
    kinds = sorted({type(module).__name__ for module in modules if isinstance(module, depends) and module.training})
    if kinds:
        yield Notice(
            "training-mode",
            f"the model is in training mode ({', '.join(kinds)}); it is attacked in evaluation mode "
            "and returned to training mode afterwards",
        )


def _outputs(logits: Tensor) -> Iterator[Notice]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_logits(logits)
    for warning in caught:
        if issubclass(warning.category, ProbabilitiesWarning):
            yield Notice("probabilities", str(warning.message))


def _randomised(first: Tensor, again: Tensor) -> Iterator[Notice]:
    apart = _apart(first, again)
    if not apart <= ROUND_OFF / 10 or bool((first.argmax(1) != again.argmax(1)).any()):
        yield Notice(
            "randomised",
            f"the model is randomised: two passes over the same images differ by {apart:.1%} of the largest logit; "
            "a single success means little, and robust accuracy is unreliable; average over the randomness",
        )


def _batch(oracle: Oracle, x: Tensor, together: Tensor) -> Iterator[Notice]:
    """Compare the outputs for an image alone and in a batch."""
    few = together[:ALONE]
    try:
        alone = oracle.answers(x[:ALONE], 1)
    except (RuntimeError, ValueError) as error:
        reason = first_line(error.__cause__ or error)  # the model's own message
        yield Notice("batch", f"the model fails on a batch of one image ({reason}); the last batch may fail too")
        return
    apart, other = _apart(few, alone), int((few.argmax(1) != alone.argmax(1)).sum())
    if other or not apart <= ROUND_OFF:
        yield Notice(
            "batch",
            f"the output depends on the other images of the batch: alone, {other} of {len(few)} images get another "
            f"class, and logits differ by {apart:.1%}; use running statistics (BatchNorm), not those of the batch",
        )


def _apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((a - b).abs().amax() / torch.maximum(a.abs(), b.abs()).amax().clamp(min=1e-12))


def _gradients(oracle: Oracle, x: Tensor, y: Tensor) -> Iterator[Notice]:
    def length(rows: slice) -> Tensor:
        gradient = oracle.evaluate(x[rows], y[rows], y[rows], True).gradient
        assert gradient is not None
        norm: Tensor = gradient.flatten(1).double().norm(dim=1)
        return norm

    try:
        lengths, _ = in_parts(length, len(x), len(x))
    except ModelError:
        return  # gradient attacks raise an error themselves, others need no gradient
    lost = torch.cat(lengths) < VANISHING
    share = float(lost.double().mean())
    if share > FEW:
        yield Notice(
            "zero-gradient",
            f"{share:.0%} of the images have a vanishing gradient (norm below {VANISHING:g}), where gradient "
            "attacks fail and only a black-box attack counts (saa+ has one); look for rounding or saturation in the "
            "model",
        )


def _chance(hits: int, n: int, classes: int) -> Iterator[Notice]:
    """One-sided binomial test of the clean accuracy against guessing."""
    from scipy.special import bdtrc

    if n >= 10 and (hits == 0 or float(bdtrc(hits - 1, n, 1 / classes)) > FEW):
        yield Notice(
            "chance",
            f"clean accuracy {hits / n:.1%} is no better than guessing among {classes} classes; check the labels, "
            "the order of the classes, the weights and the normalisation, which belongs inside the model",
        )


def _masking(white: float, black: float) -> Iterator[Notice]:
    if white - black > FEW + 1e-9:  # 0.9 - 0.85 is more than 0.05
        yield Notice(
            "black-box-wins",
            f"the black-box attack reaches a robust accuracy of {black:.1%}, the gradient attacks {white:.1%}: "
            "they had too few --steps, or the model masks its gradients, as l0-trained models do in the paper; "
            f"the lower number counts{', and more --queries may lower it further' if black else ''}",
        )


def _too_short(rows: Sequence[Row], attack: Attacker) -> Iterator[Notice]:
    """Count images that were fooled in the last half of a search: a search of twice the length would fool about as many
    again, but not more than are left. One-sided binomial test against `FALLING`, so that a few images of a small sample
    cause no notice."""
    from scipy.special import bdtrc

    late = [one for one in _late(rows, attack).values() if one.fooled]
    left = sum(row.robust for row in rows)
    falling = min(sum(one.fooled for one in late), left)
    if falling >= MORE and float(bdtrc(falling - 1, len(rows), FALLING)) < FEW:
        parts = (
            f"by {100 * one.fooled / len(rows):.1f} points in the last half of the {one.unit} of {one.name}"
            for one in late
        )
        options = " ".join(f"--{one.unit} {longer(one.unit, one.length)}" for one in late)
        yield Notice("too-short", f"robust accuracy was still falling: {', '.join(parts)}; use {options} or more")


@dataclass(frozen=True, order=True)
class Late:
    """The images that a search fooled in the last half of its length."""

    length: int
    fooled: int  # images
    name: str
    unit: str


def _late(rows: Sequence[Row], attack: Attacker) -> dict[str, Late]:
    """For the longest search with steps, and for the longest with queries."""
    longest: dict[str, Late] = {}
    for name, search, before in _searches(attack):
        unit = "steps" if search.needs_gradient else "queries"
        fooled = sum(row.broken_by == name and 2 * (row.forwards - before) > search.evaluations for row in rows)
        late = Late(getattr(search, unit, search.evaluations), fooled, name, unit)
        longest[unit] = max(longest.get(unit, late), late)
    return longest


def _searches(attack: Attacker) -> Iterator[tuple[str, Stepwise[Any], int]]:
    """The searches that end at the first success: their names in the rows, the searches, and the forward passes of an
    image before them. These are not known after an attack with its own loop."""
    members: dict[str, Attacker] = {attack.name: attack}
    if isinstance(attack, SparseAutoAttack):
        members = dict(zip(attack.names, attack.members, strict=True))
    before = 0
    for name, member in members.items():
        if not isinstance(member, Stepwise):
            return
        if member.early_stop:
            yield name, member, before
        before += member.evaluations
