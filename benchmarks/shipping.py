"""Weights and card of a model as they are shipped: float16, with the cost of all stages and the measured accuracy."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provenance import named

from sparsepgd import atomic, options, zoo
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.report.leaderboard import Contender
from sparsepgd.search import SparseAutoAttack
from sparsepgd.sources import TRAINED, load_data
from sparsepgd.threat import Budget
from sparsepgd.training.entries import budget_on_card, round_to_half
from sparsepgd.training.run_folder import TrainingRecord
from sparsepgd.training.state import write_weights


def shipped(name: str, folder: Path, before: Sequence[zoo.Card], about: str, data: str, weights: Path) -> zoo.Card:
    """Write NAME.safetensors and NAME.json to `weights`, from the folder of a finished training. `before`: the cards of
    the stages before it. `about`: its description, apart from its size. `data`: contains the test images."""
    own, model = zoo.card(TRAINED, folder), zoo.load(TRAINED, folder).eval()
    stages, state = [*before, own], round_to_half(model)
    x, y = load_data(data)
    with borrowed(model, x.device):
        clean = float((Oracle(model).answers(x, 500).argmax(1) == y).float().mean())
    weights.mkdir(parents=True, exist_ok=True)
    card = replace(
        own,
        name=name,
        description=f"{about}; {own.parameters:,} parameters",
        sha256=write_weights(weights / f"{name}.safetensors", state),
        command=" && ".join(stage.command.replace(data, named(data)) for stage in stages),
        epochs=sum(stage.epochs for stage in stages),
        training_seconds=round(sum(stage.training_seconds for stage in stages), 1),
        clean_accuracy=round(clean, 5),
        measured=f"weights rounded to float16, float32; clean: {len(x)} test images",
        classes=list(zoo.CIFAR10_CLASSES),
        robust=[],
    )
    atomic.write(weights / f"{name}.json", card.to_json().encode())
    return card


def figure(attack: SparseAutoAttack, share: float, images: int, seed: int = 0) -> zoo.Figure:
    lengths = {"steps": attack.steps, "queries": attack.queries}
    return zoo.Figure(attack.name, share, images, **budget_on_card(attack.budget), **lengths, seed=seed)


def all_runs(entered: Contender) -> list[zoo.Figure]:
    """The figure of all runs of a leaderboard record together; [] for a single run."""
    budget = {name: entered.budget[name] for name in ("k", "pattern", "eps")}
    one = zoo.Figure(zoo.ALL_RUNS, entered.robust_accuracy, entered.images, **budget, runs=len(entered.attempts))
    return [one] if one.runs > 1 else []


def first_line(recipe: Path) -> str:
    """The description in the first line of a recipe."""
    return recipe.read_text().splitlines()[0].removeprefix("# ").removesuffix(".")


def budgets_of(recipe: dict[str, Any]) -> dict[str, Budget]:
    """The budgets that a recipe trains for, by descriptions such as ``20 pixel``; that of ``k`` comes first."""
    words = [f"{recipe['k']} {recipe.get('pattern', 'pixel')}", *recipe.get("others", ())]
    return {word: options.budget(word) for word in words}


def seconds_an_epoch(training: TrainingRecord) -> float:
    """The median over the epochs."""
    return round(statistics.median(value for value in training.curves["seconds"] if value is not None), 2)


def hyphened(words: str) -> str:
    """``1 patch:5`` -> 1-patch-5, for the name of a folder."""
    return re.sub(r"\W+", "-", words)
