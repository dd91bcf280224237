"""Where models and images come from, by name."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

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


def load_data(name: str, n: int | None = None) -> tuple[Tensor, Tensor]:
    """``bundled`` or ``npz:FILE`` with arrays x (N, C, H, W) or (N, H, W, C) and y (N,); the first n images."""
    if name == "bundled":
        return zoo.bundled_images(n)
    kind, _, rest = name.partition(":")
    if kind == "npz":
        return _from_npz(Path(rest), n)
    raise SourceError(f"no data {name!r}; use bundled or npz:FILE")


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
