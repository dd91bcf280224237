"""Attacks that the shared loop drives: one evaluation and one update of every image at a time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.engine import Engine, in_parts
from sparsepgd.problem.oracle import Evaluation, Oracle
from sparsepgd.problem.rows import join
from sparsepgd.search.attack import Attack, SearchResult, Task
from sparsepgd.search.loop import Aim, Images, Keeps, run_whole_batch
from sparsepgd.search.noise import Noise
from sparsepgd.search.table import run
from sparsepgd.threat import Threat

S = TypeVar("S")

SAMPLE = 32  # images that show whether fp16 will do
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
        """The state after an evaluation of the proposed points."""

    def judged(self, state: S, real: Tensor, denied: Tensor) -> S:
        """The state after full precision confirmed successes, (B,) bool, or denied them, of a search that goes on after
        a success (`keeps` the latest)."""
        return state

    def for_call(self, noise: Noise) -> Stepwise[S]:
        """The attack with all that is drawn once for a call decided."""
        return self

    def search(self, task: Task) -> SearchResult:
        with self._engine(task).running(task.oracle.model, task.threat.kernel.device) as model:
            best = run(self.for_call(task.noise), task, model)
        steps = best.step.clamp(max=self.evaluations - 1)
        tried = steps + 1 if self.early_stop else torch.full_like(steps, self.evaluations)
        back = tried if self.needs_gradient else torch.zeros_like(tried)
        return SearchResult(best.x_adv, best.loss, best.fooled, steps, tried, back)

    def _engine(self, task: Task) -> Engine:
        """The engine for this task. Where nobody asked for fp16, a model that leaves its range gets bf16."""
        x, device = task.waiting.x, task.threat.kernel.device
        engine = task.engine.decided(task.oracle.model, x, device)
        if engine.precision != "fp16" or task.engine.precision is not None or not len(x):
            return engine
        found, most = self._usable(engine, task)
        if found >= ENOUGH * most:
            return engine
        bf16 = replace(engine, precision="bf16")
        return engine if found >= ENOUGH * self._usable(bf16, task)[0] else bf16

    def _usable(self, engine: Engine, task: Task) -> tuple[int, int]:
        """How many numbers a search could use, of how many that the model says of a few clean images under this engine:
        losses that are finite and, of these images, entries of the gradient that are not 0; both in one count."""
        oracle, device = task.oracle, task.threat.kernel.device
        x, y, label = (part[:SAMPLE].to(device) for part in (task.waiting.x, task.waiting.y, task.waiting.label))
        with replace(engine, compile=False).running(oracle.model, device) as model:
            ask = partial(oracle.running(model, engine.scale).evaluate, gradient=self.needs_gradient)
            parts, _ = in_parts(lambda rows: ask(x[rows], y[rows], label[rows]), len(x), task.batch_size)
        seen = join(*parts)
        finite = seen.loss.isfinite()
        if seen.gradient is None:
            return int(finite.sum()), len(finite)
        steep = seen.gradient != 0
        return int(finite.sum()) + int(steep[finite].sum()), len(finite) + steep.numel()

    def perturb_batch(self, oracle: Oracle, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """No value is read by the host, so that it can be recorded as a CUDA graph."""
        return run_whole_batch(self.for_call(noise), oracle, threat, images, noise).x_adv
