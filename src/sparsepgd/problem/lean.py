"""A copy of a model that is faster in half precision: its weights are cast once, and a BatchNorm in evaluation mode
runs together with the activation that follows it, in one kernel.

It runs under autocast like the model itself, with the same operations in the same order. Nothing is traced, so models
may have branches, loops and random numbers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsepgd.kernels import EAGER, kernels

CAST = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Linear)  # what autocast runs in half precision
ACTIVATIONS: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    Tensor.relu: "relu",
    F.relu_: "relu",
    torch.relu_: "relu",
    Tensor.relu_: "relu",
    F.softplus: "softplus",
    F.silu: "silu",
}
HALVES = (torch.float16, torch.bfloat16)
IN_PLACE = (F.relu_, torch.relu_, Tensor.relu_)


def lean(model: nn.Module, half: torch.dtype) -> nn.Module | None:
    """None: the copy would not be faster, or the model cannot be copied."""
    if not any(type(module) is nn.BatchNorm2d for module in model.modules()):
        return None
    try:
        twin = copy.deepcopy(model)
    except Exception:  # tensors that belong to a graph, or files, locks, sockets
        return None
    for module in twin.modules():
        if type(module) in CAST:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(half)
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d and child.running_mean is not None and not child.training:
                setattr(module, name, Affine(child, half))
    return twin


class Affine(nn.Module):
    """BatchNorm in evaluation mode: a factor and an addend for each channel."""

    factor: Tensor
    addend: Tensor

    def __init__(self, norm: nn.BatchNorm2d, half: torch.dtype) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        factor = (norm.running_var.float() + norm.eps).rsqrt()
        factor = factor if norm.weight is None else factor * norm.weight.float()
        addend = -norm.running_mean.float() * factor
        addend = addend if norm.bias is None else addend + norm.bias.float()
        self.register_buffer("factor", factor.contiguous())
        self.register_buffer("addend", addend.contiguous())
        self.halves = self._in(half)

    def forward(self, x: Tensor) -> Tensor:
        return Deferred.of(x, self)

    def activated(self, x: Tensor, name: str) -> Tensor:
        quick = x.is_cuda and x.dtype in HALVES and x.is_contiguous(memory_format=torch.channels_last)
        if quick and (found := kernels(x.device)) is not None:
            out: Tensor = found.Fused.apply(x, self.factor, self.addend, name)
            return out
        factor, addend = self.halves if x.dtype == self.halves[0].dtype else self._in(x.dtype)
        return EAGER[name](torch.addcmul(addend, x, factor))

    def _in(self, dtype: torch.dtype) -> list[Tensor]:
        return [one.to(dtype).view(-1, 1, 1) for one in (self.factor, self.addend)]


class Deferred(Tensor):
    """The output of an `Affine`, computed when it is used, so that one kernel can include an activation."""

    x: Tensor
    norm: Affine
    value: Tensor | None

    @staticmethod
    def of(x: Tensor, norm: Affine) -> Deferred:
        made: Deferred = torch.Tensor._make_wrapper_subclass(
            Deferred, x.shape, dtype=x.dtype, device=x.device, requires_grad=x.requires_grad
        )
        made.x, made.norm, made.value = x, norm, None
        return made

    def plain(self) -> Tensor:
        if self.value is None:
            self.value = self.norm.activated(self.x, "none")
        return self.value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, first = ACTIVATIONS.get(func), args[0] if args else None
        if name and isinstance(first, Deferred) and first.value is None and _as_fused(func, args, kwargs):
            out = first.norm.activated(first.x, name)
            if func in IN_PLACE or kwargs.get("inplace"):
                first.value = out
            return out
        with torch._C.DisableTorchFunctionSubclass():
            return func(*_plain(args), **_plain(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise TypeError(f"{func} does not support the deferred output of a normalisation")


def _as_fused(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the kernel has this activation. The module Softplus passes beta and threshold in each call."""
    if func is F.softplus:
        given = dict(zip(("input", "beta", "threshold"), args, strict=False)) | kwargs
        return (given.get("beta", 1), given.get("threshold", 20)) == (1, 20)
    return len(args) == 1 and not kwargs.keys() - {"inplace"}


def _plain(value: Any) -> Any:
    if isinstance(value, Deferred):
        return value.plain()
    if isinstance(value, list | tuple):
        return type(value)(_plain(one) for one in value)
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value
