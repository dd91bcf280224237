"""A model small enough to be written in every test, with its card."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from sparsepgd import zoo


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return zoo.digits_resnet(num_classes=4).eval()


def put(folder: Path, name: str, model: nn.Module, dtype: torch.dtype = torch.float32, **changes: Any) -> zoo.Card:
    """Write weights and card to the folder."""
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in model.state_dict().items()}
    weights = save({key: value.contiguous() for key, value in state.items()})
    about: dict[str, Any] = {
        "name": name,
        "description": "PreActResNet of 19,444 parameters for a test",
        "architecture": "digits_resnet",
        "arguments": {"num_classes": 4},
        "parameters": 19_444,
        "sha256": hashlib.sha256(weights).hexdigest(),
        "method": "fast-ls",
        "command": "python recipes/none.py --seed 3",
        "seed": 3,
        "epochs": 7,
        "hardware": "one core",
        "torch_version": "2.6.0",
        "training_seconds": 12.0,
        "clean_accuracy": 0.875,
        "measured": "float32; clean: 16 test images",
        "robust": [
            zoo.Figure("spgd-unprojected", 0.75, 16, 20, steps=100),
            zoo.Figure("saa", 0.625, 16, 20, steps=10_000),
        ],
    }
    card = zoo.Card(**{**about, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.safetensors").write_bytes(weights)
    (folder / f"{name}.json").write_text(card.to_json())
    return card
