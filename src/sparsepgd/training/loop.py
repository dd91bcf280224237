"""The training loop: epochs are monitored, rolled back if the loss is not finite, saved and resumed.

The host waits for the device once per epoch. Every random number depends on the seed, the image and the epoch or the
iteration, so that a resumed run, or one with several workers, draws the same numbers.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sparsepgd.errors import SparsePGDError, TrainingWarning
from sparsepgd.problem.oracle import borrowed, explained
from sparsepgd.search import Attack, SparseAnneal, SparsePGD
from sparsepgd.threat import Threat
from sparsepgd.training.adversaries import Adversary, sparse_noise
from sparsepgd.training.data import Images, Resident, as_float, augmented, window, worker_batch, worker_order
from sparsepgd.training.settings import Settings
from sparsepgd.training.state import Plain, State
from sparsepgd.training.team import Team

Progress = Callable[[int, int, Mapping[str, float]], None]  # iterations done, in all, last value of each curve
WARM = 0.25  # share of the iterations in which the one-cycle schedule rises
FALL, RISE = 0.1, 0.02  # changes of the two accuracies that trigger the warning
SLOWER = 0.5  # factor of the learning rate after a rollback


@dataclass(frozen=True, eq=False)
class Watch:
    """Clean accuracy of held-out images, and accuracy under sPGD with both gradients, or under sPGD and SparseAnneal.

    The host does not wait for the device until the end. All batches have one size, so that compiled code is reused.
    """

    images: Resident
    attacks: Sequence[Attack]
    size: int
    team: Team

    def __call__(self, model: nn.Module) -> dict[str, float]:
        device, count = self.images.x.device, len(self.images)
        right = torch.zeros(2, device=device)
        for first in range(self.team.rank * self.size, count, self.size * self.team.world):
            numbers = torch.arange(first, first + self.size, device=device)
            rows, new = numbers % count, numbers < count  # the last batch is filled with images that do not count
            x, y = as_float(self.images.x[rows]), self.images.y[rows]
            with borrowed(model, device), torch.no_grad():
                clean = robust = (model(x).argmax(1) == y) & new
            for attack in self.attacks:
                x_adv = attack.perturb(model, x, y)
                with borrowed(model, device), torch.no_grad():
                    robust = robust & (model(x_adv).argmax(1) == y)
            right += torch.stack([clean.sum(), robust.sum()]).float()
        clean_accuracy, robust_accuracy = (self.team.sum(right) / count).tolist()
        return {"clean": clean_accuracy, "robust": robust_accuracy} if self.attacks else {"clean": clean_accuracy}


def watch(settings: Settings, images: Resident, size: int, team: Team) -> Watch:
    """The monitor under all budgets; an error if a budget does not fit the images."""
    attacks: list[Attack] = []
    for budget in settings.budgets if settings.watch_steps else ():
        budget.resolve(images.shape)
        attacks.append(SparsePGD(budget, settings.watch_steps, "unprojected"))
        if settings.kind.adversary == "anneal":
            attacks.append(SparseAnneal(budget, max(settings.watch_steps, 2)))
        else:
            attacks.append(SparsePGD(budget, settings.watch_steps, "projected"))
    return Watch(images, attacks, size, team)


def catastrophic(curves: Mapping[str, Sequence[float | None]], images: int) -> str | None:
    """A warning if accuracy under the training attack rises while accuracy under the stronger attack falls.

    It compares the last epoch with the epoch with the best accuracy under the stronger attack. The difference must be
    larger than what is likely by chance for this number of images.
    """
    pairs = enumerate(zip(curves["attacked"], curves.get("robust", ()), strict=False), 1)
    measured = [(epoch, a, r) for epoch, (a, r) in pairs if a is not None and r is not None]
    if not measured:
        return None
    best, attacked, robust = max(measured, key=lambda epoch: epoch[2])
    _, now_attacked, now_robust = measured[-1]
    if robust - now_robust < max(FALL, 1.5 / math.sqrt(images)) or now_attacked - attacked < RISE:
        return None
    return (
        f"catastrophic overfitting: since epoch {best}, accuracy under the training attack rose from "
        f"{attacked:.1%} to {now_attacked:.1%}, but under a stronger attack on held-out images it fell from "
        f"{robust:.1%} to {now_robust:.1%}; use soft targets and noise (+sn), more steps or a lower lr"
    )


@dataclass(eq=False)
class Run:
    """A training run: its state and everything that stays fixed."""

    settings: Settings
    images: Images
    rows: Tensor  # (N,), indices of the training images
    state: State
    model: nn.Module  # the network that is attacked: in its precision, compiled if requested
    objective: nn.Module  # the loss that is trained; with several workers it averages gradients
    adversary: Adversary
    threat: Threat | None  # of the training attack, if noise is added
    watch: Watch | None
    team: Team
    progress: Progress | None

    @property
    def batch(self) -> int:
        """Number of images in a batch of this worker."""
        return worker_batch(len(self.rows), self.settings, self.team)

    @property
    def batches(self) -> int:
        """Number of batches in an epoch."""
        return len(self.rows) // (self.batch * self.team.world)

    def train(self, after_epoch: Callable[[], None]) -> None:
        """Train to the end. `after_epoch` is called after every epoch."""
        state, settings = self.state, self.settings
        while state.epoch < settings.epochs:
            good, start = deepcopy(state.dump()), time.perf_counter()
            row = self.epoch()
            if not math.isfinite(row["loss"]):
                self.roll_back(good, row["loss"])
                continue
            state.epoch += 1
            if self.watch is not None and (state.epoch % settings.watch_every == 0 or state.epoch == settings.epochs):
                with state.averaged():
                    row |= self.watch(self.model)
            row["seconds"] = time.perf_counter() - start
            self.extend_curves(row)
            after_epoch()

    def epoch(self) -> dict[str, float]:
        """One pass over the images: attack, loss, step."""
        state, settings = self.state, self.settings
        order = worker_order(self.rows, settings, state.epoch, self.team)
        total = torch.zeros(2, device=state.device, dtype=torch.float64)  # loss, correct predictions under attack
        soft = state.targets if state.epoch >= settings.soft_from * settings.epochs else None
        done = state.epoch / max(settings.epochs - 1, 1)
        augment, augment_seed = settings.augment or "none", settings.seed_for("augment", state.epoch)
        noise_seed = settings.seed_for("noise", state.epoch)
        self.objective.train()
        for batch in self.images.batches(order, self.batch, settings.seed_for("loader", state.epoch)):
            x = augmented(batch, augment, augment_seed)
            changes = state.changes[settings.turn(state.iteration)] if state.changes else None
            if changes is not None:
                crop = window(batch, augment, augment_seed)
                batch = replace(batch, kept=crop.of(changes.of(batch.rows)))
            if self.threat is not None:
                x = sparse_noise(x, self.threat, 2 * self.threat.budget.k, batch.rows, noise_seed)
            x_adv = self.adversary(self.model, replace(batch, x=x), state.iteration, done)
            if changes is not None and settings.anneals(state.iteration):
                changes.put(batch.rows, crop.back(x_adv - x))
            t = None if soft is None else soft.of(batch.rows, batch.y)
            state.optimizer.zero_grad()
            with explained(state.network, x):
                loss, right, t = self.objective(x, x_adv, batch.y, t)
                torch.autograd.backward(loss)
            self.step()
            if soft is not None and t is not None:
                soft.put(batch.rows, t)
            total += torch.stack([loss.detach().double(), right.double() / self.batch])
            if self.progress is not None:
                self.progress(state.iteration, settings.epochs * self.batches, state.latest)
        if soft is not None:
            soft.share(self.team)
        for changes in state.changes:
            changes.share(self.team)
        mean, attacked = (self.team.sum(total) / self.batches / self.team.world).tolist()
        return {"loss": mean, "attacked": attacked, "lr": self.rate(state.iteration - 1)}

    def step(self) -> None:
        state, settings = self.state, self.settings
        for group in state.optimizer.param_groups:
            group["lr"] = self.rate(state.iteration)
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(state.network.parameters(), settings.clip)
        state.optimizer.step()
        if settings.ema is not None:
            state.update_average(settings.ema)
        state.iteration += 1

    def rate(self, iteration: int) -> float:
        total = self.settings.epochs * self.batches
        return self.state.lr_scale * rate(self.settings.schedule, self.settings.lr, iteration, total)

    def roll_back(self, good: Plain, loss: float) -> None:
        """Return to the start of the epoch and continue with a lower learning rate; an error after a few times."""
        state = self.state
        state.load(good)
        if not state.retries:
            raise SparsePGDError(
                f"the loss is {loss} in epoch {state.epoch + 1}, even with {state.lr_scale:g} of the learning rate; "
                f"use a lower lr (now {self.settings.lr}) or clip=1.0"
            )
        state.retries -= 1
        state.lr_scale *= SLOWER
        self.warn(
            f"the loss was {loss} in epoch {state.epoch + 1}: the epoch is repeated with {state.lr_scale:g} of the "
            "learning rate"
        )

    def extend_curves(self, row: Mapping[str, float]) -> None:
        """Append a value to each curve. A curve that was not measured in this epoch repeats its last value, or None."""
        curves, done = self.state.curves, self.state.epoch
        for name in dict.fromkeys((*row, *curves)):
            values = curves.setdefault(name, [None] * (done - 1))
            values.append(row[name] if name in row else values[-1])
        self.state.seconds += row["seconds"]
        warned = any(notice.startswith("catastrophic") for notice in self.state.notices)
        if self.settings.sparse and self.watch is not None and "robust" in row and not warned:
            alarm = catastrophic(curves, len(self.watch.images))
            if alarm is not None:
                self.warn(alarm)

    def warn(self, message: str) -> None:
        """Issue a warning and store it in the record."""
        self.state.notices.append(message)
        if self.team.first:
            warnings.warn(message, TrainingWarning, stacklevel=2)


def paper(done: float) -> float:
    """Divided by ten at 1/4 and again at 3/4 of all iterations."""
    return 1.0 if done < 0.25 else 0.1 if done < 0.75 else 0.01


def one_cycle(done: float) -> float:
    """Half a cosine from 1/25 up to the peak, then half a cosine down to 0 (Smith and Topin 2018)."""
    if done < WARM:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * done / WARM)) / 2
    return (1 + math.cos(math.pi * (done - WARM) / (1 - WARM))) / 2


SCHEDULES: dict[str, Callable[[float], float]] = {
    "paper": paper, "one-cycle": one_cycle, "constant": lambda done: 1.0
}  # fmt: skip


def rate(name: str, peak: float, iteration: int, total: int) -> float:
    """The learning rate of iteration number `iteration`, from 0, of `total`; it depends on nothing else."""
    return peak * SCHEDULES[name](iteration / total)
