"""Work in several processes with a time limit."""

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Key = tuple[str, ...]  # identifies a piece of work


def collected(
    futures: dict[Key, Future[T]], until: float, each: Callable[[Key, T], None] = lambda key, result: None
) -> dict[Key, T]:
    """The results that are finished by `until`, a value of time.monotonic(). For each a line is printed with its time
    or its error, and `each` is called immediately."""
    done: dict[Key, T] = {}
    keys, begun, left = {future: one for one, future in futures.items()}, time.monotonic(), until - time.monotonic()
    try:
        for future in as_completed(keys, None if math.isinf(left) else max(left, 0)):
            one, error = keys[future], future.exception()
            if error is None:
                done[one] = future.result()
            said = seconds(done[one]) if error is None else f"{type(error).__name__}: {error}"
            what = ", ".join(word.partition(", loss=")[0] for word in one)
            print(f"{time.monotonic() - begun:6.1f} {len(done)}/{len(keys)} {what}: {said}", flush=True)
            if error is None:
                each(one, done[one])
    except TimeoutError:
        print("the time is over", flush=True)
    return done


def begin() -> None:
    """Initialise a process with one thread, because all processes share the cores. It ends with its parent: if that was
    killed, unfinished work would keep the folder locked for the command that resumes it."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def seconds(finished: Any) -> str:
    row = isinstance(finished, dict)
    return f"{finished['seconds'] if row else getattr(finished, 'record', finished).seconds:.1f} s"


def stopped(pool: ProcessPoolExecutor) -> None:
    """Stop unfinished work; the next call resumes it."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
