"""The shipped models and images: weights as safetensors, each with a card that says how it was trained."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from sparsepgd.errors import SourceError, UnsupportedError, first_line
from sparsepgd.validation import checked
from sparsepgd.zoo.networks import (
    digits_resnet,
    preact_resnet18,
    small_preact_resnet,
    wide_resnet28_5,
    wide_resnet28_10,
)
from sparsepgd.zoo.places import FULL_SIZE, VARIABLE, Place, package, places
from sparsepgd.zoo.resnet import resnet18, resnet34, vgg11

ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "preact_resnet18": preact_resnet18,
    "small_preact_resnet": small_preact_resnet,
    "digits_resnet": digits_resnet,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "vgg11": vgg11,
    "wide_resnet28_5": wide_resnet28_5,
    "wide_resnet28_10": wide_resnet28_10,
}
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES = "cifar10_test_500"
SHARE = {"ge": 0, "le": 1}  # limits that `validation.checked` reads
ALL_RUNS = "all runs"
LEAST = 500  # fewest images of a figure that is quoted, if any figure has as many


@dataclass(frozen=True)
class Figure:
    """The robust accuracy under one attack and budget, or of several runs together (``all runs``): an image is then
    robust only if it is robust in every run."""

    attack: str  # its name in the registry of attacks, or ALL_RUNS
    robust_accuracy: float = field(metadata=SHARE)
    images: int = field(metadata={"ge": 1})  # the first images of the data
    k: int | None = field(metadata={"ge": 1})  # None here and below: unknown, from a card of version 1
    pattern: dict[str, Any] | None = None  # as in a record: {"kind": "Patches", "height": 3, "width": 3}
    eps: float | None = field(default=None, metadata={"gt": 0, "le": 1})
    steps: int | None = field(default=None, metadata={"ge": 1})  # of its gradient attacks
    queries: int | None = field(default=None, metadata={"ge": 1})  # of its black-box attacks
    seed: int = 0
    runs: int = field(default=1, metadata={"ge": 1})  # of ALL_RUNS

    @property
    def budget(self) -> dict[str, Any]:
        return {"k": self.k, "pattern": self.pattern, "eps": self.eps}

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that distinguishes the figures of a model."""
        return tuple(str(value) for name, value in vars(self).items() if name != "robust_accuracy")

    def __str__(self) -> str:
        """``spgd-projected, k=20, 100 steps, 1000 images``."""
        kind, *sides = (self.pattern or {"kind": "Pixels"}).values()
        size = [" " + "x".join(map(str, sides))] if kind == "Patches" else []
        words = [] if kind == "Pixels" else ["".join([kind.lower(), *size])]
        words += [f"eps={self.eps:.4g}"] if self.eps is not None and self.eps < 1 else []
        words += [f"{count} {unit}" for count, unit in ((self.steps, "steps"), (self.queries, "queries")) if count]
        attack = f"all {self.runs} runs" if self.attack == ALL_RUNS else self.attack
        words += [f"{self.images} images", *([f"seed {self.seed}"] if self.seed else [])]
        return ", ".join([attack, *([] if self.k is None else [f"k={self.k}"]), *words])


@dataclass(frozen=True)
class Card:
    """A model card: how to build the model, how it was trained, what was measured."""

    name: str
    description: str
    architecture: str  # a key of ARCHITECTURES
    arguments: dict[str, Any]  # of the architecture
    parameters: int
    sha256: str  # of the file with the weights
    method: str
    command: str  # the one that trained it, or several joined by &&
    seed: int
    epochs: int  # of all stages, like the seconds; `curves` are those of the last stage
    hardware: str
    torch_version: str
    training_seconds: float
    clean_accuracy: float = field(metadata=SHARE)
    measured: str  # on which images and how
    classes: list[str] = field(default_factory=list)  # names in the order of the logits; []: unknown
    budgets: list[dict[str, Any]] = field(default_factory=list)  # trained for: k, pattern, eps; []: unknown
    robust: list[Figure] = field(default_factory=list)
    curves: dict[str, list[float | None]] = field(default_factory=dict)  # one value per epoch
    version: Literal[2] = 2  # of the format; in version 1 a sentence described each robust accuracy

    @property
    def lowest(self) -> Figure | None:
        """The lowest robust accuracy under the budget that the model was trained for, the first if there are several;
        None: not measured. Figures over fewer than 500 images count only if there are no others."""
        own = [one for one in self.robust if one.budget in self.budgets[:1] or not self.budgets]
        enough = [one for one in own if one.images >= LEAST]
        return min(enough or own, key=lambda one: one.robust_accuracy, default=None)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def of(cls, values: dict[str, Any]) -> Card:
        """The card in the content of a file, validated; a ValueError says what is wrong."""
        said = values.pop("robust_accuracy", None)
        if isinstance(said, dict) and isinstance(values.get("measured"), str):
            values["robust"] = [_figure(words, value, values["measured"]) for words, value in said.items()]
        if isinstance(values.get("robust"), list):
            values["robust"] = [checked(Figure, one) for one in values["robust"]]
        return checked(cls, values)


def _figure(words: str, value: Any, measured: str) -> dict[str, Any]:
    """A figure from a card of version 1: {"sPGD projected, k=20, 100 steps, 200 images": 0.5}."""
    parts = {unit: int(n) for n, unit in re.findall(r"(\d+) (steps|queries|images)", words)}
    first = re.search(r"the first (\d+)", measured)
    k = re.search(r"k=(\d+)", words)
    attack = words.split(",")[0].lower().replace(" ", "-")
    images = int(first[1]) if first else 1
    return {"attack": attack, "robust_accuracy": value, "images": images, "k": k and int(k[1]), **parts}


def names(folder: Traversable | None = None) -> list[str]:
    """The available models, sorted. `folder`: where weights and cards are; default: all places of `places.places`."""
    return sorted({name for place in _places(folder) for name in place.names()})


def bundled_names() -> list[str]:
    """The small models of the package, available in every installation, the least robust first."""

    def robustness(name: str) -> float:
        lowest = card(name).lowest
        return 1.0 if lowest is None else lowest.robust_accuracy

    return sorted(package().names(), key=robustness)


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
    """The card and the content of the file of weights, after checking its checksum against the card."""
    place = where(name, folder)
    about, data = _read(place, name), place.weights(name).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != about.sha256:
        pointer = data.startswith(b"version https://git-lfs")
        reason = "the file is a git LFS pointer: run git lfs pull" if pointer else "the file was changed or truncated"
        raise SourceError(
            f"{name}.safetensors has sha256 {digest[:12]}..., but its card says {about.sha256[:12]}...; "
            f"{reason}{', or' if pointer else ':'} install or download it again"
        )
    return about, data


def load(name: str, folder: Traversable | None = None) -> nn.Module:
    """A model in evaluation mode on the CPU, its weights checked against the card.

    The model is float32; weights stored as float16 are converted, which changes no value.
    """
    about, data = verified(name, folder)
    if about.architecture not in ARCHITECTURES:
        raise SourceError(
            f"{name} needs the unknown architecture {about.architecture!r}; this sparsepgd has "
            f"{', '.join(ARCHITECTURES)}"
        )
    try:
        network = ARCHITECTURES[about.architecture](**about.arguments)
        network.load_state_dict(load_tensors(data))
    except (TypeError, RuntimeError, UnsupportedError, SafetensorError) as error:
        reason = first_line(error)
        raise SourceError(
            f"the weights of {name} do not fit its card: {reason}; write both again with zoo_entry"
        ) from error
    return network.eval()


def bundled_images(n: int | None = None) -> tuple[Tensor, Tensor]:
    """The first n CIFAR-10 test images of the package (default: all 500): x (n, 3, 32, 32) in [0, 1], y (n,)."""
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
        return Card.of(json.loads(place.card(name).read_bytes()))
    except (AttributeError, TypeError, ValueError) as error:
        raise SourceError(f"{name}.json is not a valid card: {error}; write it again with zoo_entry") from None


def _has_card(place: Place, name: str) -> bool:
    """Whether the card of this model is there, with or without weights. Other JSON files do not count."""
    try:
        return Path(name).name == name and place.card(name).is_file() and _read(place, name).name == name
    except SourceError:
        return False


def _not_here(name: str, looked: Sequence[Place], everywhere: bool) -> SourceError:
    if any(_has_card(place, name) for place in looked) or (everywhere and name in FULL_SIZE):
        remedy = f"copy {name}.safetensors and {name}.json from where the model was trained"
        if everywhere:
            remedy = (
                f"full-size models are not in the wheel: copy {name}.safetensors and {name}.json from weights/ of the "
                f"repository and set {VARIABLE} to their folder"
            )
        return SourceError(f"the weights of {name!r} were not found; looked in {', '.join(map(str, looked))}; {remedy}")
    found = sorted({one for place in looked for one in place.names()})
    return SourceError(f"no model {name!r}; use one of: {', '.join(found) or '(none found)'}")
