"""A safetensors file that is written piece by piece, so it may be larger than memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = {  # in the order of safetensors
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64",
}  # fmt: skip
ALIGNED = 8  # bytes; the length of the header is a multiple of it


@dataclass(frozen=True, eq=False)
class Parts:
    """A tensor in consecutive parts along its first dimension, each made when it is written."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Iterable[Tensor]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def whole(tensor: Tensor) -> Parts:
    return Parts(tuple(tensor.shape), tensor.dtype, (tensor,))


def content(tensors: Mapping[str, Parts]) -> Iterator[bytes | memoryview]:
    """The bytes of the file, as safetensors orders them: the largest types first, so that all entries are aligned."""
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    ordered = sorted(tensors.items(), key=lambda item: (-ranks[item[1].dtype], item[0]))
    header, start = {}, 0
    for name, one in ordered:
        offsets = [start, start := start + one.size]
        header[name] = {"dtype": DTYPES[one.dtype], "shape": one.shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    yield len(text).to_bytes(8, "little") + text
    for _, one in ordered:
        yield from map(_bytes, one.parts)  # `map` keeps no part while the next one is made


def _bytes(part: Tensor) -> memoryview:
    return part.cpu().contiguous().flatten().view(torch.uint8).numpy().data
