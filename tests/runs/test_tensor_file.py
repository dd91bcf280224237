"""A file that is written piece by piece is the file of safetensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from sparsepgd.runs.tensor_file import DTYPES, Parts, content, whole


def joined(tensors: dict[str, Parts]) -> bytes:
    return b"".join(map(bytes, content(tensors)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.uint8])
def test_the_bytes_of_a_run_are_those_that_safetensors_writes(dtype: torch.dtype) -> None:
    x, y = (100 * torch.rand(3, 1, 2, 4)).to(dtype), torch.tensor([1, 0, 2])
    tensors = {"x": x, "x_adv": 2 * x, "y": y, "allowed": x[0, 0] > 50}
    assert joined({name: whole(tensor) for name, tensor in tensors.items()}) == save(tensors)


def test_tensors_of_every_type_shape_and_layout_are_read_back() -> None:
    tensors = {str(dtype): (100 * torch.rand(3, 1, 2)).to(dtype) for dtype in DTYPES}
    tensors |= {"none": torch.zeros(0, 4), "number": torch.tensor(2.5), "turned": torch.arange(6.0).view(2, 3).T}
    found = load(joined({name: whole(tensor) for name, tensor in tensors.items()}))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


def test_parts_are_joined_and_never_two_of_them_are_in_memory() -> None:
    x, alive = torch.rand(7, 3, 2, 2), list[weakref.ref[Tensor]]()

    def parts() -> Iterator[Tensor]:
        for start in (0, 3, 6):
            assert not any(one() is not None for one in alive)
            part = x[start : start + 3].clone()
            alive.append(weakref.ref(part))
            yield part
            del part

    assert joined({"x": Parts((7, 3, 2, 2), x.dtype, parts())}) == save({"x": x})
    assert len(alive) == 3
