"""The workers of one training run. What they add up goes by NCCL between GPUs, by Gloo elsewhere."""

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
    """This worker among those that train one model."""

    rank: int = 0
    world: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, workers: Workers, device: torch.device) -> Team:
        group: Any = None  # the default one, Gloo
        if workers.world > 1 and device.type == "cuda":
            torch.cuda.set_device(device)  # NCCL asks for it
            group = dist.new_group(backend="nccl")
        return cls(workers.rank, workers.world, group)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """Over all workers, in place; nothing if there is one."""
        if self.world > 1:
            dist.all_reduce(value, group=self.group)
        return value

    def latest(self, value: Tensor, mine: Tensor) -> Tensor:
        """The rows of `value` as the worker has them who changed them, `mine` (N,) bool; the others as they are."""
        if self.world == 1:
            return value
        rows = mine.view(-1, *[1] * (value.dim() - 1))
        changed, seen = self.sum(torch.where(rows, value, 0)), self.sum(rows.to(value.dtype))
        return torch.where(seen > 0, changed, value)

    def network(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model itself, or for several GPUs a copy whose batch normalisation sees the batches of all.

        On CPUs torch has no such thing: there each worker normalises by its own part of the batch, and the running
        statistics are those of the first.
        """
        if self.world == 1 or device.type != "cuda":
            return model
        convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
        synced: nn.Module = convert(copy.deepcopy(model), self.group)
        return synced

    def shared(self, objective: nn.Module, device: torch.device) -> nn.Module:
        """With gradients that are the mean of all workers."""
        if self.world == 1:
            return objective
        place = [device] if device.type == "cuda" else None
        return DistributedDataParallel(objective, place, process_group=self.group)
