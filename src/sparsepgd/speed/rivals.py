"""Other implementations beside ours, on the same model and images: from a checkout of the user's, or installed.

Nothing of theirs is in this package. Each is a function (model, x, y, seed) -> x_adv; what counts as a success is
decided by our verifier's forward pass, for all alike.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.errors import SourceError

Rival = Callable[[nn.Module, Tensor, Tensor, int], Tensor]
BATCH = 500  # images at a time, as the authors' scripts have it


def official(folder: Path, k: int, steps: int, queries: int) -> dict[str, Rival]:
    """sPGD with both gradients and Sparse-RS of the authors' checkout."""
    spgd, rs = (_module(folder / "autoattack", name) for name in ("spgd", "rs_attacks"))
    return _seeded(
        {
            "official spgd-unprojected": partial(_official_spgd, spgd.SparsePGD, k, steps, True),
            "official spgd-projected": partial(_official_spgd, spgd.SparsePGD, k, steps, False),
            "official sparse-rs": partial(_official_rs, rs.RSAttack, k, queries),
        }
    )


def sparse_rs(folder: Path, k: int, queries: int) -> dict[str, Rival]:
    """Sparse-RS of a checkout of its own authors."""
    attack = _module(folder, "rs_attacks").RSAttack
    return _seeded({"Sparse-RS, original code": partial(_official_rs, attack, k, queries)})


def installed(k: int, steps: int) -> dict[str, Rival]:
    """Attacks of other packages, those that are installed; they count features or have no budget, so that their
    result is projected to its k most changed pixels."""
    found: dict[str, Rival] = {}
    if importlib.util.find_spec("torchattacks"):
        found["torchattacks SparseFool"] = partial(_projected, k, _torchattacks)
    if importlib.util.find_spec("foolbox"):
        found["foolbox L0FMN"] = partial(_projected, k, partial(_foolbox, steps))
    if importlib.util.find_spec("art"):
        found["ART JSMA"] = partial(_projected, k, partial(_art, k))
    if importlib.util.find_spec("adv_lib"):
        found["adv-lib sigma-zero"] = partial(_projected, k, partial(_adv_lib, steps))
    return _seeded(found)


def _seeded(attacks: Mapping[str, Rival]) -> dict[str, Rival]:
    """They draw from torch's global generators: these are set to the seed, and afterwards are as they were."""

    def run(attack: Rival, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(seed)
            return attack(model, x, y, seed)

    return {name: partial(run, attack) for name, attack in attacks.items()}


def _module(folder: Path, name: str) -> Any:
    """A module of a checkout. What it imports for other ends and is not installed gets an empty stand-in."""
    file = folder / f"{name}.py"
    if not file.is_file():
        raise SourceError(f"{file} is not there; give the folder of a checkout that has it")
    spec = importlib.util.spec_from_file_location(f"_rival_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _stand_ins("skimage", "skimage.util", "utils"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _stand_ins(*names: str) -> Any:
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__dict__.update(random_noise=None, Logger=_Silent)
            missing.append(name)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


class _Silent:
    """Instead of a logger to a file."""

    def __init__(self, *_: object) -> None: ...

    def log(self, *_: object) -> None: ...


def _batches(x: Tensor, y: Tensor, attack: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return torch.cat([attack(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)])


def _official_spgd(
    cls: Any, k: int, steps: int, unprojected: bool, model: Any, x: Tensor, y: Tensor, seed: int
) -> Tensor:
    attack = cls(model, k=k, t=steps, unprojected_gradient=unprojected)
    return _batches(x, y, lambda xs, ys: attack(xs, ys, seed=seed)[0])


def _official_rs(cls: Any, k: int, queries: int, model: Any, x: Tensor, y: Tensor, seed: int) -> Tensor:
    settings = {"norm": "L0", "eps": k, "n_queries": queries, "p_init": 0.8, "loss": "ce", "verbose": False}
    attack = cls(model, **settings, seed=seed, device=x.device)
    return _batches(x, y, lambda xs, ys: attack.perturb(xs, ys)[1])


def _projected(k: int, attack: Rival, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Of all changed pixels the k that changed most."""
    found = attack(model, x, y, seed).to(x).clamp(0, 1)
    size = (found - x).abs().sum(1).flatten(1)
    mask = torch.zeros_like(size).scatter_(1, size.topk(k).indices, 1.0).view(len(x), 1, *x.shape[2:])
    return torch.where(mask > 0, found, x)


def _torchattacks(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    torchattacks = importlib.import_module("torchattacks")
    found: Tensor = torchattacks.SparseFool(model, steps=10, lam=3, overshoot=0.02)(x, y)
    return found


def _foolbox(steps: int, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    foolbox = importlib.import_module("foolbox")
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
    found: Tensor = foolbox.attacks.L0FMNAttack(steps=steps)(wrapped, x, y, epsilons=None)[0]
    return found


def _art(k: int, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    evasion = importlib.import_module("art.attacks.evasion")
    classification = importlib.import_module("art.estimators.classification")
    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    shape = tuple(x.shape[1:])
    kind = "gpu" if x.is_cuda else "cpu"
    classifier = classification.PyTorchClassifier(
        model, nn.CrossEntropyLoss(), shape, classes, clip_values=(0, 1), device_type=kind
    )
    attack = evasion.SaliencyMapMethod(classifier, theta=1.0, gamma=3 * k / x[0].numel(), verbose=False)
    return torch.from_numpy(attack.generate(x.cpu().numpy()))


def _adv_lib(steps: int, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    attacks = importlib.import_module("adv_lib.attacks")
    found: Tensor = attacks.sigma_zero(model=model, inputs=x, labels=y, num_steps=steps)
    return found
