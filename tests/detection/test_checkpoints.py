"""Checkpoints with pickled modules: the weights come out, and nothing that is pickled runs."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from sparsepgd.detection.yolo import read_checkpoint
from sparsepgd.errors import SourceError


class Detect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cv = nn.Conv2d(4, 2, 1)
        self.register_buffer("unsaved", torch.ones(2), persistent=False)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.yaml: Any = {"nc": 2, "backbone": [[-1, 1, "Conv", [4, 3]]]}
        self.names = {1: "dog", 0: "cat"}
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Detect())


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that pickles name but that is not there when they are read."""
    module = ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    for kind in (Detect, Network):
        monkeypatch.setattr(kind, "__module__", "elsewhere")
        setattr(module, kind.__name__, kind)
    return module


def test_weights_names_and_head_come_out_without_the_classes(
    tmp_path: Path, gone: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network().half()
    torch.save({"model": network, "ema": None, "epoch": -1}, tmp_path / "net.pt")
    monkeypatch.delitem(sys.modules, "elsewhere")
    saved = read_checkpoint(tmp_path / "net.pt")
    expected = network.state_dict()
    assert list(saved.weights) == list(expected)  # with the running mean, without what is not saved
    assert all(torch.equal(saved.weights[name], tensor.to(saved.weights[name])) for name, tensor in expected.items())
    assert {tensor.dtype for tensor in saved.weights.values()} == {torch.float32, torch.int64}
    assert (saved.head, saved.names) == ("Detect", ("cat", "dog"))
    assert saved.architecture == network.yaml


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "gone off")


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert pickle.loads(pickle.dumps(Bomb(trace))) == 8
    trace.unlink()
    torch.save({"model": Network(), "extra": Bomb(trace)}, tmp_path / "net.pt")
    read_checkpoint(tmp_path / "net.pt")
    assert not trace.exists()


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no file"):
        read_checkpoint(tmp_path / "nowhere.pt")
    (tmp_path / "text.pt").write_text("some text")
    with pytest.raises(SourceError, match=r"cannot be read as a checkpoint: .*; give one such as yolov8n.pt"):
        read_checkpoint(tmp_path / "text.pt")
    torch.save({"weight": torch.ones(2)}, tmp_path / "plain.pt")
    with pytest.raises(SourceError, match="does not contain a model of ultralytics"):
        read_checkpoint(tmp_path / "plain.pt")
