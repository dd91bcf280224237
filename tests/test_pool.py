"""benchmarks/pool.py."""

import subprocess
import sys

import pytest

from support.scripts import ROOT

KILLED = f"""
import multiprocessing, os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor

sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from pool import begin

pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin)
print("worker", pool.submit(os.getpid).result() != os.getpid(), flush=True)
pool.submit(time.sleep, 3600)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_processes_of_a_killed_command_end_with_it() -> None:
    done = subprocess.run(  # returns when the last process that could still print has ended
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, timeout=900, check=False
    )
    assert done.stdout == "worker True\n"
