"""The attack contract: frozen hyper-parameters, one call shape, one verified result."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.errors import ShapeError, UnsupportedError, VerificationWarning
from sparsepgd.problem.checks import check_classes, check_images, check_labels
from sparsepgd.problem.goals import Goal, LossName, Untargeted, check_loss
from sparsepgd.problem.oracle import Evaluation, Model, Oracle, borrowed, check_device, check_logits
from sparsepgd.problem.result import Result
from sparsepgd.problem.verify import verify
from sparsepgd.search.loop import Best, Images, Progress, run, select, sweep
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Budget, Threat

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Attack(ABC, Generic[S]):
    """The base of all attacks that use the shared loop.

    The state of a search is float32; the model is given, and the result has, the dtype of x.
    """

    budget: Budget
    _: KW_ONLY
    loss: LossName = "ce"
    early_stop: bool = True  # False: the full length, the largest loss kept (training, transfer)
    quantize: bool = False  # search on the 256-level grid, so that an 8-bit file is still adversarial

    needs_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_loss(self.loss)

    @property
    @abstractmethod
    def name(self) -> str:
        """What tables and records call the attack."""

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """The most points that are tried for an image."""

    @abstractmethod
    def start(self, threat: Threat, images: Images, noise: Noise) -> S:
        """The state before the first evaluation."""

    @abstractmethod
    def propose(self, threat: Threat, images: Images, state: S) -> Tensor:
        """The points to evaluate, (B, C, H, W), within the budget."""

    @abstractmethod
    def update(self, threat: Threat, images: Images, state: S, seen: Evaluation, step: Tensor, noise: Noise) -> S:
        """The state after an evaluation of the proposed points."""

    def for_call(self, noise: Noise) -> Attack[S]:
        """The attack with all that is drawn once for a call decided."""
        return self

    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        seed: int = 0,
        goal: Goal | None = None,
        logits: Callable[[Any], Tensor] | None = None,
        index: Tensor | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Attack every image that does not meet the goal by itself, and verify what was found.

        `goal`: Untargeted() unless given. `logits`: picks the logits out of the model's output.
        `index`: (B,) numbers that name the images to the random numbers, 0 to B - 1 unless given, so that
        a data set can be attacked in parts with the same result. `batch_size`: images on the device at a
        time. `progress`: called with (evaluations done, at most, images fooled).
        """
        check_images(x, self.quantize)
        y = check_labels(y, x)
        threat = self.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), x.device)
        if not len(x):
            return _empty(x, y)
        check_device(model, x)
        x = x.detach().clone() if x.is_inference() else x.detach()
        size = batch_size or _batch_size(x)
        oracle = Oracle(model, goal or Untargeted(), self.loss, logits)
        with borrowed(model, x.device):
            clean = oracle.answers(x, size)
            check_logits(clean)
            check_classes(y, clean.shape[1])
            label = oracle.goal.labels(y, clean.shape[1])
            images = self._images(threat, oracle, x, y, label, clean, index)
            attacked = ~oracle.goal.reached(clean, y, label)
            noise = Noise(seed)
            rows = attacked.nonzero()[:, 0]
            chosen = select(images, rows)
            chosen.row.copy_(torch.arange(len(rows), device=x.device))
            best = run(self.for_call(noise), oracle, threat, chosen, noise, size, progress=progress)
            return self._result(oracle, x, y, label, clean, rows, best, size)

    def perturb(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        seed: int = 0,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> Tensor:
        """Adversarial images for training: untargeted, unchecked, unverified, the whole batch at once.

        No value is read by the host. With early_stop, images that the model gets wrong come back as they are.
        """
        threat = self.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), x.device)
        oracle = Oracle(model, Untargeted(), self.loss, logits)
        noise = Noise(seed)
        with borrowed(model, x.device):
            with torch.no_grad():
                clean = oracle.logits(x)
            images = self._images(threat, oracle, x.detach(), y, y, clean, None)
            best = sweep(self.for_call(noise), oracle, threat, images, noise)
            if not self.early_stop:
                return best.x_adv
            wrong = clean.argmax(1) != y
            return torch.where(wrong[:, None, None, None], x, best.x_adv)

    def _images(
        self,
        threat: Threat,
        oracle: Oracle,
        x: Tensor,
        y: Tensor,
        label: Tensor,
        clean: Tensor,
        index: Tensor | None,
    ) -> Images:
        place = torch.arange(len(x), device=x.device)
        if index is None:
            index = place
        elif index.shape != y.shape:
            raise ShapeError(f"index of shape {tuple(index.shape)} for {len(y)} images; expected ({len(y)},)")
        allowed, usable = threat.masks(len(x)) or (None, None)
        low, high = threat.box(x, allowed, self.quantize)
        loss = oracle.goal.loss(clean, label, self.loss)
        return Images(x, y, label, loss, index.to(x.device, torch.int64), place, low, high, usable)

    def _result(
        self,
        oracle: Oracle,
        x: Tensor,
        y: Tensor,
        label: Tensor,
        clean: Tensor,
        rows: Tensor,
        best: Best,
        size: int,
    ) -> Result:
        x_adv, steps = x.clone(), torch.zeros_like(y)
        loss = best.loss.new_full((len(x),), math.nan)
        x_adv[rows], loss[rows] = best.x_adv, best.loss
        verdict = verify(oracle, self.budget, x, x_adv, y, label, quantize=self.quantize, batch_size=size)
        if not bool(verdict.within.all()):
            bad = int((~verdict.within).nonzero()[0])
            warnings.warn(
                f"{type(self).__name__} left the budget on image {bad}; it is reported as not fooled and returned "
                "clean; please report this",
                VerificationWarning,
                stacklevel=3,
            )
            x_adv = torch.where(verdict.within[:, None, None, None], x_adv, x)
        claimed = torch.zeros_like(verdict.reached)
        claimed[rows] = True
        fooled = verdict.reached & claimed
        tried = torch.zeros_like(y)
        last = self.evaluations - 1
        steps[rows] = best.step.clamp(max=last)
        tried[rows] = steps[rows] + 1 if self.early_stop else self.evaluations
        said = clean.argmax(1)
        return Result(
            x_adv=x_adv,
            fooled=fooled,
            clean_correct=said == y,
            l0=verdict.l0 * verdict.within,
            groups=verdict.groups * verdict.within,
            steps=steps,
            forwards=tried,
            backwards=tried if self.needs_gradient else torch.zeros_like(tried),
            loss=loss,
            clean_prediction=said,
            prediction=torch.where(verdict.within, verdict.prediction, said),
            broken_by=tuple(self.name if one else None for one in fooled.tolist()),
        )


def check_positive(**values: float | None) -> None:
    """Every given hyper-parameter must be larger than zero."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise UnsupportedError(f"{name}={value}; expected a number larger than 0")


def _batch_size(x: Tensor) -> int:
    """Images at a time: 64 of 32x32 on a CPU, 1024 on a device; fewer where they are larger."""
    most, entries = (64, 1 << 17) if x.device.type == "cpu" else (1024, 1 << 20)
    return max(8, min(most, entries // (x.shape[2] * x.shape[3])))


def _empty(x: Tensor, y: Tensor) -> Result:
    none, zero = torch.zeros_like(y, dtype=torch.bool), torch.zeros_like(y)
    nothing = x.new_zeros(0)
    return Result(x.clone(), none, none, zero, zero, zero, zero, zero, nothing, zero, zero, ())
