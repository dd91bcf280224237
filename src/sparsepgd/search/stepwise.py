"""Attacks that the shared loop drives: one evaluation and one update of every image at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.engine import Running, in_parts
from sparsepgd.problem.oracle import Evaluation, Oracle
from sparsepgd.problem.rows import join
from sparsepgd.search.attack import Attack, SearchResult, Task
from sparsepgd.search.loop import Aim, Images, Keeps, run_whole_batch
from sparsepgd.search.noise import Noise
from sparsepgd.search.table import run
from sparsepgd.threat import Threat

S = TypeVar("S")

ENOUGH = 0.9  # of what bf16 sees


@dataclass(frozen=True, eq=False)
class Stepwise(Attack, Generic[S]):
    """An attack is its start, its proposal and its update; its state S is a dataclass of tensors."""

    @abstractmethod
    def start(self, threat: Threat, images: Images, noise: Noise) -> S:
        """The state before the first evaluation."""

    @abstractmethod
    def propose(self, threat: Threat, images: Images, state: S) -> Tensor:
        """The points to evaluate, (B, C, H, W), within the budget."""

    def aim(self, state: S) -> Aim:
        """Which of the proposed points count, and which loss leads; unless said, all, and the attack's own."""
        return Aim()

    @property
    def keeps(self) -> Keeps:
        """Which of several successes on an image is kept."""
        return "largest"

    @abstractmethod
    def update(self, threat: Threat, images: Images, state: S, seen: Evaluation, step: Tensor, noise: Noise) -> S:
        """The state after an evaluation of the proposed points. The tensors of the old state may be overwritten."""

    def judged(self, state: S, real: Tensor, denied: Tensor) -> S:
        """The state after full precision confirmed successes, (B,) bool, or denied them, of a search that goes on after
        a success (`keeps` the latest)."""
        return state

    def for_call(self, noise: Noise) -> Stepwise[S]:
        """The attack with all that is drawn once for a call decided."""
        return self

    def search(self, task: Task) -> SearchResult:
        with self._running(task) as model:
            best = run(self.for_call(task.noise), task, model)
        steps = best.step.clamp(max=self.evaluations - 1)
        tried = steps + 1 if self.early_stop else torch.full_like(steps, self.evaluations)
        back = tried if self.needs_gradient else torch.zeros_like(tried)
        return SearchResult(best.x_adv, best.loss, best.fooled, steps, tried, back)

    @contextmanager
    def _running(self, task: Task) -> Iterator[Running]:
        """The model as it runs for this task. Where nobody asked for fp16, a model that leaves its range gets bf16."""
        x, model, device = task.waiting.x, task.oracle.model, task.threat.kernel.device
        engine = task.engine.decided(model, x, device)
        with engine.running(model, device) as run:
            if engine.precision != "fp16" or task.engine.precision is not None or not len(x):
                yield run
                return
            found, most = self._usable(run, task)
            if found >= ENOUGH * most:
                yield run
                return
            with replace(engine, precision="bf16").running(model, device) as other:
                yield run if found >= ENOUGH * self._usable(other, task)[0] else other

    def _usable(self, model: Running, task: Task) -> tuple[int, int]:
        """How many numbers a search could use, of how many that the model says of the first clean images: losses that
        are finite and, of these images, entries of the gradient that are not 0; both in one count. They are as many as
        the search begins with: for each size of a batch, libraries look for their kernels anew."""
        oracle, device, size = task.oracle, task.threat.kernel.device, task.batch_size
        x, y, label = (part[:size].to(device) for part in (task.waiting.x, task.waiting.y, task.waiting.label))
        ask = partial(oracle.running(model, model.engine.scale).evaluate, gradient=self.needs_gradient)
        parts, _ = in_parts(lambda rows: ask(x[rows], y[rows], label[rows]), len(x), size)
        seen = join(*parts)
        finite = seen.loss.isfinite()
        if seen.gradient is None:
            return int(finite.sum()), len(finite)
        steep = seen.gradient != 0
        return int(finite.sum()) + int(steep[finite].sum()), len(finite) + steep.numel()

    def perturb_batch(self, oracle: Oracle, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """No value is read by the host, so that it can be recorded as a CUDA graph."""
        return run_whole_batch(self.for_call(noise), oracle, threat, images, noise).x_adv
