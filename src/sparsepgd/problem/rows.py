"""Dataclasses of tensors with one row per image, nested or not: some rows, several together, a copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparsepgd.kernels import kernels

D = TypeVar("D")


def select(rows: D, pick: Tensor | slice) -> D:
    return each(lambda tensor: tensor[pick], rows)


def join(*parts: D) -> D:
    return each(lambda *tensors: torch.cat(tensors), *parts)


def choose(which: Tensor, one: D, other: D) -> D:
    """The rows of `one` where `which` (B,) is True, and of `other` elsewhere."""
    return renewed(which, lambda rows: select(one, rows), other)


def renewed(which: Tensor, new: Callable[[Tensor | slice], D], old: D) -> D:
    """New rows where `which` (B,) is True, and the rows of `old` elsewhere. `new` computes the rows that it is given:
    on a CPU those that are needed, on a GPU all of them, because the host would have to wait for their number."""
    if waits_for_host(which.device):
        everywhere = new(slice(None))
        return each(lambda a, b: torch.where(which.view(-1, *[1] * (a.dim() - 1)), a, b), everywhere, old)
    pick = which.nonzero()[:, 0]
    if len(pick) in (0, len(which)):
        return new(slice(None)) if len(pick) else old
    return each(lambda a, b: a.index_copy(0, pick, b), old, new(pick))


def put(which: Tensor, new: D, into: D) -> D:
    """`into`, overwritten by the rows of `new` where `which` (B,) is True. Other rows are not copied, which for large
    images would take as long as many layers of a network."""
    for tensor, place in zip(tensors(new), tensors(into), strict=True):
        if place is not tensor:
            _put(which, tensor, place)
    return into


def _put(which: Tensor, new: Tensor, into: Tensor) -> None:
    floats = new.dtype == into.dtype == torch.float32 and into.is_contiguous()
    if not waits_for_host(which.device):
        pick = which.nonzero()[:, 0]
        into.index_copy_(0, pick, new[pick].to(into.dtype))
    elif floats and (found := kernels(into.device)) is not None:
        found.put(which, new, into)
    else:
        torch.where(which.view(-1, *[1] * (new.dim() - 1)), new.to(into.dtype), into, out=into)


def waits_for_host(device: torch.device) -> bool:
    """Whether reading a value, or a new batch size, costs much time: on every device but a CPU."""
    return device.type != "cpu"


def clone(rows: D) -> D:
    return each(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), rows)


def assign(into: Any, rows: Any) -> None:
    """Copy every tensor of `rows` into its counterpart, unless both are the same; those of one type at once."""
    alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for place, tensor in zip(tensors(into), tensors(rows), strict=True):
        if place is not tensor:
            kind = place.dtype, tensor.dtype, place.stride() == tensor.stride()
            alike.setdefault(kind, []).append((place, tensor))
    for pairs in alike.values():
        torch._foreach_copy_([place for place, _ in pairs], [tensor for _, tensor in pairs])


def tensors(rows: Any) -> Iterator[Tensor]:
    """All tensors, in a fixed order."""
    if isinstance(rows, Tensor):
        yield rows
    elif rows is not None:
        for field in dataclasses.fields(rows):
            yield from tensors(getattr(rows, field.name))


def each(operation: Callable[..., Tensor], *rows: D) -> D:
    """Apply the operation to every tensor, or to the tensors of several dataclasses in the same field."""
    first: Any = rows[0]
    if first is not None and not isinstance(first, Tensor):
        names = [field.name for field in dataclasses.fields(first)]
        changes = {name: each(operation, *(getattr(one, name) for one in rows)) for name in names}
        return dataclasses.replace(first, **changes)  # type: ignore[no-any-return]
    return first if first is None else operation(*rows)  # type: ignore[return-value]
