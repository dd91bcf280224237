"""Input normalisation as part of a model, so that attacks work on images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.errors import ShapeError, UnsupportedError, counted
from sparsepgd.zoo.networks import CIFAR10_MEAN, CIFAR10_STD


@dataclass(frozen=True)
class Normalisation:
    """(x - mean) / std, with one value of each per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        finite = all(map(isfinite, self.mean + self.std))
        if len(self.mean) != len(self.std) or not self.mean or not finite or min(self.std) <= 0:
            raise UnsupportedError(f"{self}; expected one mean and one positive std per channel, all finite")

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float]) -> Normalisation | None:
        """None if it would change nothing."""
        same = all(one == 0 for one in mean) and all(one == 1 for one in std)
        return None if same else cls(tuple(map(float, mean)), tuple(map(float, std)))

    def __str__(self) -> str:
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        return f"mean ({mean}), std ({std})"


KNOWN = {
    "none": None,
    "imagenet": Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalisation(CIFAR10_MEAN, CIFAR10_STD),
    "cifar100": Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def parse(words: str) -> Normalisation | None:
    """One of KNOWN, or ``0.5,0.5,0.5/0.2,0.2,0.2``: means, then standard deviations."""
    if words in KNOWN:
        return KNOWN[words]
    try:
        mean, std = ([float(value) for value in part.split(",")] for part in words.split("/"))
    except ValueError:
        raise UnsupportedError(f"normalise {words!r}; use {', '.join(KNOWN)} or 0.5,0.5,0.5/0.2,0.2,0.2") from None
    return Normalisation(tuple(mean), tuple(std))


class Normalised(nn.Module):
    """A wrapper that takes images in [0, 1], around a model that takes normalised images."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, how: Normalisation) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(how.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(how.std).view(-1, 1, 1))
        self.model = model
        self.training = model.training

    def forward(self, x: Tensor) -> Any:
        if len(self.mean) > 1 and x.shape[1] != len(self.mean):  # one channel would be broadcast to three
            raise ShapeError(
                f"images of shape {tuple(x.shape)}; the model is normalised for {counted(len(self.mean), 'channels')}"
            )
        return self.model((x - self.mean) / self.std)
