"""benchmarks/cold.py still finds what it wraps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNRECORDED = """
import cold
import torch
from sparsepgd.problem.engine import Meter
from sparsepgd.search import graphs
from sparsepgd.search.loop import Best

clock = cold.Clock()
cold.watch(clock, {})
graphs.record = lambda *work: None  # as for a model that synchronises with the host
stepper = graphs.Stepper(lambda now: now, True, Meter())
stepper(Best(*torch.zeros(4, 3, 1)), 5)
print(clock.phases["steps: eager"][1])
"""


def test_the_phases_of_a_call_are_found(tmp_path: Path) -> None:
    """In a process of its own, because it replaces functions of the package."""
    file = tmp_path / "found.json"
    options = {"model": "small-plain", "k": 2, "anneal-steps": 4, "device": "cpu", "begun": 0, "job": "phases anneal"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    script = [sys.executable, str(ROOT / "benchmarks" / "cold.py"), "-n", "4", *words, "--out", str(file)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    for call in ("first", "second", "another seed"):
        phases = found[call]["phases"]
        assert phases["steps: eager"][1] == found[call]["meter"]["steps"]
        assert phases["float32: forward passes"][1] >= 2  # clean and final images
        assert {"table: fill", "table: look", "float32: verification, besides the model"} <= phases.keys()


def test_steps_that_cannot_be_recorded_are_timed_too() -> None:
    words = [sys.executable, "-c", UNRECORDED]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT / "benchmarks", check=False)
    assert done.stdout == "2\n", done.stderr  # before the recording, and after it failed
