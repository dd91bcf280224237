"""`spgd bench`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsepgd.commands import bench as bench_command
from sparsepgd.commands.bench import _settings, measure
from sparsepgd.errors import BudgetError, UnsupportedError
from sparsepgd.runs.identity import hardware
from sparsepgd.speed import bench
from sparsepgd.zoo import bundled_images


def test_bench_prints_tables_and_writes_record_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REPEAT", 0.01)
    file = tmp_path / "speed.json"
    measure(model="zoo:small-plain", n=4, k=20, steps=2, device="cpu", out_file=file)
    printed = capsys.readouterr().out
    assert "small-plain alone" in printed
    assert "spgd-unprojected" in printed
    assert max(len(line) for line in printed.splitlines() if not line.startswith("record in")) <= 80
    record = json.loads(file.read_text())
    assert record["command"].startswith("spgd")
    assert record["images"] == 4
    assert record["hardware"] == hardware(torch.device("cpu"))
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert "next: " not in printed
    for quiet in (False, True):
        measure(model="zoo:small-plain", n=2, k=20, steps=2, device="cpu", quiet=quiet)
        said = "next: save these numbers and plot them: --out speed.json"
        assert (capsys.readouterr().out.splitlines()[-1] == said) == (not quiet)


def test_all_images_are_taken_if_there_are_fewer_than_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REPEAT", 0.01)
    x, y = bundled_images(2)
    np.savez(tmp_path / "two.npz", x=x.numpy(), y=y.numpy())
    file = tmp_path / "speed.json"
    measure(data=f"npz:{tmp_path / 'two.npz'}", k=20, steps=2, device="cpu", quiet=True, out_file=file)
    assert json.loads(file.read_text())["images"] == 2


def test_precisions_are_checked_and_compiled_code_is_measured_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_command, "cpu_has_bf16", lambda: False)
    assert _settings(None, None, on_cpu=True) == [("fp32", False)]
    monkeypatch.setattr(bench_command, "cpu_has_bf16", lambda: True)
    assert _settings(None, None, on_cpu=True) == [("fp32", False), ("bf16", False)]
    assert _settings(None, None, on_cpu=False) == [("tf32", False), ("fp16", False), ("fp16", True)]
    assert _settings("fp32, bf16", False, on_cpu=True) == [("fp32", False), ("bf16", False)]
    with pytest.raises(UnsupportedError, match="--compile is for GPUs; omit it"):
        _settings(None, True, on_cpu=True)
    with pytest.raises(UnsupportedError, match="precision 'fp8'; use one of fp32, tf32, bf16, fp16"):
        _settings("fp8", None, on_cpu=True)


def test_a_budget_that_does_not_fit_is_refused_before_anything_is_timed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BudgetError, match="k=5000 pixels, but a 32x32 image has 1024"):
        measure(model="zoo:small-plain", n=4, k=5000, steps=2, device="cpu")
    assert capfd.readouterr().err == ""


def test_others_are_compared_on_pixels_only(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="other implementations are compared on pixels, not on Rows"):
        measure(model="zoo:small-plain", n=4, k=1, pattern="row", steps=2, device="cpu", official=tmp_path)
