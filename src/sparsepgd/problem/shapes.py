"""Non-image inputs: features (B, F), signals (B, C, L), and everything else without rows and columns.

Attacks take images (B, C, H, W). For patterns without geometry, other inputs are viewed as images with one row, and
reshaped when the model is called, so that all inputs share one loop and one verifier.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from sparsepgd.problem.oracle import Model
from sparsepgd.problem.verify import Result
from sparsepgd.threat import Budget

Call = TypeVar("Call", bound=Callable[..., Result | Tensor])


def of_any_shape(call: Call) -> Call:
    """Decorates the call of an attack on images, so that it takes other inputs if the pattern allows them."""

    @wraps(call)
    def attack(self: Any, model: Model, x: Tensor, *args: Any, **options: Any) -> Result | Tensor:
        if not viewable(x, self.budget):
            return call(self, model, x, *args, **options)
        found = call(self, with_own_shape(model, x), as_images(x), *args, **options)
        if isinstance(found, Tensor):
            return found.view(x.shape)
        return dataclasses.replace(found, x_adv=found.x_adv.view(x.shape))

    return cast(Call, attack)


def viewable(x: Any, budget: Budget | None) -> bool:
    """Whether x is not a batch of images, and the pattern allows that."""
    return isinstance(x, Tensor) and x.dim() not in (0, 1, 4) and budget is not None and budget.pattern.any_shape


def seen_as_images(x: Tensor, budget: Budget | None) -> Tensor:
    """x, viewed as images if it is `viewable`."""
    return as_images(x) if viewable(x, budget) else x


def as_images(x: Tensor) -> Tensor:
    """(B, F) -> (B, 1, 1, F); (B, C, L, ...) -> (B, C, 1, L * ...)."""
    if x.dim() == 2:
        return x[:, None, None]
    return x.reshape(len(x), x.shape[1], 1, x[0, 0].numel() if len(x) else 1)


def shape_of(x: Tensor) -> tuple[int, int, int]:
    """(C, H, W) of x, viewed as images if necessary."""
    images = x if x.dim() == 4 else as_images(x)
    return images.shape[1], images.shape[2], images.shape[3]


def with_own_shape(model: Model, x: Tensor) -> Model:
    """The model for images that are views of inputs with the shape of x."""
    inner, shape = model, tuple(x.shape[1:])

    def reshaped(images: Tensor) -> Any:
        return inner(images.reshape(len(images), *shape))

    return View(reshaped, model) if isinstance(model, nn.Module) else reshaped


class View(nn.Module):
    """A module from a function that calls a model. The modules of the model are borrowed with it."""

    def __init__(self, function: Model, model: object) -> None:
        super().__init__()
        self.function = function
        self.model = model  # registered by torch if it is a module

    def forward(self, x: Tensor) -> Any:
        return self.function(x)
