"""Checks of images, labels and numbers before a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field, fields
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from sparsepgd.errors import (
    DTypeError,
    LabelError,
    NonFiniteError,
    RangeError,
    ShapeError,
    UnsupportedError,
    UnusableDeviceError,
    counted,
    first_line,
)
from sparsepgd.threat import LEVELS

ROUND_OFF = 1e-6
MOST = 10**9  # steps, restarts etc.: their product is counted in int64
TOGETHER = 1024  # images of which a copy is made


def check_tensor(x: Tensor) -> None:
    """A tensor with values, whatever its shape."""
    if not isinstance(x, Tensor):
        raise DTypeError(f"images of type {type(x).__name__}; expected a torch tensor, e.g. torch.as_tensor(images)")
    if x.is_meta or x.layout != torch.strided:
        kind = "a meta tensor, which holds no values" if x.is_meta else f"a tensor of layout {x.layout}"
        how = "with values" if x.is_meta else "e.g. x.to_dense()"
        raise DTypeError(f"images in {kind}; expected a dense tensor, {how}")


def check_shape(x: Tensor) -> None:
    """Floating point (B, C, H, W). Values are not read, which would synchronise with the device."""
    check_tensor(x)
    if x.dim() != 4:
        raise ShapeError(
            f"images of shape {tuple(x.shape)}; expected (B, C, H, W), e.g. x[None] for a single image (C, H, W); "
            "for features (B, F) and signals (B, C, L) use pattern=Features() or Groups(...)"
        )
    if not x.is_floating_point():
        raise DTypeError(f"images of type {x.dtype}; expected floating point in [0, 1], e.g. x.float() / 255")


def check_images(x: Tensor, quantize: bool = False) -> None:
    """Floating point (B, C, H, W), finite, in [0, 1]; on the 8-bit grid with `quantize`."""
    check_shape(x)
    if x.numel() == 0:
        return
    x = x.detach()
    low, high = float(x.amin()), float(x.amax())  # NaN if there is one; no copy of the images is made
    if not (math.isfinite(low) and math.isfinite(high)):
        row = next(row for row, image in enumerate(x) if not bool(image.isfinite().all()))
        raise NonFiniteError(f"image {row} contains NaN or infinity; all values must be in [0, 1]")
    if low < -ROUND_OFF or high > 1 + ROUND_OFF:
        raise RangeError(
            f"images are in [{low:.4g}, {high:.4g}]; expected [0, 1]: divide by 255, or undo the normalisation "
            "and put it inside the model"
        )
    if quantize and not all(bool(_on_grid(part)) for part in torch.split(x, TOGETHER)):
        raise RangeError("quantize=True needs 8-bit images: x is not on the grid n/255; use (x * 255).round() / 255")


def _on_grid(x: Tensor) -> Tensor:
    return ((x * LEVELS).round() - x * LEVELS).abs().max() <= 1e-3


def check_labels(y: Tensor, x: Tensor) -> Tensor:
    """(B,) integers, as int64 on the device of x."""
    if not isinstance(y, Tensor):
        raise DTypeError(f"labels of type {type(y).__name__}; expected a tensor of integers, e.g. torch.tensor(labels)")
    if y.dim() != 1 or len(y) != len(x):
        raise ShapeError(
            f"labels of shape {tuple(y.shape)} for {counted(len(x), 'images')}; expected ({len(x)},) class numbers"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise DTypeError(f"labels of type {y.dtype}; expected integers, e.g. y.long()")
    return y.to(x.device, torch.int64)


def check_index(index: Tensor | None, y: Tensor) -> Tensor:
    """(B,) int64 on the device of the labels y: `index`, or 0 to B - 1 if it is None."""
    if index is None:
        return torch.arange(len(y), device=y.device)
    if not isinstance(index, Tensor) or index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        kind = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise DTypeError(f"index of type {kind}; expected a tensor of integers, e.g. torch.arange({len(y)})")
    if index.shape != y.shape:
        raise ShapeError(f"index of shape {tuple(index.shape)} for {counted(len(y), 'images')}; expected ({len(y)},)")
    return index.to(y.device, torch.int64)


def check_classes(y: Tensor, classes: int, what: str = "label") -> None:
    unknown = (y < 0) | (y >= classes)
    if bool(unknown.any()):
        row = int(unknown.nonzero()[0])
        raise LabelError(f"{what} {int(y[row])} of image {row}; the model has classes 0 to {classes - 1}")


def check_device(name: torch.device | str) -> torch.device:
    """A device that is there and that torch can use."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no values")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UnusableDeviceError(f"device {str(name)!r} cannot be used: {first_line(error)}; try cpu") from None
    return device


def check_counts(**values: int | None) -> None:
    """Every number of steps, images etc. that is not None must be an integer larger than zero, also one of NumPy."""
    for name, value in values.items():
        _check_number(name, value, Integral, 0)


def _check_number(name: str, value: float | None, kind: type, more_than: float) -> None:
    if value is None:
        return
    if kind is Integral and not isinstance(value, Integral):
        raise UnsupportedError(f"{name}={value!r}; expected an integer")
    if not (isinstance(value, Real) and value > more_than):
        raise UnsupportedError(f"{name}={value!r}; expected a number larger than {more_than}")


def count(default: int | None, least: int = 1) -> Any:
    """A field of a dataclass that holds a number of steps, images etc."""
    return field(default=default, metadata={"kind": Integral, "more_than": least - 1})


def positive(default: float | None, more_than: float = 0) -> Any:
    """A field of a dataclass that holds a number larger than `more_than`."""
    return field(default=default, metadata={"kind": Real, "more_than": more_than})


def choice(default: str | None, values: Iterable[str]) -> Any:
    """A field of a dataclass that holds one of the values, or None if that is the default."""
    return field(default=default, metadata={"values": tuple(values)})


def check_fields(values: Any) -> None:
    """Check the fields that were made by `count`, `positive` and `choice`."""
    for one in fields(values):
        value, limits = getattr(values, one.name), one.metadata
        if "values" in limits and value not in (one.default, *limits["values"]):
            raise UnsupportedError(f"{one.name}={value!r}; use one of {', '.join(map(repr, limits['values']))}")
        if "kind" in limits:
            _check_number(one.name, value, limits["kind"], limits["more_than"])
            if limits["kind"] is Integral and value is not None and value > MOST:
                raise UnsupportedError(f"{one.name}={value}; use at most {MOST}")
