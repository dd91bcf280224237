"""Attacks of other packages with our interface: selected by name, projected to the budget, verified and counted."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sparsepgd.errors import SparsePGDError, UnsupportedError
from sparsepgd.extras import needs
from sparsepgd.problem.goals import Goal, Untargeted
from sparsepgd.problem.oracle import Oracle
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.standalone import Queries, Standalone
from sparsepgd.threat import LEVELS, Features, Pattern, Pixels, Threat

Function = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (model, x, y) -> x_adv
PACKAGES = {  # prefix of the name -> module with the attacks
    "foolbox": "foolbox.attacks",
    "torchattacks": "torchattacks",
    "art": "art.attacks.evasion",
    "adv-lib": "adv_lib.attacks",
}
STEPS = ("steps", "num_steps", "max_iter")  # their names for the number of steps
# the budget as arguments of an attack, from k and the share of all values in k groups
BUDGETS: dict[str, Callable[[int, float], dict[str, Any]]] = {
    "torchattacks:JSMA": lambda k, share: {"gamma": share},
    "torchattacks:OnePixel": lambda k, share: {"pixels": k},
    "art:PixelAttack": lambda k, share: {"th": k},
    "art:SaliencyMapMethod": lambda k, share: {"theta": 1.0, "gamma": share},
    "adv-lib:fmn": lambda k, share: {"norm": 0},
    "adv-lib:pdpgd": lambda k, share: {"norm": 0},
}


def is_outside(name: str) -> bool:
    return name.partition(":")[0] in PACKAGES


def takes_steps(name: str) -> bool:
    """Whether the attack of this name has a number of steps."""
    return _steps_word(_found(name)) is not None


@dataclass(frozen=True, eq=False)
class Outside(Standalone):
    """``Outside(budget, "foolbox:L0FMNAttack")``, torchattacks:NAME, art:NAME, adv-lib:NAME, or a function
    (model, x, y) -> x_adv.

    ``settings`` are passed on unchanged. The result is clamped to the range and eps, all but the k largest changes
    are undone, and what remains is verified as for every attack. Passes are counted by a wrapper around the model;
    the attack works on whole batches, so the count of an image is the mean over its batch, and the result may depend
    on the batch. Its random numbers depend on the seed and the first image of the batch.
    """

    goals: ClassVar[tuple[type[Goal], ...]] = (Untargeted,)
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)  # of the projection
    theirs: str | Function = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None  # default: that of the attack

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.theirs, str):
            kind = _found(self.theirs)
            if self.steps is not None and _steps_word(kind) is None:
                raise UnsupportedError(f"{self.name} has no number of steps; omit steps, or use its own settings")
        elif self.steps is not None or self.settings:
            raise UnsupportedError(
                "steps and settings cannot be passed to a function; bind them with functools.partial"
            )

    @property
    def name(self) -> str:
        return self.theirs if isinstance(self.theirs, str) else getattr(self.theirs, "__name__", "outside")

    @property
    def evaluations(self) -> int:
        return self.steps or 1

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        model = Counted(oracle.classifier, images.x)
        seed = random.Random(f"{int(noise.seed)}-{int(images.index[0])}").getrandbits(32)
        with seeded(seed):
            found = self.call(model, images.x.clone(), images.y.clone())
        count = len(images.x)
        oracle.forwards.add_(math.ceil(model.forwards / count))
        oracle.backwards.add_(math.ceil(model.backwards / count))
        return self._within(threat, images, found.detach().to(images.x))

    def call(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The result of the attack, unchanged."""
        try:
            found: Any
            if isinstance(self.theirs, str):
                package, kind = self.theirs.partition(":")[0], _found(self.theirs)
                found = _run(package, kind, self._settings(kind, x), model, x, y)
            else:
                found = self.theirs(model, x, y)
        except (SparsePGDError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            message = " ".join(str(error).split()) or "no message"
            raise UnsupportedError(
                f"{self.name} failed with {type(error).__name__}: {message}; change its settings or omit this attack"
            ) from error
        if not isinstance(found, Tensor) or found.shape != x.shape:
            what = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise UnsupportedError(
                f"{self.name} returned {what} for images {tuple(x.shape)}; expected x_adv of this shape"
            )
        return found

    def _settings(self, kind: Any, x: Tensor) -> dict[str, Any]:
        """Our settings (budget, steps if given, no progress bars), overridden by those of the caller."""
        ours: dict[str, Any] = {}
        if self.name in BUDGETS:
            k, values = self.budget.k, 1 if isinstance(self.budget.pattern, Features) else x.shape[1]
            ours |= BUDGETS[self.name](k, k * values / x[0].numel())
        steps = _steps_word(kind)
        if self.steps is not None and steps is not None:
            ours[steps] = self.steps
        if "verbose" in inspect.signature(kind).parameters:
            ours["verbose"] = False
        return {**ours, **self.settings}

    def _within(self, threat: Threat, images: Images, found: Tensor) -> Tensor:
        """The k groups that changed most, within the box; x elsewhere, and where the result is not finite."""
        found = torch.where(found.isfinite(), found, images.x)
        if self.quantize:
            found = (found * LEVELS).round() / LEVELS
        found = found.clamp(images.low, images.high)
        size = threat.gather((found - images.x).abs().float())
        return torch.where(threat.top_k(size, images.usable) > 0, found, images.x)


class Counted(nn.Module):
    """A wrapper that counts passes and protects the real model from changes by other packages."""

    def __init__(self, oracle: Oracle, x: Tensor) -> None:
        super().__init__()
        self.oracle, self.dtype = oracle, x.dtype
        self.anchor = nn.Parameter(x.new_zeros(1), requires_grad=False)  # other packages infer the device from it
        self.forwards = self.backwards = 0  # images
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits = self.oracle.logits(x.to(self.dtype))
        if logits.requires_grad:
            logits.register_hook(self._count_back)  # type: ignore[no-untyped-call]
        return logits

    def _count_back(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that other packages use, and restore them (`borrowed` restores those of torch)."""
    plain, array = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(array)  # noqa: NPY002


def _found(name: str) -> Any:
    package, _, kind = name.partition(":")
    if package not in PACKAGES:
        raise UnsupportedError(f"attack {name!r}; use one of {', '.join(f'{one}:NAME' for one in PACKAGES)}")
    with needs(name):
        module = importlib.import_module(PACKAGES[package])
    names = [one for one in dir(module) if callable(getattr(module, one)) and not one.startswith("_")]
    if kind not in names:
        near = difflib.get_close_matches(kind, names, 3, 0.5) or names[:3]
        raise UnsupportedError(f"{package} has no attack {kind!r}; use its own name for it, such as {', '.join(near)}")
    return getattr(module, kind)


def _steps_word(kind: Any) -> str | None:
    return next((word for word in STEPS if word in inspect.signature(kind).parameters), None)


def _run(package: str, kind: Any, settings: dict[str, Any], model: nn.Module, x: Tensor, y: Tensor) -> Any:
    """Call the attack through the interface of its package."""
    if package == "foolbox":
        from foolbox import PyTorchModel

        epsilons = settings.pop("epsilons", None)  # None: the smallest perturbation
        wrapped = PyTorchModel(model, bounds=(0, 1), device=x.device)
        return kind(**settings)(wrapped, x, y, epsilons=epsilons)[1]
    if package == "torchattacks":
        return kind(model, **settings)(x, y)
    if package == "adv-lib":
        goal = {"targeted": False} if "targeted" in inspect.signature(kind).parameters else {}  # some require it
        return kind(model=model, inputs=x, labels=y, **{**goal, **settings})
    from art.estimators.classification import PyTorchClassifier

    with torch.no_grad():
        classes = (model.oracle.logits if isinstance(model, Counted) else model)(x[:1]).shape[1]  # uncounted
    shape, device = tuple(x.shape[1:]), "gpu" if x.is_cuda else "cpu"
    loss = nn.CrossEntropyLoss()
    classifier = PyTorchClassifier(model, loss, shape, classes, clip_values=(0, 1), device_type=device)
    # no labels: ART then uses the predictions, which are correct here (to JSMA labels would be targets)
    return torch.from_numpy(kind(classifier, **settings).generate(x.float().cpu().numpy()))
