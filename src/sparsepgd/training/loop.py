"""The training loop: one epoch after the other, watched from outside, taken back when it breaks, put down and resumed.

The host waits for the device once an epoch. Every random number depends on the seed, the image and the epoch or the
iteration, so that a resumed run, or one with several workers, draws the same.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sparsepgd.errors import SparsePGDError, TrainingWarning
from sparsepgd.threat import Threat
from sparsepgd.training.adversaries import Adversary, sparse_noise
from sparsepgd.training.data import Images, augmented, shares, window
from sparsepgd.training.settings import Settings
from sparsepgd.training.state import Plain, State, snapshot
from sparsepgd.training.team import Team
from sparsepgd.training.watch import Watch, catastrophic

Progress = Callable[[int, int, Mapping[str, float]], None]  # iterations done, of, the last value of each curve
WARM = 0.25  # share of the iterations in which a one-cycle rises
BRAKE = 0.5  # on the learning rate, each time a run is taken back


@dataclass(eq=False)
class Run:
    """A model in training, with all that is fixed for it."""

    wanted: Settings
    images: Images
    rows: Tensor  # (N,), numbers of the images to train on
    state: State
    model: nn.Module  # what the adversary attacks: the network in its precision, compiled if asked for
    objective: nn.Module  # what is trained; with several workers it shares its gradients
    adversary: Adversary
    threat: Threat | None  # of the training adversary, if there is to be noise
    watch: Watch | None
    team: Team
    progress: Progress | None

    @property
    def batch(self) -> int:
        """Images of a batch of this worker."""
        return min(self.wanted.batch, len(self.rows)) // self.team.world

    @property
    def batches(self) -> int:
        return len(self.rows) // (self.batch * self.team.world)

    def go_on(self, put_down: Callable[[], None]) -> None:
        """Train to the end. `put_down` is called after every epoch."""
        state, wanted = self.state, self.wanted
        while state.epoch < wanted.epochs:
            good, start = snapshot(state), time.perf_counter()
            row = self.epoch()
            if not math.isfinite(row["loss"]):
                self.take_back(good, row["loss"])
                continue
            state.epoch += 1
            if self.watch is not None and (state.epoch % wanted.watch_every == 0 or state.epoch == wanted.epochs):
                with state.averaged():
                    row |= self.watch(self.model)
            row["seconds"] = time.perf_counter() - start
            self.note(row)
            put_down()

    def epoch(self) -> dict[str, float]:
        """One pass over the images: attack, loss, step."""
        state, wanted = self.state, self.wanted
        order = shares(self.rows, wanted, state.epoch, self.team)
        total = torch.zeros(2, device=state.device, dtype=torch.float64)  # loss, right answers under attack
        soft = state.targets if state.epoch >= wanted.soft_from * wanted.epochs else None
        done = state.epoch / max(wanted.epochs - 1, 1)
        self.objective.train()
        for batch in self.images.batches(order, self.batch, wanted.seed_for("loader", state.epoch)):
            seed = wanted.seed_for("augment", state.epoch)
            x = augmented(batch, wanted.augment or "none", seed)
            if state.changes is not None:
                crop = window(batch, wanted.augment or "none", seed)
                batch = replace(batch, kept=crop.of(state.changes.of(batch.rows)))
            if self.threat is not None:
                seed = wanted.seed_for("noise", state.epoch)
                x = sparse_noise(x, self.threat, 2 * self.threat.budget.k, batch.rows, seed)
            x_adv = self.adversary(self.model, replace(batch, x=x), state.iteration, done)
            if state.changes is not None and wanted.anneals(state.iteration):
                state.changes.put(batch.rows, crop.back(x_adv - x))
            t = None if soft is None else soft.of(batch.rows, batch.y)
            loss, right, t = self.objective(x, x_adv, batch.y, t)
            self.step(loss)
            if soft is not None and t is not None:
                soft.put(batch.rows, t)
            total += torch.stack([loss.detach().double(), right.double() / self.batch])
            if self.progress is not None:
                self.progress(state.iteration, wanted.epochs * self.batches, state.latest)
        if soft is not None:
            soft.share(self.team)
        if state.changes is not None:
            state.changes.share(self.team)
        mean, attacked = (self.team.sum(total) / self.batches / self.team.world).tolist()
        return {"loss": mean, "attacked": attacked, "lr": self.rate(state.iteration - 1)}

    def step(self, loss: Tensor) -> None:
        state, wanted = self.state, self.wanted
        for group in state.optimizer.param_groups:
            group["lr"] = self.rate(state.iteration)
        state.optimizer.zero_grad()
        torch.autograd.backward(loss)
        if wanted.clip is not None:
            nn.utils.clip_grad_norm_(state.network.parameters(), wanted.clip)
        state.optimizer.step()
        if wanted.ema is not None:
            state.follow(wanted.ema)
        state.iteration += 1

    def rate(self, iteration: int) -> float:
        total = self.wanted.epochs * self.batches
        return self.state.brake * rate(self.wanted.schedule, self.wanted.lr, iteration, total)

    def take_back(self, good: Plain, loss: float) -> None:
        """Back to the start of the epoch, and on with a lower learning rate; after a few times it is given up."""
        state = self.state
        state.load(good)
        if not state.patience:
            raise SparsePGDError(
                f"the loss is {loss} in epoch {state.epoch + 1}, also with {state.brake:g} of the learning rate; "
                f"use a lower lr (now {self.wanted.lr}) or clip=1.0"
            )
        state.patience -= 1
        state.brake *= BRAKE
        self.say(
            f"the loss was {loss} in epoch {state.epoch + 1}: back to its start, and on with {state.brake:g} of the "
            "learning rate"
        )

    def note(self, row: Mapping[str, float]) -> None:
        """A value for each curve; what was not watched in this epoch keeps its last one, and has None before the
        first."""
        curves, done = self.state.curves, self.state.epoch
        for name in dict.fromkeys((*row, *curves)):
            values = curves.setdefault(name, [None] * (done - 1))
            values.append(row[name] if name in row else values[-1])
        self.state.seconds += row["seconds"]
        alarm = None
        if self.wanted.sparse and self.watch is not None and "robust" in row:
            alarm = catastrophic(curves, len(self.watch.images))
        if alarm is not None and not any(notice.startswith("catastrophic") for notice in self.state.notices):
            self.say(alarm)

    def say(self, words: str) -> None:
        """A warning that the record keeps."""
        self.state.notices.append(words)
        if self.team.first:
            warnings.warn(words, TrainingWarning, stacklevel=2)


def paper(done: float) -> float:
    """Divided by ten at 1/4 and again at 3/4 of all iterations."""
    return 1.0 if done < 0.25 else 0.1 if done < 0.75 else 0.01


def one_cycle(done: float) -> float:
    """Half a cosine from 1/25 up to the peak, and half a cosine down to 0 (Smith and Topin 2018)."""
    if done < WARM:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * done / WARM)) / 2
    return (1 + math.cos(math.pi * (done - WARM) / (1 - WARM))) / 2


def constant(done: float) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[float], float]] = {"paper": paper, "one-cycle": one_cycle, "constant": constant}


def rate(name: str, peak: float, iteration: int, total: int) -> float:
    """The learning rate of an iteration, counted from 0, of `total`; a resumed run needs nothing but its number."""
    return peak * SCHEDULES[name](iteration / total)
