"""Attacks with a loop of their own: batch by batch, with every question to the model counted outside the attack."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsepgd.problem.oracle import Evaluation, Oracle
from sparsepgd.search.attack import Attack, Found, Task
from sparsepgd.search.loop import Images, select
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Threat


@dataclass(frozen=True, eq=False)
class Questions:
    """The model as such an attack sees it. Of a question the attack says which image each point belongs to.

    `rows` (N,) are places in the batch; an image may occur several times, or not at all.
    """

    oracle: Oracle
    images: Images
    size: int  # points that the model is asked about at a time
    forwards: Tensor  # (B,) int64, counted here
    backwards: Tensor  # (B,) int64

    def evaluate(self, x: Tensor, rows: Tensor, gradient: bool = False) -> Evaluation:
        """Loss, success and, if asked for, the gradient of the loss at the points x (N, C, H, W)."""
        self._count(rows, 1, int(gradient))
        y, label = self.images.y[rows], self.images.label[rows]
        parts = [
            self.oracle.evaluate(x[i : i + self.size], y[i : i + self.size], label[i : i + self.size], gradient)
            for i in range(0, len(x), self.size)
        ]
        slopes = torch.cat([part.gradient for part in parts if part.gradient is not None]) if gradient else None
        return Evaluation(torch.cat([part.loss for part in parts]), torch.cat([part.fooled for part in parts]), slopes)

    def logits(self, x: Tensor, rows: Tensor) -> Tensor:
        """(N, classes)."""
        self._count(rows, 1, 0)
        with torch.no_grad():
            return torch.cat([self.oracle.logits(x[i : i + self.size]) for i in range(0, len(x), self.size)])

    def slopes(self, x: Tensor, rows: Tensor, values: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (N, classes) and the gradients (N, M, C, H, W) of M functions of them.

        `values`: from logits (n, classes) and their `rows` (n,) to (n, M). One forward pass and M backward ones.
        """
        logits, gradients = [], []
        for i in range(0, len(x), self.size):
            with torch.enable_grad():
                point = x[i : i + self.size].detach().requires_grad_()
                said = self.oracle.logits(point)
                wanted = values(said, rows[i : i + self.size])
                each = [torch.autograd.grad(one.sum(), point, retain_graph=True)[0] for one in wanted.unbind(1)]
            logits.append(said.detach())
            gradients.append(torch.stack(each, 1))
        slopes = torch.cat(gradients)
        self._count(rows, 1, slopes.shape[1])
        return torch.cat(logits), slopes

    def _count(self, rows: Tensor, forwards: int, backwards: int) -> None:
        once = torch.ones_like(rows)
        self.forwards.index_add_(0, rows, once * forwards)
        self.backwards.index_add_(0, rows, once * backwards)


@dataclass(frozen=True, eq=False)
class Standalone(Attack):
    """Batch by batch; an attack is what it makes of a batch."""

    @abstractmethod
    def attack_batch(self, ask: Questions, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """The points (B, C, H, W) it claims, within the budget. Images that are fooled should be asked no more."""

    def search(self, task: Task) -> Found:
        """Points and loss of all images; what was claimed is asked once more, uncounted, for the loss."""
        waiting, parts, fooled = task.waiting, [], 0
        total = len(waiting.x) * self.evaluations
        for start in range(0, len(waiting.x), task.batch_size):
            images = Images.entering(select(waiting, slice(start, start + task.batch_size)), task.threat, self.quantize)
            zero = torch.zeros_like(images.y)
            ask = Questions(task.oracle, images, task.batch_size, zero, zero.clone())
            x_adv = self.attack_batch(ask, task.threat, images, task.noise)
            seen = task.oracle.evaluate(x_adv, images.y, images.label, False)
            parts.append([x_adv, seen.loss, ask.forwards.clone(), ask.forwards, ask.backwards])
            fooled += int(seen.fooled.sum())
            if task.progress is not None:
                task.progress(min(start + task.batch_size, len(waiting.x)) * self.evaluations, total, fooled)
        if not parts:
            zero = torch.zeros_like(waiting.y)
            return Found(waiting.x.clone(), waiting.clean_loss.clone(), zero, zero, zero)
        return Found(*(torch.cat(part).to(waiting.x.device) for part in zip(*parts, strict=True)))
