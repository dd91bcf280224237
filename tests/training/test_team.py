"""Two processes that train one model: the loss curve and the weights of one process, but for round-off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparsepgd.distributed import Workers
from sparsepgd.training.team import Team
from support.quadrants import ENVIRONMENT, network

PROGRAM = """
import json, os, sys, torch, sparsepgd as sp
from pathlib import Path
from support.quadrants import network, quadrants
torch.set_num_threads(1)
trained = sp.train(network(norm=False), quadrants(70), sys.argv[1], sp.Budget(k=1), epochs=3, batch=16, steps=3,
                   multi_eps=2, soft_from=0.3, held_out=6, watch_steps=2, ema=0.9, out=sys.argv[2])
tasks = Path("/proc/self/task")
left = [name for task in tasks.glob("*/comm") if (name := task.read_text().strip()).startswith("pt_gloo")]
assert not left, f"threads of the group outlive it and abort at the end of Python: {left}"
if os.environ.get("RANK", "0") == "0":
    curves = {name: values for name, values in trained.curves.items() if name != "seconds"}
    print(json.dumps([curves, trained.model[0].weight.flatten().tolist()]))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0")


def trained(method: str, folder: Path, *launcher: str) -> tuple[dict[str, list[float]], list[float]]:
    script = folder / "program.py"
    folder.mkdir()
    script.write_text(PROGRAM)
    words = [sys.executable, *launcher, str(script), method, str(folder / "run")]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr
    curves, weights = json.loads(done.stdout.splitlines()[-1])
    return curves, weights


def test_two_workers_train_like_one(tmp_path: Path) -> None:
    """Attack, noise, soft targets with their weights, average and watch included."""
    alone, weights = trained("strades+sn", tmp_path / "alone")
    curves, shared = trained("strades+sn", tmp_path / "shared", *TORCHRUN)
    assert curves.keys() == alone.keys()
    for name in ("loss", "lr"):
        assert curves[name] == pytest.approx(alone[name], rel=1e-4), name
    for name in ("attacked", "clean"):
        assert curves[name] == pytest.approx(alone[name], abs=0.05), name  # an answer may tip
    assert shared == pytest.approx(weights, rel=1e-3, abs=1e-4)


def test_one_worker_has_nothing_to_share() -> None:
    team, model = Team.of(Workers(), torch.device("cpu")), network()
    value = torch.ones(3)
    assert team.first
    assert team.sum(value) is value
    assert team.network(model, torch.device("cpu")) is model
    assert team.shared(model, torch.device("cpu")) is model
