"""Pairs, data sets and loaders of a user become tensors, or the reason why not is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from sparsepgd import zoo
from sparsepgd.errors import SourceError
from sparsepgd.sources.tensors import as_tensors


class Stream(IterableDataset):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.pairs = list(zip(x, y, strict=True))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(self.pairs)


@pytest.mark.parametrize("kind", ["pair", "uint8", "numpy", "dataset", "list", "loader", "stream"])
def test_all_kinds_of_data_become_tensors(kind: str) -> None:
    x, y = zoo.bundled_images(7)
    levels = (x * 255).round().to(torch.uint8)
    data = {
        "pair": (x, y),
        "uint8": (levels, y),
        "numpy": (x.numpy(), y.numpy()),
        "dataset": TensorDataset(x, y),
        "list": [(image, int(label)) for image, label in zip(x, y, strict=True)],
        "loader": DataLoader(TensorDataset(x, y), batch_size=3),
        "stream": Stream(x, y),
    }[kind]
    read, labels = as_tensors(data)
    assert torch.equal(read, x)
    assert torch.equal(labels, y)


def test_a_torchvision_data_set_becomes_tensors() -> None:
    from torchvision.datasets import FakeData
    from torchvision.transforms import ToTensor

    x, y = as_tensors(FakeData(6, (3, 8, 8), 4, transform=ToTensor()))
    assert (tuple(x.shape), tuple(y.shape), x.dtype) == ((6, 3, 8, 8), (6,), torch.float32)
    with pytest.raises(SourceError, match=r"image 0 is a Image; expected a tensor.*transform=torchvision"):
        as_tensors(FakeData(6, (3, 8, 8), 4))


def test_other_data_is_refused_with_the_reason() -> None:
    x, y = zoo.bundled_images(4)
    shuffled = DataLoader(TensorDataset(x, y), shuffle=True)
    for data, message in (
        (3, "data of type int; expected a pair"),
        ({"x": x, "y": y}, "data of type dict; expected a pair"),
        ((x, y[:3]), "4 images, but 3 labels"),
        (shuffled, "the DataLoader shuffles"),
        (DataLoader(TensorDataset(x)), "the DataLoader yields a list; expected batches"),
        (TensorDataset(x), "item 0 is a tuple; expected"),
        ([(x[0], 1), (x[0, :, 1:], 1)], r"image 1 has shape \(3, 31, 32\), image 0 has"),
        ([(x[0], "cat")], "label 0 is a str; expected a class number"),
        ([(x[0], torch.ones(3))], r"label 0 is a tensor of shape \(3,\)"),
        ([], "the data holds no images"),
        ((x[:0], y[:0]), "the data holds no images"),
    ):
        with pytest.raises(SourceError, match=message):
            as_tensors(data)
