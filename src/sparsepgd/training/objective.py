"""The loss of a batch: cross-entropy or TRADES, with soft targets as an option."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsepgd.training.team import Team

Extract = Callable[[Any], Tensor]


class Mixed(nn.Module):
    """The network in bfloat16 and channels_last if requested; its logits at least in float32."""

    def __init__(self, network: nn.Module, device: torch.device, bf16: bool, extract: Extract | None) -> None:
        super().__init__()
        self.network = network
        self.kind, self.bf16, self.extract = device.type, bf16, extract
        if bf16 and device.type == "cuda":
            network.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last) if self.bf16 else x
        with torch.autocast(self.kind, torch.bfloat16) if self.bf16 else nullcontext():
            output = self.network(x)
            logits: Tensor = output if self.extract is None else self.extract(output)
            return logits.float() if self.bf16 else logits


class Objective(nn.Module):
    """One forward pass for the clean images, if the loss contains them, and one for the adversarial images: batch
    normalisation uses only training images, with clean and adversarial images in separate batches."""

    def __init__(self, model: nn.Module, trades: bool, lam: float, soft_momentum: float, team: Team) -> None:
        super().__init__()
        self.model, self.trades, self.lam, self.soft_momentum = model, trades, lam, soft_momentum
        self.team = team

    def forward(self, x: Tensor, x_adv: Tensor, y: Tensor, t: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The loss, the number of correct predictions on x_adv, and the updated soft targets t (B, classes)."""
        clean = self.model(x) if self.trades else None
        logits = self.model(x_adv)
        log_p = (logits if clean is None else clean).log_softmax(1)
        if t is None:
            loss = F.nll_loss(log_p, y)
        else:
            t = self.soft_momentum * t + (1 - self.soft_momentum) * log_p.detach().exp()
            w = t.amax(1)
            # divided by the weights of all workers, so that the mean of their gradients is that over all images
            loss = -(w * (t * log_p).sum(1)).sum() * self.team.world / self.team.sum(w.sum())
        if clean is not None:  # KL(clean || adversarial)
            loss = loss + self.lam * F.kl_div(logits.log_softmax(1), log_p, reduction="batchmean", log_target=True)
        return loss, (logits.detach().argmax(1) == y).sum(), t


class SoftTargets:
    """S, self-adaptive training (Huang et al. 2020): a distribution over the classes for each image, initially one-hot.

    A row of zeros means one-hot, so that labels need not be known in advance.
    """

    def __init__(self, count: int, classes: int, device: torch.device) -> None:
        self.t = torch.zeros(count, classes, device=device)
        self.mine = torch.zeros(count, device=device, dtype=torch.bool)  # what this worker has changed

    def of(self, rows: Tensor, y: Tensor) -> Tensor:
        t = self.t[rows]
        one_hot = torch.zeros_like(t).scatter_(1, y[:, None], 1.0)
        return torch.where(t.sum(1, keepdim=True) > 0, t, one_hot)

    def put(self, rows: Tensor, t: Tensor) -> None:
        self.t[rows] = t
        self.mine[rows] = True

    def share(self, team: Team) -> None:
        """Exchange the targets of all workers after an epoch, in which each image is used at most once."""
        self.t = team.latest(self.t, self.mine)
        self.mine.zero_()
