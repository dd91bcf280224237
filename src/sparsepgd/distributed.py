"""Several workers on one run, as torchrun starts them: ``torchrun --nproc-per-node N -m sparsepgd evaluate ...``.

Here they only tell each other what to do and when it is done, over gloo, which works beside any device. Images and
results go through the run folder. Outside torchrun there is one worker, and nothing here has an effect.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after the workers have joined, it would keep their group alive
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sparsepgd.errors import SparsePGDError

START = timedelta(minutes=10)  # for all workers to start
PATIENCE = timedelta(days=1)  # for a worker that hangs: one that dies is noticed at once, but a chunk may take hours

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """This worker, and the number of all workers. All of them must make the same calls in the same order."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @classmethod
    def here(cls) -> Workers:
        rank, world, local = (
            int(os.environ.get(*known)) for known in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
        )
        return cls(rank, world, local) if world > 1 else cls()

    @property
    def first(self) -> bool:
        """Whether this worker is the one that opens and finishes the folder, and prints."""
        return self.rank == 0

    @property
    def device(self) -> str | None:
        """The GPU of this worker; workers share GPUs if there are too few. None for a single worker or without GPUs."""
        if self.world == 1 or not torch.cuda.is_available():
            return None
        return f"cuda:{self.local_rank % torch.cuda.device_count()}"

    def share(self, make: Callable[[], T]) -> T:
        """Return what `make` returns on the first worker, on all workers."""
        box = [make() if self.first else None]
        if self.world > 1:
            with self._together():
                dist.broadcast_object_list(box, src=0)
        return box[0]  # type: ignore[return-value]  # None has been replaced

    def gather(self, mine: T) -> list[T]:
        """Return the values of all workers, by rank, on all workers."""
        box = [mine] * self.world
        if self.world > 1:
            with self._together():
                dist.all_gather_object(box, mine)
        return box

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise SparsePGDError(
                f"worker {self.rank} of {self.world} waits for another worker that failed; see its error, "
                "and run the same command again to resume; finished work is kept"
            ) from error


@contextmanager
def joined() -> Iterator[Workers]:
    """Connect the workers. If one fails, the connections close, and the workers that wait for it fail too."""
    workers = Workers.here()
    if workers.world == 1 or dist.is_initialized():
        yield workers
        return
    with workers._together():
        store = _unused(next(rendezvous("env://", timeout=START))[0], workers)
        dist.init_process_group("gloo", store=store, rank=workers.rank, world_size=workers.world, timeout=PATIENCE)
    try:
        yield workers
        workers.gather(None)  # no worker leaves while another still reads
    finally:
        gc.collect()  # frees what still holds the group, whose threads must end before Python does, or it aborts
        dist.destroy_process_group()


def _unused(store: Store, workers: Workers) -> Store:
    """An unused part of the store. torchrun keeps the store at a restart, with the addresses of the previous workers.

    The other workers call, each under a new name; the first answers every call, including old ones, until all workers
    have confirmed its answer.
    """
    word, late = uuid4().hex, time.monotonic() + START.total_seconds()
    if not workers.first:
        store.set(f"call/{workers.rank}", word)
        word = store.get(f"answer/{word}").decode()
        store.set(f"heard/{word}/{workers.rank}", "yes")
        return PrefixStore(word, store)
    others = range(1, workers.world)
    while not store.check([f"heard/{word}/{rank}" for rank in others]):
        for rank in others:
            if store.check([f"call/{rank}"]):
                store.set(f"answer/{store.get(f'call/{rank}').decode()}", word)
        if time.monotonic() > late:
            raise RuntimeError(f"not all workers started within {START}")
        time.sleep(0.02)
    return PrefixStore(word, store)
