"""The workers of one training run. They communicate by NCCL between GPUs, otherwise by Gloo."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sparsepgd.distributed import Workers


@dataclass(frozen=True)
class Team:
    """One of the workers that train a model together."""

    rank: int = 0
    world: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, workers: Workers, device: torch.device) -> Team:
        group: Any = None  # the default group, Gloo
        if workers.world > 1 and device.type == "cuda":
            torch.cuda.set_device(device)  # NCCL requires it
            group = dist.new_group(backend="nccl")
        return cls(workers.rank, workers.world, group)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """Sum over all workers, in place; does nothing if there is only one."""
        if self.world > 1:
            dist.all_reduce(value, group=self.group)
        return value

    def latest(self, value: Tensor, mine: Tensor) -> Tensor:
        """Rows of `value` from the worker that changed them (`mine`, (N,) bool); other rows are unchanged."""
        if self.world == 1:
            return value
        rows = mine.view(-1, *[1] * (value.dim() - 1))
        changed, seen = self.sum(torch.where(rows, value, 0)), self.sum(rows.to(value.dtype))
        return torch.where(seen > 0, changed, value)

    def network(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model itself, or for several GPUs a copy with synchronised batch normalisation.

        torch does not support this on CPUs. There, each worker normalises with its own part of the batch, and the
        running statistics are those of the first worker.
        """
        if self.world == 1 or device.type != "cuda":
            return model
        convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
        synced: nn.Module = convert(copy.deepcopy(model), self.group)
        return synced

    def shared(self, objective: nn.Module, device: torch.device) -> nn.Module:
        """The objective with gradients that are averaged over all workers."""
        if self.world == 1:
            return objective
        device_ids = [device] if device.type == "cuda" else None
        return DistributedDataParallel(objective, device_ids, process_group=self.group)
