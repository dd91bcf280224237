"""Base class of single attacks: a search, whose successes are verified."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError, VerificationWarning
from sparsepgd.problem.checks import check_fields, check_index, check_shape
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.goals import LOSSES, Goal, LossName, Untargeted
from sparsepgd.problem.oracle import Evaluator, Model, Oracle, borrowed, working_device
from sparsepgd.problem.rows import select
from sparsepgd.problem.shapes import of_any_shape, shape_of
from sparsepgd.problem.verify import Result, verify
from sparsepgd.search.contract import Attacker, Call
from sparsepgd.search.loop import Images, Progress, Waiting
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Budget, Pattern, Threat

WORK = ("steps", "forwards", "backwards")  # counted for each image


@dataclass(frozen=True, eq=False)
class Task:
    """The arguments of a search, for images on which the goal is not reached without an attack."""

    oracle: Evaluator  # in full precision
    threat: Threat  # on the device of the search
    waiting: Waiting
    noise: Noise
    batch_size: int
    engine: Engine
    progress: Progress | None


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search found, not verified: one row per image of the task, on the device of the images."""

    x_adv: Tensor  # (B, C, H, W)
    loss: Tensor  # (B,)
    fooled: Tensor  # (B,) bool
    steps: Tensor  # (B,) int64, updates until success, or all of them
    forwards: Tensor  # (B,) int64
    backwards: Tensor  # (B,) int64

    @classmethod
    def none(cls, waiting: Waiting) -> SearchResult:
        zero = torch.zeros_like(waiting.y)
        return cls(waiting.x.clone(), waiting.clean_loss.clone(), zero.bool(), zero, zero, zero)


@dataclass(frozen=True, eq=False)
class Attack(Attacker):
    """Base class of single attacks. Every success that `search` reports is verified.

    The search itself uses float32. The model receives images in the dtype of x, and so does the result.
    """

    needs_gradient: ClassVar[bool] = True
    minimum_norm: ClassVar[bool] = False
    passes_per_step: ClassVar[int] = 2  # forward and backward passes for an image
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pattern,)  # supported
    points_besides: ClassVar[int] = 0  # evaluated before the first step or after the last
    quick_settings: ClassVar[dict[str, Any]] = {}  # of `quick`; if empty, it is a short run

    budget: Budget
    _: KW_ONLY
    loss: LossName = "ce"
    early_stop: bool = True  # False: take all steps and keep the largest loss (training, transfer)
    quantize: bool = False  # search on the 256-level grid, so that an 8-bit file is still adversarial

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if self.loss not in LOSSES:
            raise UnsupportedError(f"loss={self.loss!r}; use one of {', '.join(map(repr, LOSSES))}")
        if not isinstance(self.budget.pattern, self.patterns):
            known = " or ".join(pattern.__name__ for pattern in self.patterns)
            raise UnsupportedError(
                f"{type(self).__name__} supports {known}, not {self.budget.pattern!r}; use "
                "SparsePGD(budget) or SparseRS(budget), which support every pattern"
            )
        check_fields(self)

    @classmethod
    def of_length(cls, budget: Budget, steps: int, queries: int, **settings: Any) -> Self:
        """With this many steps, or this many queries for a black-box attack."""
        return cls(budget, steps if cls.needs_gradient else queries, **settings)  # type: ignore[call-arg, arg-type]

    @classmethod
    def quick(cls, budget: Budget) -> Self:
        """With settings that take seconds."""
        return cls(budget, **cls.quick_settings) if cls.quick_settings else cls.of_length(budget, 60, 300)

    @classmethod
    def at_cost(cls, budget: Budget, passes: int, **settings: Any) -> Self:
        """With about this many passes per image, in one attempt."""
        steps = max(passes // cls.passes_per_step - cls.points_besides, 1)
        return cls.of_length(budget, steps, steps, **settings)

    @abstractmethod
    def search(self, task: Task) -> SearchResult:
        """Search for adversarial images. Successes are verified afterwards."""

    @abstractmethod
    def perturb_batch(self, oracle: Oracle, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """The points (B, C, H, W) found for one batch, which is kept whole. For training."""

    def run(self, call: Call) -> Result:
        oracle = call.oracle(self.loss)
        threat = self.budget.resolve(shape_of(call.x), call.device)
        waiting = queue(threat, oracle, call.x, call.y, call.clean, call.index)
        rows = (~oracle.goal.reached(call.clean, call.y, waiting.label)).nonzero()[:, 0]
        chosen = replace(select(waiting, rows), row=torch.arange(len(rows), device=rows.device))
        engine = call.engine or Engine()
        claimed = self.search(Task(oracle, threat, chosen, Noise(call.seed), call.size, engine, call.progress))
        return self._verified(oracle, call, waiting.label, rows, claimed)

    def perturb(self, model: Model, x: Tensor, y: Tensor, *, seed: int = 0, index: Tensor | None = None) -> Tensor:
        """Adversarial images for training, for the whole batch at once; neither x nor the result is checked.

        With early_stop, images that the model misclassifies are returned unchanged.
        """
        device = working_device(model, x)
        with borrowed(model, device):
            x_adv = self.perturb_borrowed(model, x.to(device), y.to(device), Noise(seed), None, index)
        return x_adv.to(x.device)

    @of_any_shape
    def perturb_borrowed(
        self, model: Model, x: Tensor, y: Tensor, noise: Noise, goal: Goal | None = None, index: Tensor | None = None
    ) -> Tensor:
        """`perturb` with a model that is borrowed already, on the device of the images."""
        check_shape(x)
        threat = self.budget.resolve(shape_of(x), x.device)
        oracle = Oracle(model, goal or Untargeted(), self.loss, device=x.device)
        with torch.no_grad():
            clean = oracle.logits(x)
        images = Images.entering(queue(threat, oracle, x.detach(), y, clean, index), threat, self.quantize)
        x_adv = self.perturb_batch(oracle, threat, images, noise)
        if not self.early_stop:
            return x_adv
        return torch.where((clean.argmax(1) != y)[:, None, None, None], x, x_adv)

    def _verified(self, oracle: Oracle, call: Call, label: Tensor, rows: Tensor, claimed: SearchResult) -> Result:
        x, y, size = call.x, call.y, call.size
        x_adv = x.index_copy(0, rows, claimed.x_adv)
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
        work = {name: torch.zeros_like(y).index_copy(0, rows, getattr(claimed, name)) for name in WORK}
        clean_prediction = call.clean.argmax(1)
        return Result(
            x_adv=x_adv,
            fooled=fooled,
            clean_correct=clean_prediction == y,
            l0=verdict.l0 * verdict.within,
            groups=verdict.groups * verdict.within,
            **work,
            loss=claimed.loss.new_full((len(x),), math.nan).index_copy(0, rows, claimed.loss),
            clean_prediction=clean_prediction,
            prediction=torch.where(verdict.within, verdict.prediction, clean_prediction),
            broken_by=tuple(self.name if one else None for one in fooled.tolist()),
        )


def queue(threat: Threat, oracle: Oracle, x: Tensor, y: Tensor, clean: Tensor, index: Tensor | None) -> Waiting:
    """The images with what is known about them before the search. `clean`: their logits (B, classes)."""
    label = oracle.goal.labels(y, clean.shape[1])
    loss = oracle.goal.loss(clean, label, oracle.loss)
    return Waiting.of(threat, x, y, clean_loss=loss, index=check_index(index, y), label=label)


def check_budget(budget: Budget) -> None:
    if not isinstance(budget, Budget):
        raise UnsupportedError(f"budget={budget!r}; expected a Budget, e.g. Budget(k=20)")
