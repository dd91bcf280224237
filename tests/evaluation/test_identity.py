"""What a run is known by."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from sparsepgd.evaluation import identity

ROOT = Path(__file__).parent.parent.parent


def test_hardware_is_the_gpu_by_name_or_the_processor_with_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    words = identity.hardware(torch.device("cpu"))
    assert words.endswith(f", {os.cpu_count()} cores")
    assert not words.startswith((",", "CPU,"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert identity.hardware(torch.device("cuda:1")) == "GPU 1"
    assert identity.environment(torch.device("cpu"))["hardware"] == words


def test_hardware_is_named_in_one_place() -> None:
    files = [file for folder in ("src", "benchmarks", "recipes") for file in (ROOT / folder).rglob("*.py")]
    words = ("get_device_name(", "platform.processor(")
    assert {file.name for file in files if any(word in file.read_text() for word in words)} == {"identity.py"}
