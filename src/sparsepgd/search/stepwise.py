"""Attacks that run in the shared loop: one evaluation and one update of every image at a time."""

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

ENOUGH = 0.9  # fp16 is kept if this share of its values is usable, or of the values that are usable in bf16


@dataclass(frozen=True, eq=False)
class Stepwise(Attack, Generic[S]):
    """An attack that is defined by `start`, `propose` and `update`. Its state S is a dataclass of tensors."""

    @abstractmethod
    def start(self, threat: Threat, images: Images, noise: Noise) -> S:
        """The state before the first evaluation."""

    @abstractmethod
    def propose(self, threat: Threat, images: Images, state: S) -> Tensor:
        """The points to evaluate, (B, C, H, W), within the budget."""

    def aim(self, state: S) -> Aim:
        """Which of the proposed points count, and which loss is ascended. By default: all, and the attack's loss."""
        return Aim()

    @property
    def keeps(self) -> Keeps:
        """Which of several successes on an image is kept."""
        return "largest"

    @abstractmethod
    def update(self, threat: Threat, images: Images, state: S, seen: Evaluation, step: Tensor, noise: Noise) -> S:
        """The state after an evaluation of the proposed points. The tensors of the old state may be overwritten."""

    def judged(self, state: S, real: Tensor, denied: Tensor) -> S:
        """The state after successes were confirmed (`real`) or denied in full precision, (B,) bool each. Called only if
        the search continues after a success (`keeps` is "latest")."""
        return state

    def for_call(self, noise: Noise) -> Stepwise[S]:
        """The attack after the random choices that hold for a whole call."""
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
        """The model as it runs for this task. If fp16 overflows, bf16 is used unless fp16 was requested."""
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
        """How many values of the first clean images a search can use, and how many there are: losses that are finite
        and, for these images, entries of the gradient that are not 0. The batch is as large as the first one of the
        search, because libraries select their kernels anew for each size."""
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
        """The host reads no values, so this can be recorded as a CUDA graph."""
        return run_whole_batch(self.for_call(noise), oracle, threat, images, noise).x_adv
