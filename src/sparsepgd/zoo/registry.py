"""The shipped models and images: weights as safetensors, each beside a card that tells its origin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.zoo.networks import digits_resnet, preact_resnet18, small_preact_resnet, wide_resnet28_10
from sparsepgd.zoo.resnet import resnet18, resnet34, vgg11

ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "preact_resnet18": preact_resnet18,
    "small_preact_resnet": small_preact_resnet,
    "digits_resnet": digits_resnet,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "vgg11": vgg11,
    "wide_resnet28_10": wide_resnet28_10,
}
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES = "cifar10_test_500"


@dataclass(frozen=True)
class Card:
    """What is known of a model: how to build it, how it was made, what was measured."""

    name: str
    description: str
    architecture: str  # a key of ARCHITECTURES
    arguments: dict[str, Any]  # of the architecture
    parameters: int
    sha256: str  # of the file with the weights
    method: str
    command: str  # the one that trained it
    seed: int
    epochs: int
    hardware: str
    torch_version: str
    training_seconds: float
    clean_accuracy: float
    measured: str  # on which images, how
    robust_accuracy: dict[str, float] = field(default_factory=dict)  # by attack
    curves: dict[str, list[float]] = field(default_factory=dict)  # one value an epoch

    def __post_init__(self) -> None:
        for one in fields(self):
            value, kind = getattr(self, one.name), KINDS.get(str(one.type), dict)
            if not isinstance(value, kind):
                raise TypeError(f"{one.name} is {value!r}, expected {one.type}")
        if not 0 <= self.clean_accuracy <= 1:
            raise TypeError(f"clean_accuracy is {self.clean_accuracy}, expected a share from 0 to 1")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


KINDS: dict[str, Any] = {"str": str, "int": int, "float": int | float}


def names(folder: Traversable | None = None) -> list[str]:
    """The models at hand, sorted. `folder`: where weights and cards are, left out: inside the package."""
    place = _place(folder)
    weights = [file.name for file in place.iterdir() if file.name.endswith(".safetensors")]
    stems = [name.removesuffix(".safetensors") for name in weights]
    return sorted(stem for stem in stems if place.joinpath(f"{stem}.json").is_file())


def card(name: str, folder: Traversable | None = None) -> Card:
    """The card of a model; an unknown name is an error that lists the known ones."""
    known = names(folder)
    if name not in known:
        raise SourceError(f"no model {name!r}; use one of: {', '.join(known) or '(none is here)'}")
    try:
        return Card(**json.loads(_place(folder).joinpath(f"{name}.json").read_bytes()))
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix("Card.__init__() ")
        raise SourceError(f"{name}.json is no card: {reason}; make it again") from None


def load(name: str, folder: Traversable | None = None) -> nn.Module:
    """A model in evaluation mode on the CPU, its weights checked against the card."""
    about = card(name, folder)
    data = _place(folder).joinpath(f"{name}.safetensors").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != about.sha256:
        raise SourceError(
            f"{name}.safetensors has sha256 {digest[:12]}..., its card says {about.sha256[:12]}...; "
            "the file was changed or cut short: install or fetch it again"
        )
    if about.architecture not in ARCHITECTURES:
        raise SourceError(f"{name} needs the architecture {about.architecture!r}; known are {', '.join(ARCHITECTURES)}")
    try:
        network = ARCHITECTURES[about.architecture](**about.arguments)
        network.load_state_dict(load_tensors(data))
    except (TypeError, RuntimeError, UnsupportedError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SourceError(f"the weights of {name} do not fit its card: {reason}; make both again") from error
    return network.eval()


def bundled_images(n: int | None = None) -> tuple[Tensor, Tensor]:
    """The first n (all 500, left out) CIFAR-10 test images: x (n, 3, 32, 32) in [0, 1], y (n,)."""
    import numpy as np
    from PIL import Image

    labels = json.loads(_place(None).joinpath(f"{IMAGES}.json").read_bytes())["labels"]
    n = len(labels) if n is None else n
    if not 1 <= n <= len(labels):
        raise SourceError(f"n={n}, but {len(labels)} images are bundled; use 1 <= n <= {len(labels)}")
    sheet = np.array(Image.open(BytesIO(_place(None).joinpath(f"{IMAGES}.webp").read_bytes())))
    pixels = torch.from_numpy(sheet).view(-1, 32, 32, 3)[:n]  # one image below the other
    return pixels.permute(0, 3, 1, 2).contiguous().float() / 255, torch.tensor(labels[:n])


def _place(folder: Traversable | None) -> Traversable:
    return files("sparsepgd.zoo").joinpath("bundled") if folder is None else folder
