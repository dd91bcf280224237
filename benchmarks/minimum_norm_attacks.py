"""The attacks that minimum_norm.py compares: ours, and those of adv-lib and foolbox that count l0.

All get the same passes. A pass is one forward and one backward of an image; a forward alone is half a pass. What the
rivals have besides steps is left as their packages set it, but for what is said here.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.problem.engine import Engine

PIXELS, FEATURES = "pixels", "features"
PATTERNS: dict[str, sp.Pattern] = {PIXELS: sp.Pixels(), FEATURES: sp.Features()}

CHECKS = 2  # passes that our attacks spend on the clean images and on the verification of the result,
CONFIRMED = 14  # and, SparseAnneal, on successes, each of which is confirmed by one more forward: up to 28 of them
VFGA_SAMPLES = 10  # of each sign, as adv-lib has it
BB_SEARCH = 10  # forwards towards the boundary, as foolbox has it
BB_CHECKS = 2  # forwards: of the starting points, and of the images that are returned
BB_SMALL = 1e-4  # changes up to this are none to foolbox's L0 Brendel-Bethge attack
BB_REGION = 1e-3  # trust region, in units of the number of features: foolbox's, for one image


@dataclass(frozen=True, eq=False)
class Task:
    """To fool the model on images that it gets right, with as few changes as possible."""

    model: nn.Module
    x: Tensor  # (B, C, H, W)
    y: Tensor  # (B,)
    passes: int
    pattern: sp.Pattern  # Pixels() or Features()
    seed: int  # torch, numpy and random have been seeded with it


@dataclass(frozen=True)
class Attack:
    run: Callable[[Task], Tensor]  # x_adv (B, C, H, W); where nothing was found, whatever the model gets right
    about: str  # for the record
    counts: tuple[str, ...] = (PIXELS, FEATURES)


def groups(x: Tensor, pattern: sp.Pattern) -> int:
    """Of an image (B, C, H, W): its pixels, or its features."""
    return math.prod(x.shape[1 if pattern.per_channel else 2 :])


def ours(make: Callable[..., Any], task: Task, checks: int) -> Tensor:
    """Without compiled code or CUDA graphs: inside those, no wrapper of the model could count."""
    budget = sp.Budget(groups(task.x, task.pattern), task.pattern)
    attack = make(budget, steps=task.passes - checks, early_stop=False)
    engine = Engine("fp32", compile=False, graphs=False)
    result: sp.Result = attack(task.model, task.x, task.y, seed=task.seed, batch_size=len(task.x), engine=engine)
    return result.x_adv


def adv_lib(name: str, task: Task, **settings: Any) -> Tensor:
    attack = getattr(importlib.import_module("adv_lib.attacks"), name)
    x_adv: Tensor = attack(model=task.model, inputs=task.x, labels=task.y, targeted=False, **settings)
    return x_adv


def vfga(task: Task) -> Tensor:
    """An iteration changes one feature and costs one gradient and 2 * n_samples forwards."""
    iterations = 2 * task.passes // (2 + 2 * VFGA_SAMPLES)
    return adv_lib("vfga", task, max_iter=iterations, n_samples=VFGA_SAMPLES)


def foolbox_fmn(task: Task) -> Tensor:
    foolbox = importlib.import_module("foolbox")

    class L0FMN(foolbox.attacks.L0FMNAttack):
        def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
            """Theirs looks for the entry after the last where epsilon is all features: an error, fatal on a GPU."""
            return super().project(x, x0, epsilon.minimum(task.x[0].numel() - 1))

    return foolbox_run(L0FMN(steps=task.passes), task)


def brendel_bethge(task: Task) -> Tensor:
    """Begins at another image of the batch, which the model gives another class: what AttackBench does.

    Foolbox multiplies the trust region by the number of images in the batch; that is undone here. (With a larger one
    it is better at 100 passes, on small-plain, and worse at 300.) It takes changes up to BB_SMALL for none: they are
    put back where the image is still adversarial then.
    """
    steps = task.passes - (BB_SEARCH + BB_CHECKS) // 2
    attack = importlib.import_module("foolbox").attacks.L0BrendelBethgeAttack(
        steps=steps, lr=BB_REGION / len(task.x), binary_search_steps=BB_SEARCH
    )
    x_adv = foolbox_run(attack, task, starting_points=task.x[others(task.y)])
    clean = torch.where((x_adv - task.x).abs() <= BB_SMALL, task.x, x_adv)
    with torch.no_grad():
        fooled = task.model(clean).argmax(1) != task.y
    return torch.where(fooled[:, None, None, None], clean, x_adv)


def others(y: Tensor) -> Tensor:
    """(B,), for each image the next one in the batch, in a circle, with another label."""
    place = torch.arange(len(y), device=y.device)
    distance = (place - place[:, None]) % len(y)
    distance = distance.masked_fill(y == y[:, None], len(y))
    if bool((distance == len(y)).all(1).any()):
        raise ValueError("all images of a batch have one label: no starting points; use larger batches")
    return distance.argmin(1)


def foolbox_run(attack: Any, task: Task, **settings: Any) -> Tensor:
    """Not by calling it: that would ask the model once more."""
    foolbox = importlib.import_module("foolbox")
    model = foolbox.PyTorchModel(task.model, bounds=(0, 1), device=task.x.device)
    x_adv: Tensor = attack.run(model, task.x, foolbox.criteria.Misclassification(task.y), **settings)
    return x_adv


ATTACKS = {
    "sparse-anneal": Attack(lambda task: ours(sp.SparseAnneal, task, CHECKS + CONFIRMED), "sparsepgd.SparseAnneal"),
    "sigma-zero": Attack(lambda task: ours(baselines.SigmaZero, task, CHECKS), "sparsepgd.baselines.SigmaZero"),
    "adv-lib:sigma-zero": Attack(
        lambda task: adv_lib("sigma_zero", task, num_steps=task.passes), "adv_lib.attacks.sigma_zero", (FEATURES,)
    ),
    "adv-lib:fmn": Attack(
        lambda task: adv_lib("fmn", task, norm=0, steps=task.passes), "adv_lib.attacks.fmn, norm 0", (FEATURES,)
    ),
    "foolbox:fmn": Attack(foolbox_fmn, "foolbox.attacks.L0FMNAttack, epsilon below all features", (FEATURES,)),
    "adv-lib:pdpgd": Attack(
        lambda task: adv_lib("pdpgd", task, norm=0, num_steps=task.passes, proximal_operator=23),
        "adv_lib.attacks.pdpgd, norm 0, proximal operator of l2/3, as its authors advise",
        (FEATURES,),
    ),
    "adv-lib:vfga": Attack(
        vfga, f"adv_lib.attacks.vfga, {1 + VFGA_SAMPLES} passes an iteration, ends with the first success", (FEATURES,)
    ),
    "foolbox:brendel-bethge": Attack(
        brendel_bethge,
        "foolbox.attacks.L0BrendelBethgeAttack, from another image of the batch, trust region as for one image, "
        f"changes up to {BB_SMALL} put back",
        (FEATURES,),
    ),
}
