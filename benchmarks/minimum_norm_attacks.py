"""The attacks that minimum_norm.py compares: ours, and those of adv-lib and foolbox that count l0.

All get the same passes. Here a pass is one forward and one backward pass of an image; a forward pass alone is half a
pass. Apart from steps, the attacks of other packages have their default settings, with the exceptions below.
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

CHECKS = 2  # passes of our attacks for the clean images and for verifying the result
CONFIRMED = 14  # passes of SparseAnneal to confirm successes: half a pass each, up to 28 of them
VFGA_SAMPLES = 10  # of each sign, the default of adv-lib
BB_SEARCH = 10  # forward passes of the search for the boundary, the default of foolbox
BB_CHECKS = 2  # forward passes: of the starting points, and of the images that are returned
BB_SMALL = 1e-4  # foolbox's L0 Brendel-Bethge attack ignores changes up to this size
BB_REGION = 1e-3  # trust region, in units of the number of features: that of foolbox for one image


@dataclass(frozen=True, eq=False)
class Task:
    """Fool the model on correctly classified images with as few changes as possible."""

    model: nn.Module
    x: Tensor  # (B, C, H, W)
    y: Tensor  # (B,)
    passes: int
    pattern: sp.Pattern  # Pixels() or Features()
    seed: int  # torch, numpy and random have been seeded with it


@dataclass(frozen=True)
class Attack:
    run: Callable[[Task], Tensor]  # x_adv (B, C, H, W); for a failure, any image that is classified correctly
    about: str  # for the record
    counts: tuple[str, ...] = (PIXELS, FEATURES)


def groups(x: Tensor, pattern: sp.Pattern) -> int:
    """The number of pixels, or of features, of each image in (B, C, H, W)."""
    return math.prod(x.shape[1 if pattern.per_channel else 2 :])


def ours(make: Callable[..., Any], task: Task, checks: int) -> Tensor:
    """Run one of our attacks without compiled code or CUDA graphs, in which a wrapper could not count passes."""
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
    """Each iteration changes one feature and takes one gradient and 2 * n_samples forward passes."""
    iterations = 2 * task.passes // (2 + 2 * VFGA_SAMPLES)
    return adv_lib("vfga", task, max_iter=iterations, n_samples=VFGA_SAMPLES)


def foolbox_fmn(task: Task) -> Tensor:
    foolbox = importlib.import_module("foolbox")

    class L0FMN(foolbox.attacks.L0FMNAttack):
        def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
            """If epsilon is the number of features, foolbox indexes past the last entry, which is fatal on a GPU."""
            return super().project(x, x0, epsilon.minimum(task.x[0].numel() - 1))

    return foolbox_run(L0FMN(steps=task.passes), task)


def brendel_bethge(task: Task) -> Tensor:
    """Starts from another image of the batch with another label, as in AttackBench.

    Foolbox multiplies the trust region by the number of images in the batch; that is undone here. (With a larger
    region it is better at 100 passes on small-plain, and worse at 300.) It ignores changes up to BB_SMALL; they are
    undone if the image is still adversarial without them.
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
    """(B,), for each image the index of the next one in the batch, cyclically, that has another label."""
    place = torch.arange(len(y), device=y.device)
    distance = (place - place[:, None]) % len(y)
    distance = distance.masked_fill(y == y[:, None], len(y))
    if bool((distance == len(y)).all(1).any()):
        raise ValueError("all images of a batch have one label: no starting points; use larger batches")
    return distance.argmin(1)


def foolbox_run(attack: Any, task: Task, **settings: Any) -> Tensor:
    """Use `run`, because calling the attack would evaluate the model once more."""
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
