"""Convert pairs, data sets and loaders of the user to tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from sparsepgd.errors import SourceError, counted


def is_pair(data: Any) -> bool:
    """Whether the data are images and labels as two arrays, not a list of (image, label)."""
    return isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Tensor | np.ndarray)


def as_tensors(data: Any) -> tuple[Tensor, Tensor]:
    """The images and labels of a pair (x, y), a Dataset of (image, label) or a DataLoader.

    Images of type uint8 become floating point in [0, 1]; everything else stays unchanged.
    """
    if isinstance(data, DataLoader):
        if isinstance(data.sampler, RandomSampler):
            raise SourceError("the DataLoader shuffles, so the images would differ between runs; use shuffle=False")
        x, y = _gather(pair for batch in data for pair in _unbatched(batch))
    elif is_pair(data):
        x, y = (torch.as_tensor(part) for part in data)
        if len(x) != len(y):
            raise SourceError(f"{counted(len(x), 'images')}, but {counted(len(y), 'labels')}; give one label per image")
        if not len(x):
            raise SourceError("the data holds no images")
    elif isinstance(data, IterableDataset):
        x, y = _gather(data)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        x, y = _gather(data[i] for i in range(len(data)))
    else:
        raise SourceError(
            f"data of type {type(data).__name__}; expected a pair (x, y) of tensors, a Dataset of (image, label) "
            "or a DataLoader"
        )
    return (x.float() / 255 if x.dtype == torch.uint8 else x), y


def _unbatched(batch: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise SourceError(f"the DataLoader yields a {type(batch).__name__}; expected batches (images, labels)")
    return zip(*batch, strict=True)


def _gather(pairs: Iterable[Any]) -> tuple[Tensor, Tensor]:
    images: list[Tensor] = []
    labels: list[int] = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SourceError(f"item {number} is a {type(pair).__name__}; expected (image, label)")
        image, label = pair
        if not isinstance(image, Tensor):
            raise SourceError(
                f"image {number} is a {type(image).__name__}; expected a tensor (C, H, W) in [0, 1]; give the data set "
                "transform=torchvision.transforms.ToTensor()"
            )
        if images and image.shape != images[0].shape:
            raise SourceError(
                f"image {number} has shape {tuple(image.shape)}, image 0 has {tuple(images[0].shape)}; "
                "resize them, e.g. with transforms.Resize and CenterCrop"
            )
        try:
            labels.append(operator.index(label))
        except TypeError:
            kind = f"tensor of shape {tuple(label.shape)}" if isinstance(label, Tensor) else type(label).__name__
            raise SourceError(f"label {number} is a {kind}; expected a class number, 0 or larger") from None
        images.append(image)
    if not images:
        raise SourceError("the data holds no images")
    return torch.stack(images), torch.tensor(labels)
