"""What is seen from outside while a model trains: images held out, a stronger attack on them, and an alarm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparsepgd.problem.oracle import borrowed
from sparsepgd.search import Attack, SparseAnneal, SparsePGD
from sparsepgd.training.data import Resident, as_float
from sparsepgd.training.settings import Settings
from sparsepgd.training.team import Team

FALL, RISE = 0.1, 0.02  # of the two accuracies, that make an alarm


@dataclass(frozen=True, eq=False)
class Watch:
    """Clean accuracy, and accuracy under sPGD with either gradient, or sPGD and SparseAnneal, of images held out.

    Without a look at the device until the end, and in batches of one size, so that compiled code is used again.
    """

    images: Resident
    attacks: Sequence[Attack]
    size: int
    team: Team

    def __call__(self, model: nn.Module) -> dict[str, float]:
        device = self.images.x.device
        right, numbers = torch.zeros(2, device=device), torch.arange(len(self.images), device=device)
        for first in range(self.team.rank * self.size, len(numbers), self.size * self.team.world):
            rows = (torch.arange(first, first + self.size, device=device)) % len(numbers)  # the last ones: once more
            new = torch.arange(first, first + self.size, device=device) < len(numbers)
            right += self._right(model, as_float(self.images.x[rows]), self.images.y[rows], new)
        clean, robust = (self.team.sum(right) / len(numbers)).tolist()
        return {"clean": clean, "robust": robust} if self.attacks else {"clean": clean}

    def _right(self, model: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
        with borrowed(model, x.device), torch.no_grad():
            clean = (model(x).argmax(1) == y) & new
        robust = clean
        for attack in self.attacks:
            x_adv = attack.perturb(model, x, y)
            with borrowed(model, x.device), torch.no_grad():
                robust = robust & (model(x_adv).argmax(1) == y)
        return torch.stack([clean.sum(), robust.sum()]).float()


def watch(wanted: Settings, images: Resident, size: int, team: Team) -> Watch:
    """Under the tested budget; one that does not fit the images is refused here."""
    if wanted.watch_steps:
        wanted.budget.resolve(images.shape)
    steps = max(wanted.watch_steps, 1)
    attacks: tuple[Attack, ...] = (
        SparsePGD(wanted.budget, steps, "unprojected"),
        SparsePGD(wanted.budget, steps, "projected"),
    )
    if wanted.kind.adversary == "anneal":
        attacks = attacks[0], SparseAnneal(wanted.budget, max(steps, 2))
    return Watch(images, attacks if wanted.watch_steps else (), size, team)


def catastrophic(curves: Mapping[str, Sequence[float | None]], images: int) -> str | None:
    """The alarm: accuracy under the training attack rises while accuracy under the stronger one falls.

    Compared are the last epoch and the one with the best accuracy under the stronger attack, which must differ by
    more than the chance of so few images.
    """
    pairs = enumerate(zip(curves["attacked"], curves.get("robust", ()), strict=False), 1)
    seen = [(epoch, a, r) for epoch, (a, r) in pairs if a is not None and r is not None]
    if not seen:
        return None
    best, attacked, robust = max(seen, key=lambda one: one[2])
    _, now_attacked, now_robust = seen[-1]
    if robust - now_robust < max(FALL, 1.5 / math.sqrt(images)) or now_attacked - attacked < RISE:
        return None
    return (
        f"catastrophic overfitting: since epoch {best} accuracy under the training attack rose from "
        f"{attacked:.1%} to {now_attacked:.1%}, under the stronger one on held-out images it fell from "
        f"{robust:.1%} to {now_robust:.1%}; use soft targets and noise (+sn), more steps or a lower lr"
    )
