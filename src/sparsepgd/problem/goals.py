"""Goals: what counts as a success, and the loss that an attack maximises to get there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.errors import DTypeError, LabelError, ShapeError, UnsupportedError, counted
from sparsepgd.kernels import kernels
from sparsepgd.problem.checks import check_classes

LossName = Literal["ce", "margin", "dlr"]


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(logits, label, reduction="none")


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """max_{j != label} z_j - z_label: positive if another class is predicted."""
    own = logits.gather(1, label[:, None])
    others = logits.scatter(1, label[:, None], -torch.inf)
    return others.amax(1) - own.squeeze(1)


def dlr(logits: Tensor, label: Tensor) -> Tensor:
    """The margin divided by the spread of the largest logits, z_1 - (z_3 + z_4) / 2, so that their scale does not
    matter (Croce and Hein, 2020). With three classes the spread is z_1 - z_3; with two the result is the margin,
    because the ratio would be constant."""
    if logits.shape[1] == 2:
        return margin(logits, label)
    first, _, *rest = logits.topk(min(4, logits.shape[1])).values.unbind(1)
    spread = first - ((rest[0] + rest[1]) / 2 if len(rest) == 2 else rest[0])
    return margin(logits, label) / spread.clamp(min=torch.finfo(logits.dtype).tiny)


LOSSES = {"ce": cross_entropy, "margin": margin, "dlr": dlr}


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one GPU kernel computes from logits."""

    loss: Tensor  # (B,), -inf where logits are not finite
    fooled: Tensor  # (B,) bool
    slope: Tensor  # (B, classes), the gradient of the ascended loss, times the scale


class Goal(ABC):
    """What the adversary wants the model to predict."""

    @abstractmethod
    def labels(self, y: Tensor, classes: int) -> Tensor:
        """The class that the loss refers to, for each image: (B,) int64."""

    @abstractmethod
    def loss(self, logits: Tensor, label: Tensor, name: LossName) -> Tensor:
        """(B,), larger is better for the adversary."""

    @abstractmethod
    def reached(self, logits: Tensor, y: Tensor, label: Tensor) -> Tensor:
        """(B,) bool. Non-finite logits are never a success."""

    def chosen_loss(self, logits: Tensor, label: Tensor, which: Tensor) -> Tensor:
        """(B,): for each image the loss whose index in LOSSES is `which` (B,)."""
        losses = torch.stack([self.loss(logits, label, name) for name in LOSSES], 1)  # type: ignore[arg-type]
        return losses.gather(1, which[:, None]).squeeze(1)

    def verdict(
        self, logits: Tensor, y: Tensor, label: Tensor, name: LossName, along: Tensor | None, scale: float
    ) -> Verdict | None:
        """The loss `name`, whether the goal is reached, and the gradient of the loss `along` (B,), see `chosen_loss`,
        or of `name` if it is None, by one GPU kernel. Returns None if there is no kernel for it."""
        found, success = kernels(logits.device), self._success(y, label)
        if found is None or success is None or logits.dtype != torch.float32 or logits.shape[1] > found.CLASSES:
            return None
        return Verdict(*found.judged(logits, label, *success, list(LOSSES).index(name), along, scale))

    def _success(self, y: Tensor, label: Tensor) -> tuple[Tensor, bool, float] | None:
        """For the kernel: a class (B,), whether a success predicts it or another one, and the sign of the losses."""
        return None


@dataclass(frozen=True)
class Untargeted(Goal):
    """Any class but the true one."""

    def labels(self, y: Tensor, classes: int) -> Tensor:
        return y

    def loss(self, logits: Tensor, label: Tensor, name: LossName) -> Tensor:
        return LOSSES[name](logits, label)

    def reached(self, logits: Tensor, y: Tensor, label: Tensor) -> Tensor:
        return (logits.argmax(1) != y) & logits.isfinite().all(1)

    def _success(self, y: Tensor, label: Tensor) -> tuple[Tensor, bool, float]:
        return y, False, 1.0


@dataclass(frozen=True, eq=False)
class Targeted(Goal):
    """One given class: an integer for all images, or (B,).

    ``accept="any"`` uses the loss of the target, but counts every wrong prediction as a success.
    """

    target: int | Tensor
    accept: Literal["target", "any"] = "target"

    def __post_init__(self) -> None:
        if self.accept not in ("target", "any"):
            raise UnsupportedError(f"accept={self.accept!r}; use 'target' or 'any'")
        try:
            target = torch.as_tensor(self.target)
        except (TypeError, ValueError, RuntimeError):
            raise DTypeError(f"target={self.target!r}; expected an integer, or a tensor of them (B,)") from None
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise DTypeError(f"target of type {target.dtype}; expected integers, e.g. Targeted(1)")

    def labels(self, y: Tensor, classes: int) -> Tensor:
        target = torch.as_tensor(self.target, device=y.device).to(torch.int64)
        if target.dim() > 1 or (target.dim() == 1 and len(target) != len(y)):
            raise ShapeError(
                f"target of shape {tuple(target.shape)} for {counted(len(y), 'images')}; use (B,) or one integer"
            )
        target = target.expand(len(y))
        check_classes(target, classes, "target")
        if bool((target == y).any()):
            raise LabelError(
                f"the target of image {int((target == y).nonzero()[0])} is its true label; choose another class"
            )
        return target

    def loss(self, logits: Tensor, label: Tensor, name: LossName) -> Tensor:
        return -LOSSES[name](logits, label)

    def reached(self, logits: Tensor, y: Tensor, label: Tensor) -> Tensor:
        prediction = logits.argmax(1)
        hit = prediction == label if self.accept == "target" else prediction != y
        return hit & logits.isfinite().all(1)

    def _success(self, y: Tensor, label: Tensor) -> tuple[Tensor, bool, float]:
        return (label, True, -1.0) if self.accept == "target" else (y, False, -1.0)


@dataclass(frozen=True, eq=False)
class Divergence(Goal):
    """Any class but the true one, with the divergence from the clean predictions as the loss, as in TRADES.

    It holds one row per image of a batch, so it can only be used where the batch is kept whole (`perturb`).
    """

    clean: Tensor  # (B, classes), log-probabilities

    def labels(self, y: Tensor, classes: int) -> Tensor:
        if self.clean.shape != (len(y), classes):
            raise ShapeError(f"clean logits of shape {tuple(self.clean.shape)}; expected ({len(y)}, {classes})")
        return y

    def loss(self, logits: Tensor, label: Tensor, name: LossName) -> Tensor:
        return F.kl_div(logits.log_softmax(1), self.clean, reduction="none", log_target=True).sum(1)

    def reached(self, logits: Tensor, y: Tensor, label: Tensor) -> Tensor:
        return Untargeted().reached(logits, y, label)
