"""Attacks on detectors: the attacks on classifiers, with a loss per image instead of a label.

There is no success at which to stop: every attack takes all its steps, and the point with the largest loss is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from sparsepgd.detection.objectives import Objective
from sparsepgd.errors import (
    InputError,
    NoGradientError,
    NonFiniteLogitsError,
    ShapeError,
    UnsupportedError,
    VerificationWarning,
    counted,
)
from sparsepgd.problem.checks import check_counts, check_images
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.oracle import Evaluation, borrowed, working_device
from sparsepgd.problem.precision import full_precision
from sparsepgd.problem.rows import each
from sparsepgd.problem.verify import measure
from sparsepgd.search.attack import Attack, Task
from sparsepgd.search.loop import Progress, Waiting
from sparsepgd.search.noise import Noise


@dataclass(frozen=True, eq=False)
class DetectionResult:
    """One row per image. The losses are measured again in full precision, and the budget is verified."""

    x_adv: Tensor  # (B, C, H, W); unchanged pixels are bit for bit those of x
    clean_loss: Tensor  # (B,)
    loss: Tensor  # (B,), of x_adv
    l0: Tensor  # (B,) int64, changed pixels
    groups: Tensor  # (B,) int64, the fewest groups of the pattern that cover them
    steps: Tensor  # (B,) int64
    forwards: Tensor  # (B,) int64
    backwards: Tensor  # (B,) int64

    def __len__(self) -> int:
        return len(self.loss)

    def __repr__(self) -> str:
        before, after = float(self.clean_loss.mean()), float(self.loss.mean())
        return f"DetectionResult({counted(len(self), 'images')}, mean loss {before:.4g} -> {after:.4g})"


@dataclass(frozen=True, eq=False)
class LossOracle:
    """An oracle that returns the losses of an objective. y holds the index of each image, which selects its target. No
    image is ever fooled."""

    model: Any
    objective: Objective
    targets: Sequence[Any]  # where the model is
    device: torch.device | None = None  # where the model is evaluated; None: where the images are

    def running(self, model: Any, scale: float) -> Self:
        """Unchanged, because the objective calls the detector itself."""
        return self

    def confirmed(self, x_adv: Tensor, y: Tensor, label: Tensor, batch_size: int) -> Tensor:
        return torch.zeros_like(y, dtype=torch.bool)

    def evaluate(
        self, x_adv: Tensor, y: Tensor, label: Tensor, gradient: bool, along: Tensor | None = None
    ) -> Evaluation:
        """Losses and, if requested, their gradients, 0 where not finite. A loss that is not a number never counts as
        progress. The objective has only one loss, so `along` changes nothing."""
        with torch.set_grad_enabled(gradient):
            point = x_adv.detach().requires_grad_(gradient)
            loss = self.losses(point, y)
            if gradient and not loss.requires_grad:
                raise NoGradientError(
                    "the losses of the objective have no gradient; remove torch.no_grad and numpy from it, or use "
                    "SparseRS, a black-box attack"
                )
            g = torch.nan_to_num(torch.autograd.grad(loss.sum(), point)[0], 0.0, 0.0, 0.0) if gradient else None
        loss = loss.detach()
        loss = torch.where(loss.isfinite(), loss, -torch.inf)
        return Evaluation(loss, torch.zeros_like(loss, dtype=torch.bool), g)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """(B,), at least in float32."""
        losses = self.objective.losses(self.model, x, [self.targets[i] for i in y.tolist()])
        if not isinstance(losses, Tensor) or losses.shape != (len(x),):
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ShapeError(
                f"the objective gave {found} for {counted(len(x), 'images')}; expected one loss per image, ({len(x)},)"
            )
        return losses if losses.dtype == torch.float64 else losses.float()

    def measured(self, x: Tensor, size: int) -> Tensor:
        """(B,) losses of all images in full precision, `size` at a time, on the device of the images."""
        rows, parts = torch.arange(len(x)), []
        with full_precision(), torch.no_grad():
            for i in range(0, len(x), size):
                parts.append(self.losses(x[i : i + size].to(self.device), rows[i : i + size]).to(x.device))
        return torch.cat(parts)


def attack_detector(
    attack: Attack,
    model: Any,
    x: Tensor,
    targets: Sequence[Any],
    objective: Objective,
    *,
    content: Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> DetectionResult:
    """Maximise the objective on every image x (B, C, H, W) in [0, 1], within the attack's budget.

    `attack`: SparsePGD, SparseRS, SAIF, ...; it takes all its steps. `targets`: what the objective needs to know about
    each image. `content`: (B, H, W) bool, False on padding, which is not changed; the `allowed` mask of the budget
    applies as well. `batch_size`: images at a time.
    """
    attack = _whole_length(attack, x, content)
    check_counts(batch_size=batch_size)
    if len(targets) != len(x):
        raise InputError(f"{counted(len(targets), 'targets')} for {counted(len(x), 'images')}; give one per image")
    device, x = working_device(model, x), x.detach()
    threat = attack.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), device)
    size = batch_size or (4 if device.type == "cpu" else 16)
    moved = [_at(device, target) for target in targets]
    oracle = LossOracle(model, objective, moved, device)
    precise = device.type == "cpu" or x.dtype != torch.float32
    engine = Engine(None if precise else "tf32", compile=False, graphs=False)
    with borrowed(model, device):
        clean = oracle.measured(x, size)
        if not bool(clean.isfinite().all()):
            row = int((~clean.isfinite()).nonzero()[0])
            raise NonFiniteLogitsError(
                f"the objective gives {float(clean[row])} on clean image {row}; check the weights, the targets and "
                "the range of the images"
            )
        number = torch.arange(len(x), device=x.device)
        waiting = Waiting.of(threat, x, number, clean_loss=clean, index=number)
        claimed = attack.search(Task(oracle, threat, waiting, Noise(seed), size, engine, progress))
        extent = measure(attack.budget, x, claimed.x_adv, quantize=attack.quantize)
        if not bool(extent.within.all()):
            bad = int((~extent.within).nonzero()[0])
            message = f"{attack.name} left the budget on image {bad}, which is returned clean; please report this"
            warnings.warn(message, VerificationWarning, stacklevel=2)
        x_adv = torch.where(extent.within[:, None, None, None], claimed.x_adv, x)
        loss, l0, groups = oracle.measured(x_adv, size), extent.l0 * extent.within, extent.groups * extent.within
    return DetectionResult(x_adv, clean, loss, l0, groups, claimed.steps, claimed.forwards, claimed.backwards)


def _whole_length(attack: Attack, x: Tensor, content: Tensor | None) -> Attack:
    """The attack without early stopping, with padding excluded from its budget."""
    if not isinstance(attack, Attack):
        raise UnsupportedError(
            f"{type(attack).__name__} needs successes, and attacks on detectors have none; use SparsePGD"
        )
    if attack.loss != type(attack).loss:
        raise UnsupportedError(
            f"loss={attack.loss!r} needs logits, which a detector does not have; omit loss, its objective is used"
        )
    check_images(x, attack.quantize)
    if not len(x):
        raise InputError("no images; give at least one")
    budget, shape = attack.budget, (len(x), *x.shape[2:])
    if content is not None:
        if content.dtype != torch.bool or content.shape != shape:
            raise ShapeError(
                f"content is {content.dtype} of shape {tuple(content.shape)}; expected a boolean tensor {shape}"
            )
        allowed = content if budget.allowed is None else content & budget.allowed.to(content.device)
        budget = replace(budget, allowed=allowed)
    return replace(attack, early_stop=False, budget=budget)


def _at(device: torch.device, target: Any) -> Any:
    """A target on the device of the model; targets without tensors are unchanged."""
    if isinstance(target, Tensor) or is_dataclass(target):
        return each(lambda tensor: tensor.to(device), target)
    if isinstance(target, dict):
        return {name: _at(device, part) for name, part in target.items()}
    return target
