"""Two processes that train one model: the loss curve and the weights of one process, but for round-off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.distributed import Workers
from sparsepgd.training.team import Team
from support.quadrants import ENVIRONMENT, network, quadrants

SETTINGS: dict[str, Any] = {
    "epochs": 3, "batch": 16, "steps": 3, "multi_eps": 2, "soft_from": 0.3, "held_out": 6, "watch_steps": 2, "ema": 0.9
}  # fmt: skip
SEARCHED = {"keep": True, "searched": 0.5}
PROGRAM = """
import json, os, sys, torch, sparsepgd as sp
from pathlib import Path
from support.quadrants import network, quadrants
method, settings = sys.argv[2], json.loads(sys.argv[3])
trained = sp.train(network(norm=False), quadrants(70), method, sp.Budget(k=1), out=sys.argv[1], **settings)
tasks = Path("/proc/self/task")
left = [name for task in tasks.glob("*/comm") if (name := task.read_text().strip()).startswith("pt_gloo")]
assert not left, f"threads of the group outlive it and abort at the end of Python: {left}"
if os.environ["RANK"] == "0":
    print(json.dumps([trained.curves, trained.model[0].weight.flatten().tolist()]))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0")


@pytest.mark.parametrize(("method", "more"), [("strades+sn", {}), ("anneal-trades", SEARCHED)])
def test_two_workers_train_like_one(method: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Attack, noise, soft targets with their weights, changes that are kept, average and watch included."""
    settings = {**SETTINGS, **more}
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, *TORCHRUN, str(tmp_path / "program.py"), str(tmp_path / "shared")]
    words += [method, json.dumps(settings)]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr
    curves, weights = json.loads(done.stdout.splitlines()[-1])
    data, budget = quadrants(70), sp.Budget(k=1)
    alone = sp.train(network(norm=False), data, method, budget, out=tmp_path / "alone", **settings)
    assert curves.keys() == alone.curves.keys()
    for name in ("loss", "lr"):
        assert curves[name] == pytest.approx(alone.curves[name], rel=1e-4), name
    for name in ("attacked", "clean"):
        assert curves[name] == pytest.approx(alone.curves[name], abs=0.05), name  # an answer may tip
    assert weights == pytest.approx(alone.model[0].weight.flatten().tolist(), rel=1e-3, abs=1e-4)


def test_one_worker_has_nothing_to_share() -> None:
    team, model = Team.of(Workers(), torch.device("cpu")), network()
    value = torch.ones(3)
    assert team.first
    assert team.sum(value) is value
    assert team.network(model, torch.device("cpu")) is model
    assert team.shared(model, torch.device("cpu")) is model
