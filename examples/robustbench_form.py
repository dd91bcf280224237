"""A checkpoint in the format of RobustBench or the official code, without either package.

Models of RobustBench are loaded by name, with RobustBench's own loader, which needs AutoAttack
(pip install 'sparsepgd[robustbench]' git+https://github.com/fra31/auto-attack):

    spgd evaluate --model robustbench:Standard --data cifar10 -n 1000
    spgd evaluate --model robustbench:cifar10/L2/Rice2020Overfitting --data cifar10 -n 1000

A file that you already have is loaded by the name of its network:

    spgd evaluate --model wide_resnet28_10 --weights Standard.pt --data cifar10
    spgd evaluate --model resnet18 --weights vanilla.pth --normalise cifar10 --data cifar10

sparsepgd/zoo/checkpoints.py lists the keys that are renamed or removed. Here the file is made from a shipped model,
wrapped as training scripts do.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import sparsepgd as sp
from sparsepgd import zoo

state = zoo.load("small-plain").state_dict()
with TemporaryDirectory() as folder:
    file = Path(folder) / "checkpoint.pt"
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 40}, file)
    source = sp.load_model("small_preact_resnet", weights=file)
print(source.about)

x, y = sp.load_data("cifar10" if Path("data/cifar-10-batches-py").is_dir() else "bundled", 32, choose="balanced")
print(sp.SparseAutoAttack(sp.Budget(k=10), steps=30, queries=100, version="standard")(source.model, x, y))
