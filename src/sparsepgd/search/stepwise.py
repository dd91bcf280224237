"""Attacks that the shared loop drives: one evaluation and one update of every image at a time."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.engine import Engine
from sparsepgd.problem.goals import Goal, Untargeted
from sparsepgd.problem.oracle import Evaluation, Model, Oracle, borrowed
from sparsepgd.search.attack import Attack, Found, Task, queue
from sparsepgd.search.loop import Images, sweep
from sparsepgd.search.noise import Noise
from sparsepgd.search.table import run
from sparsepgd.threat import Threat

S = TypeVar("S")

SAMPLE = 32  # images that show whether half precision will do


@dataclass(frozen=True, eq=False)
class Stepwise(Attack, Generic[S]):
    """An attack is its start, its proposal and its update; its state S is a dataclass of tensors."""

    needs_gradient: ClassVar[bool] = True

    @abstractmethod
    def start(self, threat: Threat, images: Images, noise: Noise) -> S:
        """The state before the first evaluation."""

    @abstractmethod
    def propose(self, threat: Threat, images: Images, state: S) -> Tensor:
        """The points to evaluate, (B, C, H, W), within the budget."""

    @abstractmethod
    def update(self, threat: Threat, images: Images, state: S, seen: Evaluation, step: Tensor, noise: Noise) -> S:
        """The state after an evaluation of the proposed points."""

    def for_call(self, noise: Noise) -> Stepwise[S]:
        """The attack with all that is drawn once for a call decided."""
        return self

    def with_tables(self, threat: Threat) -> Stepwise[S]:
        """The attack with what it looks up for images of one shape at hand."""
        return self

    def search(self, task: Task) -> Found:
        oracle, threat, waiting, device = task.oracle, task.threat, task.waiting, task.threat.kernel.device
        engine = self._engine(task)
        with engine.running(oracle.model, device) as model:
            best = run(
                self.for_call(task.noise).with_tables(threat),
                oracle,
                threat,
                waiting,
                task.noise,
                task.batch_size,
                quick=dataclasses.replace(oracle, model=model, scale=engine.scale),
                engine=engine,
                progress=task.progress,
            )
        steps = best.step.clamp(max=self.evaluations - 1)
        tried = steps + 1 if self.early_stop else torch.full_like(steps, self.evaluations)
        return Found(best.x_adv, best.loss, steps, tried, tried if self.needs_gradient else torch.zeros_like(tried))

    def _engine(self, task: Task) -> Engine:
        """The engine for this task. Where nobody asked for fp16, a model that leaves its range gets bf16."""
        oracle, x, device = task.oracle, task.waiting.x, task.threat.kernel.device
        engine = task.engine.decided(oracle.model, x, device, len(x) * self.evaluations, self.needs_gradient)
        if engine.precision != "fp16" or task.engine.precision is not None or not len(x):
            return engine
        plain = dataclasses.replace(engine, compile=False)
        with plain.running(oracle.model, device) as model, torch.no_grad():
            finite = dataclasses.replace(oracle, model=model).logits(x[:SAMPLE].to(device)).isfinite().all()
        return engine if bool(finite) else dataclasses.replace(engine, precision="bf16")

    def perturb(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        seed: int = 0,
        goal: Goal | None = None,
        index: Tensor | None = None,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> Tensor:
        """Adversarial images for training: unchecked, unverified, the whole batch at once.

        No value is read by the host. With early_stop, images that the model gets wrong come back as they are.
        """
        with borrowed(model, x.device):
            return self.in_borrowed(model, x, y, Noise(seed), goal, index, logits)

    def in_borrowed(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        noise: Noise,
        goal: Goal | None = None,
        index: Tensor | None = None,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> Tensor:
        """`perturb` with a model that is borrowed already; it can be recorded as a CUDA graph."""
        threat = self.budget.resolve((x.shape[1], x.shape[2], x.shape[3]), x.device)
        oracle = Oracle(model, goal or Untargeted(), self.loss, logits, x.device)
        with torch.no_grad():
            clean = oracle.logits(x)
        images = Images.entering(queue(threat, oracle, x.detach(), y, clean, index), threat, self.quantize)
        best = sweep(self.for_call(noise).with_tables(threat), oracle, threat, images, noise)
        if not self.early_stop:
            return best.x_adv
        wrong = clean.argmax(1) != y
        return torch.where(wrong[:, None, None, None], x, best.x_adv)
