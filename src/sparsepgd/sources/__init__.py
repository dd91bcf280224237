"""Models and images by name, and both together. The modules of this package read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from sparsepgd.sources.data import Data, load_data
from sparsepgd.sources.listings import Choice, Part
from sparsepgd.sources.models import TRAINED, Source, load_model
from sparsepgd.sources.pictures import Framing, Size, framing, load_image, save_image
from sparsepgd.sources.tensors import as_tensors

__all__ = [
    "TRAINED",
    "Choice",
    "Data",
    "Framing",
    "Part",
    "Size",
    "Source",
    "as_tensors",
    "load_data",
    "load_image",
    "load_model",
    "load_pairs",
    "save_image",
]


def load_pairs(
    models: Sequence[str],
    data: str,
    n: int | None = None,
    *,
    size: Size = None,
    choose: Choice | None = None,
    fewer: bool = False,
    device: torch.device | str = "cpu",
    weights: str | Path | None = None,
    trust: bool = False,
    normalise: str | None = None,
) -> list[tuple[Source, Data]]:
    """Models by name, each with images in the form that it takes, on `device`.

    `n`, `choose`, `fewer`: as for `load_data`. The images have the input size of the model, unless `size` is given, and
    labels in its numbering of the classes. Models of the same input size share the images.
    """

    @cache
    def images(side: Size) -> Data:
        return load_data(data, n, side, choose=choose, fewer=fewer).to(device)

    sources = [load_model(name, weights=weights, trust=trust, normalise=normalise) for name in models]
    names = _told_apart([one.name for one in sources], models)
    sources = [replace(one, name=name) for one, name in zip(sources, names, strict=True)]
    sizes = [framing(one.size) if size is None else size for one in sources]  # arrays need not be of a model's size
    return [(one, images(side).for_classes(one.classes)) for one, side in zip(sources, sizes, strict=True)]


def _told_apart(names: Sequence[str], models: Sequence[str]) -> list[str]:
    """Distinguish equal names by folders: net:make of a/net.py and b/net.py become a/net:make and b/net:make."""
    folders = [Path(model).parts[:-1] for model in models]
    unique = list(names)
    for depth in range(1, 1 + max(map(len, folders), default=0)):
        unique = [
            "/".join([*folder[-depth:], name]) if unique.count(now) > 1 else now
            for name, now, folder in zip(names, unique, folders, strict=True)
        ]
    return unique
