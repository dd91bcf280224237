"""Where models and images come from, by name."""

from __future__ import annotations

import importlib.util
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from sparsepgd import zoo
from sparsepgd.errors import SourceError


@dataclass(frozen=True, eq=False)
class Source:
    """A model with what is known of it."""

    name: str
    model: nn.Module
    classes: tuple[str, ...] = ()  # names, if known
    size: int | None = None  # side of its input, if fixed

    def class_name(self, number: int) -> str:
        return self.classes[number] if number < len(self.classes) else f"class {number}"


def load_model(name: str) -> Source:
    """``zoo:NAME`` or ``FILE.py:FACTORY``, a function without arguments that returns the model."""
    kind, _, rest = name.partition(":")
    if kind == "zoo":
        return Source(rest, zoo.load(rest), zoo.CIFAR10_CLASSES, 32)
    if kind.endswith(".py"):
        return Source(Path(kind).stem + ":" + rest, _from_file(Path(kind), rest))
    raise SourceError(
        f"no model {name!r}; use zoo:NAME ({', '.join(zoo.names())}) or FILE.py:FACTORY, "
        "where FACTORY() returns a model in [0, 1] -> logits"
    )


def load_data(name: str, n: int | None = None, size: int | None = None) -> tuple[Tensor, Tensor]:
    """The first n images of ``bundled``, ``npz:FILE`` or ``folder:DIR``, and their labels.

    npz: arrays x (N, C, H, W) or (N, H, W, C) and y (N,). folder: one sub-folder of pictures a class, in the order
    of their names; the first n are taken in turn from all classes. With `size` they are cut and resized to it.
    """
    kind, _, rest = name.partition(":")
    if name == "bundled":
        return zoo.bundled_images(n)
    if kind == "npz":
        return _from_npz(Path(rest), n)
    if kind == "folder":
        return _from_folder(Path(rest), n, size)
    raise SourceError(f"no data {name!r}; use bundled, npz:FILE or folder:DIR")


def as_tensors(data: Any, n: int | None = None) -> tuple[Tensor, Tensor]:
    """The first n images and labels of a pair (x, y), a Dataset of (image, label) or a DataLoader.

    Images of type uint8 become floating point in [0, 1]; all else is left as it is.
    """
    if n is not None and n < 1:
        raise SourceError(f"n={n}; use at least 1")
    if isinstance(data, DataLoader):
        if isinstance(data.sampler, RandomSampler):
            raise SourceError("the DataLoader shuffles, so that image 0 is another one each time; use shuffle=False")
        x, y = _gather((pair for batch in data for pair in _unbatched(batch)), n)
    elif isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Tensor | np.ndarray):
        x, y = (torch.as_tensor(part)[:n] for part in data)
        if len(x) != len(y):
            raise SourceError(f"{len(x)} images, but {len(y)} labels; give one label for each image")
    elif isinstance(data, IterableDataset):
        x, y = _gather(iter(data), n)
    elif isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        x, y = _gather((data[i] for i in range(len(data) if n is None else min(n, len(data)))), n)
    else:
        raise SourceError(
            f"data of type {type(data).__name__}; expected a pair (x, y) of tensors, a Dataset of (image, label) "
            "or a DataLoader"
        )
    if n is not None and len(x) < n:
        raise SourceError(f"n={n}, but the data holds {len(x)} images; use n <= {len(x)}")
    return (x.float() / 255 if x.dtype == torch.uint8 else x), y


def load_image(name: str, size: int | None) -> tuple[Tensor, tuple[int, int]]:
    """A picture file, or ``bundled:NUMBER``, as (1, 3, H, W) on the 8-bit grid, and its own (width, height).

    With `size` the largest centred square is taken and resized, unless the picture is already of that size.
    """
    kind, _, number = name.partition(":")
    if kind == "bundled":
        x, _ = zoo.bundled_images()
        if not number.isdigit() or int(number) >= len(x):
            raise SourceError(f"no image {name!r}; use bundled:0 to bundled:{len(x) - 1}")
        return x[int(number)][None], (32, 32)
    try:
        with Image.open(name) as file:
            picture = file.convert("RGB")
    except FileNotFoundError:
        raise SourceError(f"no file {name!r}; give a picture file or bundled:NUMBER") from None
    except (UnidentifiedImageError, OSError) as error:
        raise SourceError(f"{name!r} cannot be read as a picture: {error}; use PNG, JPEG, WebP, ...") from None
    own = picture.size
    if size is not None and own != (size, size):
        side = min(own)
        left, top = (own[0] - side) // 2, (own[1] - side) // 2
        picture = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    levels = torch.from_numpy(np.array(picture))
    return levels.permute(2, 0, 1)[None].float() / 255, own


def save_image(x: Tensor, path: Path) -> None:
    """(3, H, W) on the 8-bit grid -> PNG, losslessly."""
    levels = (x * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    try:
        Image.fromarray(levels).save(path, format="PNG")
    except OSError as error:
        raise SourceError(f"{str(path)!r} cannot be written: {error}; choose another --out") from None


def _from_file(path: Path, factory: str) -> nn.Module:
    if not path.is_file():
        raise SourceError(f"no file {str(path)!r}; use FILE.py:FACTORY")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, factory, None)
    if make is None:
        known = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise SourceError(f"{path} has no function {factory!r}; it has {', '.join(known) or 'none'}")
    model = make()
    if not isinstance(model, nn.Module):
        raise SourceError(f"{path}:{factory} returned a {type(model).__name__}; expected a torch.nn.Module")
    return model


def _unbatched(batch: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise SourceError(f"the DataLoader gives a {type(batch).__name__}; expected batches (images, labels)")
    return zip(*batch, strict=True)


def _gather(pairs: Iterator[Any], n: int | None) -> tuple[Tensor, Tensor]:
    images: list[Tensor] = []
    labels: list[int] = []
    for number, pair in enumerate(islice(pairs, n)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SourceError(f"item {number} is a {type(pair).__name__}; expected (image, label)")
        image, label = pair
        if not isinstance(image, Tensor):
            raise SourceError(
                f"image {number} is a {type(image).__name__}; expected a tensor (C, H, W) in [0, 1]: give the data set "
                "transform=torchvision.transforms.ToTensor()"
            )
        if images and image.shape != images[0].shape:
            raise SourceError(
                f"image {number} is of shape {tuple(image.shape)}, image 0 of {tuple(images[0].shape)}; "
                "bring them to one size, e.g. with transforms.Resize and CenterCrop"
            )
        images.append(image)
        labels.append(_label(label, number))
    if not images:
        raise SourceError("the data holds no images")
    return torch.stack(images), torch.tensor(labels)


def _label(label: Any, number: int) -> int:
    try:
        return operator.index(label)
    except TypeError:
        kind = f"tensor of shape {tuple(label.shape)}" if isinstance(label, Tensor) else type(label).__name__
        raise SourceError(f"label {number} is a {kind}; expected a class number, 0 or larger") from None


def _from_folder(path: Path, n: int | None, size: int | None) -> tuple[Tensor, Tensor]:
    from torchvision.datasets import ImageFolder

    try:
        found = ImageFolder(str(path))
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"no images in {str(path)!r}: {reason}; use one sub-folder of pictures a class") from None
    seen: Counter[int] = Counter()
    ranked = []  # (number within the class, class, file), so that sorting takes from all classes in turn
    for file, label in found.samples:
        ranked.append((seen[label], label, file))
        seen[label] += 1
    if n is not None and not 1 <= n <= len(ranked):
        raise SourceError(f"n={n}, but {path} holds {len(ranked)} images; use 1 <= n <= {len(ranked)}")
    chosen = sorted(ranked)[:n]
    pictures = [load_image(file, size)[0] for _, _, file in chosen]
    for (_, _, file), picture in zip(chosen, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            sizes = [f"{one.shape[3]}x{one.shape[2]}" for one in (pictures[0], picture)]
            raise SourceError(
                f"{chosen[0][2]} is {sizes[0]}, {file} is {sizes[1]}; use --size to bring them to one size"
            )
    return torch.cat(pictures), torch.tensor([label for _, label, _ in chosen])


def _from_npz(path: Path, n: int | None) -> tuple[Tensor, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files)
            keys = next((pair for pair in (("x", "y"), ("x_test", "y_test")) if set(pair) <= names), None)
            if keys is None:
                raise SourceError(f"{path} holds {', '.join(sorted(names))}; expected arrays x and y")
            x, y = (torch.from_numpy(file[key][:n]) for key in keys)
    except (OSError, ValueError) as error:
        raise SourceError(f"{str(path)!r} cannot be read as npz: {error}") from None
    if x.dim() == 4 and x.shape[1] > 4 and x.shape[3] <= 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    return (x.float() / 255 if x.dtype == torch.uint8 else x), y.long()
