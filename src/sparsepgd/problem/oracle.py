"""The one place where the model is called."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import RLock
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from sparsepgd.errors import (
    DeviceError,
    DTypeError,
    LogitsShapeError,
    ModelError,
    NoGradientError,
    NonFiniteLogitsError,
    ProbabilitiesWarning,
    SparsePGDError,
    UnsupportedError,
    counted,
    first_line,
)
from sparsepgd.problem.engine import in_parts
from sparsepgd.problem.goals import Goal, LossName, Untargeted
from sparsepgd.problem.precision import full_precision

Model = Callable[[Tensor], Any]
BLACK_BOX = "SparseRS, a black-box attack (--attack sparse-rs)"
NO_GRADIENT = (
    "the logits have no gradient, which this attack needs; remove torch.no_grad, detach, integers and numpy from the "
    f"model, or use {BLACK_BOX}"
)
CASTS = {torch.float32: "float()", torch.float64: "double()"}
BORROWING = RLock()  # one call at a time: threads share the mode of a model and torch's settings and generators


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The outputs of the model for a batch of points."""

    loss: Tensor  # (B,), larger is better for the adversary
    fooled: Tensor  # (B,) bool
    gradient: Tensor | None  # (B, C, H, W), of the loss with respect to the points; 0 where it is not finite


class Evaluator(Protocol):
    """Evaluates points for a search. `Oracle` is the one for classifiers."""

    @property
    def model(self) -> Any: ...
    def evaluate(
        self, x_adv: Tensor, y: Tensor, label: Tensor, gradient: bool, along: Tensor | None = None
    ) -> Evaluation: ...
    def running(self, model: Model, scale: float) -> Self:
        """The same for the model as an engine runs it, with the loss scaled while its gradient is taken."""

    def confirmed(self, x_adv: Tensor, y: Tensor, label: Tensor, batch_size: int) -> Tensor:
        """(B,) bool, whether the points are successes in full precision."""


@dataclass(frozen=True, eq=False)
class Oracle:
    """A model, a function that extracts its logits, and the goal. Use it inside ``borrowed(model)``."""

    model: Model
    goal: Goal = field(default_factory=Untargeted)
    loss: LossName = "ce"
    extract: Callable[[Any], Tensor] | None = None  # from the model's output to logits
    device: torch.device | None = None  # of the model; None: that of the images
    scale: float = 1.0  # of the loss while its gradient is taken

    def __post_init__(self) -> None:
        if not callable(self.model) or isinstance(self.model, type):
            kind = f"the class {self.model.__name__}" if isinstance(self.model, type) else type(self.model).__name__
            raise ModelError(
                f"the model is {kind}; expected a torch.nn.Module or a function that maps images to logits"
            )
        if not callable(self.extract) and self.extract is not None:
            raise ModelError(f"logits={self.extract!r}; expected a function that maps the model's output to logits")

    def logits(self, x: Tensor) -> Tensor:
        """(B, classes), at least in float32. The model gets a copy, which it may change in place."""
        with explained(self.model, x):
            output = self.model(x.clone())
            if self.extract is not None:
                output = self.extract(output)
        if not isinstance(output, Tensor):
            raise LogitsShapeError(
                f"the model returned {_describe(output)}, not a tensor of logits; "
                "pass logits=lambda output: ... to extract them, or change the model to return them alone"
            )
        if output.dim() != 2 or len(output) != len(x) or output.shape[1] < 2:
            raise LogitsShapeError(
                f"the model returned {tuple(output.shape)} for {counted(len(x), 'images')}; expected "
                f"({len(x)}, classes), classes >= 2; pass logits=... to reshape it, or change the model"
            )
        if output.dtype == torch.bool or output.is_complex():
            raise ModelError(f"the model returned {output.dtype}; expected logits, real numbers of floating point")
        return output if output.dtype == torch.float64 else output.float()

    def evaluate(
        self, x_adv: Tensor, y: Tensor, label: Tensor, gradient: bool, along: Tensor | None = None
    ) -> Evaluation:
        """One forward pass and, with `gradient`, one backward pass to the points only. `along`: (B,), for each image
        the index in LOSSES of the loss whose gradient is taken; None: the loss that is reported."""
        if not gradient:
            with torch.no_grad():
                logits = self.logits(x_adv)
                if (found := self.goal.verdict(logits, y, label, self.loss, None, 1.0)) is not None:
                    return Evaluation(found.loss, found.fooled, None)
                return self.judged(logits, self.goal.loss(logits, label, self.loss), y, label)
        with torch.enable_grad():
            point, logits = self.traced(x_adv)
            if (found := self.goal.verdict(logits, y, label, self.loss, along, self.scale)) is not None:
                # a sum, because with grad_outputs torch would import sympy
                g = gradient_of((logits * found.slope).sum(), point)
                return Evaluation(found.loss, found.fooled, self._unscaled(g, point))
            loss = self.goal.loss(logits, label, self.loss)
            led = loss if along is None else self.goal.chosen_loss(logits, label, along)
            g = gradient_of(led.sum() * self.scale, point)
        return self.judged(logits.detach(), loss.detach(), y, label, self._unscaled(g, point))

    def _unscaled(self, g: Tensor, point: Tensor) -> Tensor:
        """The gradient without the scale, in the memory format of the points. That of a convolution differs, which
        would make every operation on both slower."""
        return torch.nan_to_num(g if self.scale == 1 else g / self.scale, 0.0, 0.0, 0.0, out=torch.empty_like(point))

    def running(self, model: Model, scale: float) -> Self:
        return replace(self, model=model, scale=scale)

    def confirmed(self, x_adv: Tensor, y: Tensor, label: Tensor, batch_size: int) -> Tensor:
        return self.goal.reached(self.answers(x_adv, batch_size), y, label)

    def traced(self, x_adv: Tensor) -> tuple[Tensor, Tensor]:
        """The points and their logits, connected by a graph for gradients. Call it with gradients enabled."""
        point = x_adv.detach().requires_grad_()
        logits = self.logits(point)
        if not logits.requires_grad:
            raise NoGradientError(NO_GRADIENT)
        return point, logits

    def judged(self, logits: Tensor, loss: Tensor, y: Tensor, label: Tensor, g: Tensor | None = None) -> Evaluation:
        """The evaluation of known logits. With non-finite logits a point is not a success, and its loss is -inf."""
        loss = torch.where(logits.isfinite().all(1), loss, -torch.inf)
        return Evaluation(loss, self.goal.reached(logits, y, label), g)

    @torch.no_grad()
    def answers(self, x: Tensor, batch_size: int) -> Tensor:
        """Logits (B, classes) of clean or final images in full precision, on the device of the images.

        Batches that do not fit into memory are halved.
        """
        with full_precision():
            parts, _ = in_parts(lambda rows: self.logits(x[rows].to(self.device)).to(x.device), len(x), batch_size)
        return torch.cat(parts)


def gradient_of(value: Tensor, point: Tensor, *, keep: bool = False) -> Tensor:
    """The gradient of a number. It has none if it depends on trainable weights of a plain function, but not on the
    point. `keep`: the graph, for another gradient."""
    try:
        (g,) = torch.autograd.grad(value, point, retain_graph=keep, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NoGradientError(
            f"the backward pass of the model fails: {type(error).__name__}: {first_line(error)}; correct the model, or "
            f"use {BLACK_BOX}"
        ) from error
    if g is None:
        raise NoGradientError(NO_GRADIENT)
    return g


def logits_of(
    model: Model, x: Tensor, batch_size: int, extract: Callable[[Any], Tensor] | None = None, device: Any = None
) -> Tensor:
    """`Oracle.answers` for a model that is not borrowed yet."""
    device = working_device(model, x) if device is None else torch.device(device)
    with borrowed(model, device):
        return Oracle(model, extract=extract, device=device).answers(x, batch_size)


def classifier(evaluator: Evaluator) -> Oracle:
    """The evaluator as an `Oracle`; an error if it has no logits."""
    if isinstance(evaluator, Oracle):
        return evaluator
    raise UnsupportedError(
        "this attack needs the logits of a classifier, and a detector has none; use SparsePGD, SparseRS, or "
        "SAIF or PGD0 with restarts=1 and targets=0"
    )


def check_logits(logits: Tensor) -> None:
    """Raise an error if logits of clean images are not finite; warn if they are probabilities."""
    finite = logits.isfinite()
    if not bool(finite.all()):
        row, number = (~finite).nonzero()[0].tolist()
        raise NonFiniteLogitsError(
            f"the logit of clean image {row} for class {number} is {float(logits[row, number])}; "
            "check the weights, the precision and the range of the images"
        )
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
        warnings.warn(
            "the model's outputs look like probabilities (non-negative, summing to 1); attacks on them are "
            "weaker than on logits: remove the final softmax",
            ProbabilitiesWarning,
            stacklevel=3,
        )


@contextmanager
def explained(model: Model, x: Tensor) -> Iterator[None]:
    """Report an error in the code of the model in one line, with the images on which it fails."""
    try:
        yield
    except (SparsePGDError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _explained(model, x, error) from error


def _explained(model: Model, x: Tensor, error: Exception) -> SparsePGDError:
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    own = next((one.dtype for one in parameters if one.is_floating_point()), x.dtype)
    if own != x.dtype:
        how, back = (CASTS.get(kind, f"to({kind})") for kind in (own, x.dtype))
        return DTypeError(
            f"the images are {x.dtype}, but the model is {own} ({first_line(error)}); use x.{how} or model.{back}"
        )
    what = f"{type(error).__name__}: {first_line(error)}"
    advice = "check the model and the shape that it expects"
    if x.requires_grad:  # without a gradient, the model took images of this shape before
        advice = f"check the model; if it has no gradient, use {BLACK_BOX}"
    return ModelError(f"the model fails on images of shape {tuple(x.shape)}: {what}; {advice}")


def working_device(model: Model, x: Tensor) -> torch.device:
    """The device of the model. The images are on the same device or on the CPU."""
    tensors = chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else iter(())
    first = next(tensors, None)
    if first is None or first.device == x.device:
        return x.device
    if x.device.type != "cpu" or first.device.type == "meta":
        raise DeviceError(f"the model is on {first.device}, the images on {x.device}; move one with .to(...)")
    return first.device


@contextmanager
def borrowed(model: Model, device: torch.device) -> Iterator[None]:
    """The model in evaluation mode with frozen parameters. Modes, flags and random state are restored afterwards.

    Only one thread borrows at a time; others wait. A GPU is the current one meanwhile, because Triton launches kernels
    there, and CUDA graphs are recorded there, wherever the tensors are.
    """
    devices = [device] if device.type == "cuda" else []
    current = torch.cuda.device(device) if devices else nullcontext()
    with BORROWING, current, torch.random.fork_rng(devices=devices), torch.inference_mode(False):
        found = model.modules() if isinstance(model, nn.Module) else ()
        modules = [module for module in found if hasattr(module, "training")]  # a frozen ScriptModule has no mode
        with _ordinary(modules):
            training = [module.training for module in modules]
            trainable = [p for module in modules for p in module.parameters(recurse=False) if p.requires_grad]
            try:
                for module in modules:
                    module.training = False
                for parameter in trainable:
                    parameter.requires_grad_(False)
                yield
            finally:
                for module, mode in zip(modules, training, strict=True):
                    module.training = mode
                for parameter in trainable:
                    parameter.requires_grad_(True)


@contextmanager
def _ordinary(modules: list[nn.Module]) -> Iterator[None]:
    """Replace parameters and buffers that were created under torch.inference_mode by copies: torch neither computes
    gradients through them nor changes their requires_grad."""
    lent = [
        (module, name, tensor)
        for module in modules
        for own in (module.named_parameters, module.named_buffers)
        for name, tensor in own(recurse=False, remove_duplicate=False)
        if tensor.is_inference()
    ]
    copies = {id(tensor): tensor.detach().clone() for _, _, tensor in lent}  # shared tensors stay shared
    try:
        for module, name, tensor in lent:
            copy = copies[id(tensor)]
            setattr(module, name, nn.Parameter(copy, False) if isinstance(tensor, nn.Parameter) else copy)
        yield
    finally:
        for module, name, tensor in lent:
            setattr(module, name, tensor)


def _describe(output: object) -> str:
    if isinstance(output, dict):
        return f"a dict with keys {list(output)}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"
