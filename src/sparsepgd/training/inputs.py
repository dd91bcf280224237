"""The network and the images of a training run, given as objects or by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsepgd import atomic, zoo
from sparsepgd.errors import SourceError, UnsupportedError, counted
from sparsepgd.search.noise import signed
from sparsepgd.sources import TRAINED, Data, as_tensors, load_model
from sparsepgd.sources.data import load_parts
from sparsepgd.sources.files import Exported, Onnx
from sparsepgd.sources.tensors import is_pair
from sparsepgd.zoo.checkpoints import has_choice
from sparsepgd.zoo.registry import ARCHITECTURES

NETWORKS = f"{', '.join(ARCHITECTURES)}, torchvision:NAME (fresh weights), zoo:NAME, trained:FOLDER or FILE.py:FACTORY"
TEST = "test.npz"  # in the folder of a run


@dataclass(frozen=True, eq=False)
class Network:
    """A network, and how the zoo builds it, if it can."""

    model: nn.Module
    architecture: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Datasets:
    name: str
    train: Any
    test: Data | None = None
    apart: bool = False  # the test images were split from the data here

    @property
    def classes(self) -> int:
        """The number of classes: that of the names, or of the labels of all images."""
        if not is_pair(self.train):
            raise UnsupportedError(
                f"a network by name needs tensors, but the data are of type {type(self.train).__name__}; use a pair "
                "(x, y)"
            )
        labels = torch.as_tensor(self.train[1])
        if self.test is not None:
            labels = torch.cat([labels, self.test.y])
        names = getattr(self.test or self.train, "class_names", ())
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or max(high + 1, len(names)) < 2:
            raise SourceError(f"{self.name} has labels {low} to {high}; expected 0, 1, 2, ..., at least two classes")
        return max(high + 1, len(names))

    def save_test(self, folder: Path) -> None:
        """Write the test images to a file, because most images of the source were used for training."""
        if self.apart and self.test is not None:
            stream, names = BytesIO(), np.array(self.test.class_names, dtype=np.str_)
            np.savez_compressed(stream, x=self.test.x.numpy(), y=self.test.y.numpy(), class_names=names)
            atomic.write(folder / TEST, stream.getvalue())


def load_datasets(data: Any, test: Any, size: int | None, seed: int) -> Datasets:
    """Data given by name come with test images: a fifth of the images, if the source has no split of its own."""
    if size is not None and (not isinstance(data, str) or size < 1):
        raise UnsupportedError(f"size={size}; use at least 1, for data by name")
    tested = None if test is None else Data(*as_tensors(test), getattr(test, "class_names", ()))
    if not isinstance(data, str):
        names = data.class_names if isinstance(data, Data) else ()
        return Datasets("the data", data, _numbered(tested, names))
    train, test_part = load_parts(data, size)
    if tested is not None or test_part is not None:
        return Datasets(data, train, test_part if tested is None else _numbered(tested, train.class_names))
    x, y = train
    if len(x) < 2:
        raise SourceError(
            f"{data} holds {counted(len(x), 'images')}; it needs more, some for training and some for testing"
        )
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(signed(seed)))
    fifth = max(1, len(x) // 5)
    kept, tested_rows = order[fifth:].sort().values, order[:fifth].sort().values
    for_training, for_testing = (Data(x[rows], y[rows], train.class_names) for rows in (kept, tested_rows))
    return Datasets(data, for_training, for_testing, apart=True)


def _numbered(test: Data | None, names: tuple[str, ...]) -> Data | None:
    """Test images with labels in the numbering of the training images, and with their class names if they have none."""
    if test is None:
        return None
    test = test.for_classes(names)
    return Data(test.x, test.y, test.class_names or names)


def network(name: str, data: Datasets, seed: int) -> Network:
    """A network by name, with fresh weights drawn with the seed, or with trained weights. The name of a fresh network
    may include the activation of its blocks: preact_resnet18:relu."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(signed(seed))
        kind, _, rest = name.partition(":")
        if kind in ARCHITECTURES:
            arguments: dict[str, Any] = {"num_classes": data.classes}
            if rest and has_choice(ARCHITECTURES[kind], kind, rest):
                arguments["activation"] = rest
            return Network(ARCHITECTURES[kind](**arguments), kind, arguments)
        if kind == "torchvision":
            from torchvision import models

            if rest not in models.list_models(module=models):
                raise SourceError(f"torchvision has no classifier {rest!r}; e.g. torchvision:resnet34")
            return Network(models.get_model(rest, weights=None, num_classes=data.classes))
        model = load_model(name).model
        if isinstance(model, Exported | Onnx):  # its weights cannot be replaced by those of a file
            raise UnsupportedError(f"{name} is a program with fixed weights, which cannot be trained; use {NETWORKS}")
        if kind in ("zoo", "trained") or zoo.known(name):
            card = zoo.card(TRAINED, Path(rest)) if kind == "trained" else zoo.card(rest or name)
            return Network(model, card.architecture, card.arguments)
        return Network(model)
