"""A training run as an entry of the zoo: weights as safetensors, and a card with the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from sparsepgd import atomic
from sparsepgd.errors import UnsupportedError, counted
from sparsepgd.problem import Untargeted
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.runs import identity
from sparsepgd.search import SparseAutoAttack
from sparsepgd.threat import Budget
from sparsepgd.training.state import write_weights
from sparsepgd.zoo import ALL_RUNS, Card, Figure, load
from sparsepgd.zoo.registry import verified

if TYPE_CHECKING:
    from sparsepgd.training.api import Trained

VERSIONS: tuple[Literal["standard"], Literal["paper"]] = ("standard", "paper")  # saa+ and saa


@dataclass(frozen=True)
class Figures:
    """The measured accuracies of a model."""

    clean_accuracy: float
    robust: list[Figure]
    measured: str  # on which images, and how


def zoo_entry(
    trained: Trained,
    folder: str | Path,
    name: str,
    architecture: str,
    test: tuple[Tensor, Tensor],
    *,
    arguments: dict[str, Any] | None = None,
    data: str = "the data",
    classes: Sequence[str] = (),
    command: str = "sp.train",
    images: int = 1000,
    steps: int = 100,
    half: bool = False,
) -> Card:
    """Write NAME.safetensors and NAME.json, and read them back.

    `architecture` and `arguments`: how `zoo.load` builds the network. `test`: images and labels that were not used in
    training. Clean accuracy is measured on all of them, robust accuracy on the first `images`, under saa+ and saa with
    `steps` steps and twice as many queries.
    `classes`: the names of the classes, in the order of the labels.
    `half`: round the weights to float16 before the measurement, also in `trained.model`, so that measurements here and
    later are of the weights that are written.
    """
    folder, model = Path(folder), trained.model
    folder.mkdir(parents=True, exist_ok=True)
    device = next(model.parameters()).device
    state = round_to_half(model) if half else model.state_dict()
    figures = measure(model, test, trained.settings.budgets, images, steps)
    if half:
        figures = replace(figures, measured=f"weights rounded to float16; {figures.measured}")
    count, kind = sum(p.numel() for p in model.parameters()), trained.settings.kind
    card = Card(
        name=name,
        description=f"{type(model).__name__} of {count:,} parameters for {data}; {kind.about}",
        architecture=architecture,
        arguments=arguments or {},
        classes=list(classes),
        budgets=[budget_on_card(one) for one in trained.settings.budgets],
        parameters=count,
        sha256=write_weights(folder / f"{name}.safetensors", state),
        method=kind.name,
        command=command,
        seed=trained.settings.seed,
        epochs=trained.settings.epochs,
        hardware=identity.environment(device)["hardware"],
        torch_version=torch.__version__,
        training_seconds=round(trained.seconds, 1),
        curves={
            key: [None if value is None else round(value, 5) for value in values]
            for key, values in trained.curves.items()
        },
        **vars(figures),
    )
    atomic.write(folder / f"{name}.json", card.to_json().encode())
    load(name, folder)
    return card


def add_robust(folder: str | Path, name: str, figures: Sequence[Figure], measured: str) -> Card:
    """Add robust accuracies to the card of a model, and to its field `measured` on which images and how.

    A figure of all runs replaces one of fewer runs. It is an error if the weights are not those of the card, or if the
    card has a different figure for the same attack.
    """
    card, _ = verified(name, Path(folder))
    figures = [replace(new, robust_accuracy=round(new.robust_accuracy, 5)) for new in figures]
    robust = {old.key: old for old in card.robust if not any(_adds_runs(new, old) for new in figures)}
    for new in figures:
        old = robust.setdefault(new.key, new)
        if old != new:
            raise UnsupportedError(
                f"the card of {name} has {old.robust_accuracy} under {new}, not {new.robust_accuracy}; say what "
                "differs, e.g. the images, to keep both"
            )
    measured = card.measured if measured in card.measured else f"{card.measured}; {measured}"
    try:
        card = Card.of(asdict(replace(card, robust=list(robust.values()), measured=measured)))
    except ValueError as error:
        raise UnsupportedError(f"{error}; the card of {name} was not changed") from None
    atomic.write(Path(folder) / f"{name}.json", card.to_json().encode())
    return card


def _adds_runs(new: Figure, old: Figure) -> bool:
    same = (new.attack, new.budget, new.images) == (old.attack, old.budget, old.images)
    return same and new.attack == ALL_RUNS and new.runs > old.runs


def budget_on_card(budget: Budget) -> dict[str, Any]:
    return {"k": budget.k, "pattern": identity.plain(budget.pattern), "eps": budget.eps}


def round_to_half(model: nn.Module) -> dict[str, Tensor]:
    """The state of the model, rounded to float16 (counters stay integers). The model itself is rounded, too."""
    state = model.state_dict()
    rounded = {key: value.half() if value.is_floating_point() else value for key, value in state.items()}
    for key, value in state.items():
        if not bool(rounded[key].isfinite().all()):
            most = float(value.abs().max())
            raise UnsupportedError(
                f"{key} has the value {most:.3g}, beyond 65504, the maximum of float16; use half=False"
            )
    for key, value in state.items():
        value.copy_(rounded[key])  # the state shares memory with the model
    return rounded


def measure(
    model: nn.Module, test: tuple[Tensor, Tensor], budgets: Sequence[Budget], images: int, steps: int
) -> Figures:
    """Clean accuracy on all test images, and robust accuracy on the first ones under each budget, in float32."""
    device = next(model.parameters()).device
    x, y = (part.to(device) for part in test)
    with borrowed(model, device):
        correct = Oracle(model, Untargeted()).answers(x, 500).argmax(1) == y
    clean_accuracy = round(float(correct.float().mean()), 5)
    images, queries, robust = min(len(x), images), 2 * steps, []
    for budget in budgets:
        for version in VERSIONS:
            attack = SparseAutoAttack(budget, steps, queries, version=version)
            accuracy = round(attack(model, x[:images], y[:images]).robust_accuracy, 5)
            limits = budget_on_card(budget)
            robust.append(Figure(attack.name, accuracy, images, **limits, steps=steps, queries=queries))
    how = f"float32; clean: {counted(len(x), 'test images')}; robust: the first {images} of them"
    return Figures(clean_accuracy, robust, how)
