"""The attack contract: frozen hyper-parameters, one call shape, one verified result."""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError, VerificationWarning
from sparsepgd.problem.checks import check_classes, check_images, check_index, check_labels, check_shape
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.goals import Goal, LossName, Untargeted, check_loss
from sparsepgd.problem.oracle import Model, Oracle, borrowed, check_logits, working_device
from sparsepgd.problem.result import Result
from sparsepgd.problem.rows import select
from sparsepgd.problem.shapes import of_any_shape
from sparsepgd.problem.verify import verify
from sparsepgd.search.loop import Images, Progress, Waiting
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Budget, Threat


@dataclass(frozen=True, eq=False)
class Task:
    """What an attack is to do: fool the model on images that do not meet the goal by themselves."""

    oracle: Oracle  # answers in full precision
    threat: Threat  # on the device that does the work
    waiting: Waiting
    noise: Noise
    batch_size: int
    engine: Engine
    progress: Progress | None


@dataclass(frozen=True, eq=False)
class Found:
    """What an attack claims, one row for each image of the task, on the device of the images."""

    x_adv: Tensor  # (B, C, H, W)
    loss: Tensor  # (B,)
    steps: Tensor  # (B,) int64, updates until success, or all of them
    forwards: Tensor  # (B,) int64
    backwards: Tensor  # (B,) int64


@dataclass(frozen=True, eq=False)
class Attack(ABC):
    """The base of all attacks: the checks before, the verification after. What lies between is `search`.

    The state of a search is float32; the model is given, and the result has, the dtype of x.
    """

    needs_gradient: ClassVar[bool] = True  # False: a black box, for which the model may be any callable
    minimum_norm: ClassVar[bool] = False  # True: without early_stop it looks for the fewest groups within the budget

    budget: Budget
    _: KW_ONLY
    loss: LossName = "ce"
    early_stop: bool = True  # False: the full length, the largest loss kept (training, transfer)
    quantize: bool = False  # search on the 256-level grid, so that an 8-bit file is still adversarial

    def __post_init__(self) -> None:
        check_budget(self.budget)
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
    def search(self, task: Task) -> Found:
        """Look for adversarial images; what is claimed is verified afterwards."""

    @abstractmethod
    def swept(self, oracle: Oracle, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """The points (B, C, H, W) found for a batch that stays whole, for training."""

    @of_any_shape
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
        engine: Engine | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Attack every image that does not meet the goal by itself, and verify what was found.

        `goal`: Untargeted() unless given. `logits`: picks the logits out of the model's output.
        `index`: (B,) numbers that name the images to the random numbers, 0 to B - 1 unless given, so that
        a data set can be attacked in parts with the same result. `batch_size`: images on the device at a
        time. `engine`: precision and compiled code of the search. `progress`: called with (evaluations done, at
        most, images fooled).
        The images may stay on the host while the model is on a GPU; the result is where the images are.
        Calls from several threads are run one after the other.
        """
        check_images(x, self.quantize)
        check_counts(batch_size=batch_size)
        check_kinds(goal, engine)
        y = check_labels(y, x)
        device = working_device(model, x)
        threat = self.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), device)
        if not len(x):
            return _empty(x, y)
        x = x.detach().clone() if x.is_inference() else x.detach()
        size = int(batch_size or usual_batch(x, device))
        oracle = Oracle(model, goal or Untargeted(), self.loss, logits, device)
        with borrowed(model, device):
            clean = oracle.answers(x, size)
            check_logits(clean)
            check_classes(y, clean.shape[1])
            waiting = queue(threat, oracle, x, y, clean, index)
            rows = (~oracle.goal.reached(clean, y, waiting.label)).nonzero()[:, 0]
            chosen = dataclasses.replace(select(waiting, rows), row=torch.arange(len(rows), device=x.device))
            found = self.search(Task(oracle, threat, chosen, Noise(seed), size, engine or Engine(), progress))
            return self._result(oracle, x, y, waiting.label, clean, rows, found, size)

    def perturb(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        seed: int = 0,
        goal: Goal | None = None,
        index: Tensor | None = None,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> Tensor:
        """Adversarial images for training: values unchecked, unverified, the whole batch at once.

        With early_stop, images that the model gets wrong come back as they are.
        """
        device = working_device(model, x)
        with borrowed(model, device):
            there = self.in_borrowed(model, x.to(device), y.to(device), Noise(seed), goal, index, logits)
        return there.to(x.device)

    @of_any_shape
    def in_borrowed(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        noise: Noise,
        goal: Goal | None = None,
        index: Tensor | None = None,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> Tensor:
        """`perturb` with a model that is borrowed already, where the images are."""
        check_shape(x)
        threat = self.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), x.device)
        oracle = Oracle(model, goal or Untargeted(), self.loss, logits, x.device)
        with torch.no_grad():
            clean = oracle.logits(x)
        images = Images.entering(queue(threat, oracle, x.detach(), y, clean, index), threat, self.quantize)
        x_adv = self.swept(oracle, threat, images, noise)
        if not self.early_stop:
            return x_adv
        wrong = clean.argmax(1) != y
        return torch.where(wrong[:, None, None, None], x, x_adv)

    def _result(
        self,
        oracle: Oracle,
        x: Tensor,
        y: Tensor,
        label: Tensor,
        clean: Tensor,
        rows: Tensor,
        found: Found,
        size: int,
    ) -> Result:
        x_adv = x.index_copy(0, rows, found.x_adv)
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
        fooled = verdict.reached & torch.zeros_like(verdict.reached).index_fill(0, rows, True)
        counted = (torch.zeros_like(y).index_copy(0, rows, of) for of in (found.steps, found.forwards, found.backwards))
        steps, forwards, backwards = counted
        said = clean.argmax(1)
        return Result(
            x_adv=x_adv,
            fooled=fooled,
            clean_correct=said == y,
            l0=verdict.l0 * verdict.within,
            groups=verdict.groups * verdict.within,
            steps=steps,
            forwards=forwards,
            backwards=backwards,
            loss=found.loss.new_full((len(x),), math.nan).index_copy(0, rows, found.loss),
            clean_prediction=said,
            prediction=torch.where(verdict.within, verdict.prediction, said),
            broken_by=tuple(self.name if one else None for one in fooled.tolist()),
        )


def queue(threat: Threat, oracle: Oracle, x: Tensor, y: Tensor, clean: Tensor, index: Tensor | None) -> Waiting:
    """All images with what is known of them before the search; `clean` are the logits (B, classes)."""
    place = torch.arange(len(x), device=x.device)
    label = oracle.goal.labels(y, clean.shape[1])
    loss = oracle.goal.loss(clean, label, oracle.loss)
    allowed, usable = threat.masks(len(x), x.device) or (None, None)
    return Waiting(x, y, label, loss, check_index(index, y), place, allowed, usable)


def check_budget(budget: Budget) -> None:
    if not isinstance(budget, Budget):
        raise UnsupportedError(f"budget={budget!r}; expected a Budget, e.g. Budget(k=20)")


def check_kinds(goal: Goal | None, engine: Engine | None) -> None:
    if not isinstance(goal, Goal | None):
        raise UnsupportedError(f"goal={goal!r}; expected a Goal, e.g. Untargeted() or Targeted(3)")
    if not isinstance(engine, Engine | None):
        raise UnsupportedError(f"engine={engine!r}; expected an Engine, e.g. Engine('fp32')")


def check_positive(**values: float | None) -> None:
    """Every given hyper-parameter must be larger than zero."""
    for name, value in values.items():
        if value is not None and not (isinstance(value, Real) and value > 0):
            raise UnsupportedError(f"{name}={value!r}; expected a number larger than 0")


def check_counts(**values: int | None) -> None:
    """Every given number of steps, images or the like must be an integer larger than zero; numpy's are taken too."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Integral):
            raise UnsupportedError(f"{name}={value!r}; expected an integer")
    check_positive(**values)


def usual_batch(x: Tensor, device: torch.device) -> int:
    """Images at a time: 64 of 32x32 on a CPU, 1024 on a device; fewer where they are larger."""
    most, entries = (64, 1 << 17) if device.type == "cpu" else (1024, 1 << 20)
    return max(8, min(most, entries // (x.shape[2] * x.shape[3])))


def _empty(x: Tensor, y: Tensor) -> Result:
    none, zero = torch.zeros_like(y, dtype=torch.bool), torch.zeros_like(y)
    nothing = x.new_zeros(0)
    return Result(x.clone(), none, none, zero, zero, zero, zero, zero, nothing, zero, zero, ())
