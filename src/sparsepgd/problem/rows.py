"""Dataclasses of tensors with one row an image, nested or not: some rows, several together, a copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

D = TypeVar("D")


def select(rows: D, pick: Tensor | slice) -> D:
    """Some rows."""
    chosen: D = each(lambda tensor: tensor[pick], rows)
    return chosen


def join(*parts: D) -> D:
    """The rows of all parts, one after the other."""
    joined: D = each(lambda *tensors: torch.cat(tensors), *parts)
    return joined


def choose(which: Tensor, one: D, other: D) -> D:
    """Row by row, those of one where `which` (B,) is True, else those of the other."""

    def chosen(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(which.view(-1, *[1] * (a.dim() - 1)), a, b)

    rows: D = each(chosen, one, other)
    return rows


def clone(rows: D) -> D:
    """The same rows in memory of their own."""
    copy: D = each(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), rows)
    return copy


def tensors(rows: Any) -> Iterator[Tensor]:
    """All tensors, in a fixed order."""
    if isinstance(rows, Tensor):
        yield rows
    elif rows is not None:
        for field in dataclasses.fields(rows):
            yield from tensors(getattr(rows, field.name))


def each(operation: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """The operation on every tensor, or on all that are in the same place."""
    if first is None:
        return None
    if isinstance(first, Tensor):
        return operation(first, *others)
    changes = {
        field.name: each(operation, *(getattr(one, field.name) for one in (first, *others)))
        for field in dataclasses.fields(first)
    }
    return dataclasses.replace(first, **changes)
