"""Other implementations on the same model and images, from a checkout or an installed package.

This package contains no code of theirs. Each is a function (model, x, y, seed) -> x_adv. The forward pass of our
verifier decides on the successes of all of them.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.adapters.outside import Outside, seeded
from sparsepgd.errors import SourceError
from sparsepgd.sources import factories
from sparsepgd.threat import Budget

Rival = Callable[[nn.Module, Tensor, Tensor, int], Tensor]
BATCH = 500  # images at a time, as in the authors' scripts


def official(folder: Path, k: int, steps: int, queries: int) -> dict[str, Rival]:
    """sPGD with both gradients and Sparse-RS of the authors' checkout, and sAA: all three in sequence, each on the
    survivors of those before."""
    spgd, rs = (_module(folder / "autoattack", name) for name in ("spgd", "rs_attacks"))
    members = {
        "official spgd-unprojected": partial(_official_spgd, spgd.SparsePGD, k, steps, True),
        "official spgd-projected": partial(_official_spgd, spgd.SparsePGD, k, steps, False),
        "official sparse-rs": partial(_official_rs, rs.RSAttack, k, queries),
    }
    return _seeded({**members, "official saa": partial(_cascade, list(members.values()))})


def _cascade(attacks: Sequence[Rival], model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    x_adv = x.clone()
    for attack in attacks:
        with torch.no_grad():
            predicted = torch.cat([model(part).argmax(1) for part in torch.split(x_adv, BATCH)])
        left = (predicted == y).nonzero()[:, 0]
        if len(left):
            x_adv[left] = attack(model, x[left], y[left], seed)
    return x_adv


def sparse_rs(folder: Path, k: int, queries: int) -> dict[str, Rival]:
    """Sparse-RS of a checkout of its own authors."""
    attack = _module(folder, "rs_attacks").RSAttack
    return _seeded({"Sparse-RS, original code": partial(_official_rs, attack, k, queries)})


def installed(k: int, steps: int) -> dict[str, Rival]:
    """Attacks of other installed packages. They count features or have no budget, so their result is reduced to its k
    most changed pixels."""
    attacks: dict[str, tuple[str, str, int | None]] = {
        "torchattacks": ("torchattacks SparseFool", "torchattacks:SparseFool", 10),
        "foolbox": ("foolbox L0FMN", "foolbox:L0FMNAttack", steps),
        "art": ("ART JSMA", "art:SaliencyMapMethod", None),
        "adv_lib": ("adv-lib sigma-zero", "adv-lib:sigma_zero", steps),
    }
    available = [attack for package, attack in attacks.items() if importlib.util.find_spec(package)]
    return _seeded(
        {name: partial(_projected, Outside(Budget(k), theirs, steps=length)) for name, theirs, length in available}
    )


def _seeded(attacks: Mapping[str, Rival]) -> dict[str, Rival]:
    """Seed the global generators, from which these attacks draw; restore them afterwards."""

    def run(attack: Rival, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), seeded(seed):
            return attack(model, x, y, seed)

    return {name: partial(run, attack) for name, attack in attacks.items()}


def _module(folder: Path, name: str) -> Any:
    """A module of a checkout. Imports that are not needed here and not installed are replaced by empty modules."""
    file = folder / f"{name}.py"
    if not file.is_file():
        raise SourceError(f"no file {file}; give the folder of a checkout that contains it")
    with _stand_ins("skimage", "skimage.util", "utils"):
        return factories.load_module(file)


@contextmanager
def _stand_ins(*names: str) -> Iterator[None]:
    """Empty modules in place of those that are not installed, until the end of the block."""
    missing, silent = [], types.SimpleNamespace(log=lambda *_: None)  # instead of a logger to a file
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__dict__.update(random_noise=None, Logger=lambda *_: silent)
            missing.append(name)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


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


def _projected(attack: Outside, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """The k pixels that changed most."""
    x_adv = attack.call(model, x, y).to(x).clamp(0, 1)
    size = (x_adv - x).abs().sum(1).flatten(1)
    mask = torch.zeros_like(size).scatter_(1, size.topk(attack.budget.k).indices, 1.0).view(len(x), 1, *x.shape[2:])
    return torch.where(mask > 0, x_adv, x)
