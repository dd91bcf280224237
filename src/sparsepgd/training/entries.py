"""A training run as an entry of the zoo: weights as safetensors, and a card with all that was measured."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from sparsepgd.evaluation import atomic, identity
from sparsepgd.problem import Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.search import SparsePGD
from sparsepgd.threat import Budget
from sparsepgd.training.api import Trained
from sparsepgd.zoo import Card, load
from sparsepgd.zoo.networks import PreActResNet

GRADIENTS: tuple[Literal["unprojected"], Literal["projected"]] = ("unprojected", "projected")


def zoo_entry(
    trained: Trained,
    folder: str | Path,
    name: str,
    architecture: str,
    test: tuple[Tensor, Tensor],
    *,
    arguments: dict[str, Any] | None = None,
    data: str = "the data",
    command: str = "sp.train",
    images: int = 1000,
    steps: int = 100,
) -> Card:
    """Write NAME.safetensors and NAME.json, and read them back.

    `architecture` and `arguments`: how `zoo.load` builds the network. `test`: images and labels that were not trained
    on; clean accuracy is that of all, robust accuracy that of the first `images` under sPGD of `steps` steps.
    """
    folder, model = Path(folder), trained.model
    folder.mkdir(parents=True, exist_ok=True)
    device = next(model.parameters()).device
    weights = save({key: value.cpu().contiguous() for key, value in model.state_dict().items()})
    count, kind = sum(p.numel() for p in model.parameters()), trained.settings.kind
    card = Card(
        name=name,
        description=f"{_family(model)} of {count:,} parameters for {data}; {kind.about}",
        architecture=architecture,
        arguments=arguments or {},
        parameters=count,
        sha256=hashlib.sha256(weights).hexdigest(),
        method=kind.name,
        command=command,
        seed=trained.settings.seed,
        epochs=trained.settings.epochs,
        hardware=identity.environment(device)["hardware"],
        torch_version=torch.__version__,
        training_seconds=round(trained.seconds, 1),
        curves={key: [round(value, 5) for value in values] for key, values in trained.curves.items()},
        **measure(model, test, trained.settings.budget, images, steps),
    )
    atomic.write(folder / f"{name}.safetensors", weights)
    atomic.write(folder / f"{name}.json", card.to_json().encode())
    load(name, folder)
    return card


def measure(model: nn.Module, test: tuple[Tensor, Tensor], budget: Budget, images: int, steps: int) -> dict[str, Any]:
    """Clean accuracy of all test images, and robust accuracy of the first ones, in float32."""
    device = next(model.parameters()).device
    x, y = (part.to(device) for part in test)
    with borrowed(model, device):
        said = Oracle(model, Untargeted()).answers(x, 500).argmax(1)
    robust = {}
    for gradient in GRADIENTS:
        result = SparsePGD(budget, steps, gradient)(model, x[:images], y[:images])
        robust[f"sPGD {gradient}, k={budget.k}, {steps} steps"] = round(result.robust_accuracy, 5)
    how = f"float32; clean: {len(x)} test images; robust: the first {min(len(x), images)} of them"
    return {"clean_accuracy": round(float((said == y).float().mean()), 5), "robust_accuracy": robust, "measured": how}


def _family(model: nn.Module) -> str:
    return "PreActResNet" if isinstance(model, PreActResNet) else type(model).__name__
