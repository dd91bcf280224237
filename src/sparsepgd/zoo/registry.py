"""The shipped models and images: weights as safetensors, each beside a card that tells its origin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from sparsepgd.errors import SourceError, UnsupportedError, first_line
from sparsepgd.zoo.networks import digits_resnet, preact_resnet18, small_preact_resnet, wide_resnet28_10
from sparsepgd.zoo.places import FULL_SIZE, VARIABLE, Place, package, places
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
    classes: list[str] = field(default_factory=list)  # names in the order of the logits; none: not known
    robust_accuracy: dict[str, float] = field(default_factory=dict)  # by attack
    curves: dict[str, list[float | None]] = field(default_factory=dict)  # one value an epoch

    def __post_init__(self) -> None:
        for one in fields(self):
            value, kind = getattr(self, one.name), KINDS.get(str(one.type), dict)
            if not isinstance(value, kind):
                raise TypeError(f"{one.name} is {value!r}, expected {one.type}")
        if not all(isinstance(name, str) for name in self.classes):
            raise TypeError(f"classes are {self.classes!r}, expected list[str]")
        if not 0 <= self.clean_accuracy <= 1:
            raise TypeError(f"clean_accuracy is {self.clean_accuracy}, expected a share from 0 to 1")
        for attack, value in self.robust_accuracy.items():
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise TypeError(f"robust_accuracy under {attack!r} is {value!r}, expected a share from 0 to 1")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


KINDS: dict[str, Any] = {"str": str, "int": int, "float": int | float, "list[str]": list}


def names(folder: Traversable | None = None) -> list[str]:
    """The models at hand, sorted. `folder`: where weights and cards are; left out: all places of `places.places`."""
    return sorted({name for place in _places(folder) for name in place.names()})


def bundled_names() -> list[str]:
    """The small models inside the package, which are there after every installation."""
    return package().names()


def known(name: str) -> bool:
    """Whether the zoo has such a model, even if its weights are not here."""
    return name in FULL_SIZE or any(name in place.names() or _has_card(place, name) for place in places())


def where(name: str, folder: Traversable | None = None) -> Place:
    """The first place with the weights and the card of a model, or an error that lists the known names."""
    looked = []
    for place in _places(folder):
        if name in place.names():
            return place
        looked.append(place)
    raise _not_here(name, looked, everywhere=folder is None)


def card(name: str, folder: Traversable | None = None) -> Card:
    """The card of a model; an unknown name is an error that lists the known ones."""
    return _read(where(name, folder), name)


def verified(name: str, folder: Traversable | None = None) -> tuple[Card, bytes]:
    """The card and the file of weights, which has the checksum of the card."""
    place = where(name, folder)
    about, data = _read(place, name), place.weights(name).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != about.sha256:
        pointer = data.startswith(b"version https://git-lfs")
        reason = "the file is a pointer of git LFS: git lfs pull" if pointer else "the file was changed or cut short"
        raise SourceError(
            f"{name}.safetensors has sha256 {digest[:12]}..., its card says {about.sha256[:12]}...; "
            f"{reason}{', or' if pointer else ':'} install or fetch it again"
        )
    return about, data


def load(name: str, folder: Traversable | None = None) -> nn.Module:
    """A model in evaluation mode on the CPU, its weights checked against the card.

    The model is float32; weights that are stored as float16 are raised to it, which changes none of them.
    """
    about, data = verified(name, folder)
    if about.architecture not in ARCHITECTURES:
        raise SourceError(f"{name} needs the architecture {about.architecture!r}; known are {', '.join(ARCHITECTURES)}")
    try:
        network = ARCHITECTURES[about.architecture](**about.arguments)
        network.load_state_dict(load_tensors(data))
    except (TypeError, RuntimeError, UnsupportedError, SafetensorError) as error:
        reason = first_line(error)
        raise SourceError(f"the weights of {name} do not fit its card: {reason}; make both again") from error
    return network.eval()


def bundled_images(n: int | None = None) -> tuple[Tensor, Tensor]:
    """The first n (all 500, left out) CIFAR-10 test images: x (n, 3, 32, 32) in [0, 1], y (n,)."""
    import numpy as np
    from PIL import Image

    place = package().folder
    labels = json.loads(place.joinpath(f"{IMAGES}.json").read_bytes())["labels"]
    n = len(labels) if n is None else n
    if not 1 <= n <= len(labels):
        raise SourceError(f"n={n}, but {len(labels)} images are bundled; use 1 <= n <= {len(labels)}")
    sheet = np.array(Image.open(BytesIO(place.joinpath(f"{IMAGES}.webp").read_bytes())))
    pixels = torch.from_numpy(sheet).view(-1, 32, 32, 3)[:n]  # one image below the other
    return pixels.permute(0, 3, 1, 2).contiguous().float() / 255, torch.tensor(labels[:n])


def _places(folder: Traversable | None) -> Iterable[Place]:
    return places() if folder is None else [Place("weights", folder)]


def _read(place: Place, name: str) -> Card:
    try:
        return Card(**json.loads(place.card(name).read_bytes()))
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix("Card.__init__() ")
        raise SourceError(f"{name}.json is no card: {reason}; make it again") from None


def _has_card(place: Place, name: str) -> bool:
    """Whether a card lies there, with or without weights; not everything that ends in .json is one."""
    try:
        return Path(name).name == name and place.card(name).is_file() and _read(place, name).name == name
    except SourceError:
        return False


def _not_here(name: str, looked: Sequence[Place], everywhere: bool) -> SourceError:
    if any(_has_card(place, name) for place in looked) or (everywhere and name in FULL_SIZE):
        remedy = f"take {name}.safetensors and {name}.json from where the model was made"
        if everywhere:
            remedy = (
                f"full-size models are not in the wheel: take {name}.safetensors and {name}.json from weights/ of the "
                f"repository and name their folder in {VARIABLE}"
            )
        return SourceError(f"the weights of {name!r} are not here; looked in {', '.join(map(str, looked))}; {remedy}")
    found = sorted({one for place in looked for one in place.names()})
    return SourceError(f"no model {name!r}; use one of: {', '.join(found) or '(none is here)'}")
