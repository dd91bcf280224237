"""The full-size models of this repository are what their cards say. The sdist has none, so nothing to test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from sparsepgd import zoo

WEIGHTS = Path(__file__).parents[2] / "weights"
NAMES = sorted(file.stem for file in WEIGHTS.glob("*.safetensors"))

pytestmark = pytest.mark.skipif(not NAMES, reason="no weights/ beside the tests")


def test_every_model_is_known_to_the_wheel_by_name_and_has_a_card() -> None:
    assert sorted(zoo.FULL_SIZE) == NAMES, "name them in FULL_SIZE of zoo/places.py"
    assert zoo.names(WEIGHTS) == NAMES
    assert len(NAMES) <= 3


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_float16_and_at_most_25_mb(name: str) -> None:
    file = WEIGHTS / f"{name}.safetensors"
    assert file.stat().st_size <= 25_000_000
    with safe_open(file, "pt") as tensors:
        kinds = {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118
    assert kinds <= {"F16", "I64"}


@pytest.mark.parametrize("name", NAMES)
def test_the_card_tells_the_origin_and_figures_of_the_rounded_weights(name: str) -> None:
    card = zoo.card(name, WEIGHTS)
    assert card.name == name
    assert card.command
    assert "float16" in card.measured
    assert tuple(card.classes) == zoo.CIFAR10_CLASSES
    attacks = {one.attack for one in card.robust}
    assert attacks >= {"saa"}
    assert attacks & {"saa+", "spgd-unprojected"}
    assert all(one.robust_accuracy <= card.clean_accuracy + 0.05 for one in card.robust)  # of fewer images


@pytest.mark.parametrize("name", NAMES)
def test_clean_accuracy_is_that_of_the_card(name: str) -> None:
    model, (x, y) = zoo.load(name, WEIGHTS), zoo.bundled_images(100)
    assert sum(p.numel() for p in model.parameters()) == zoo.card(name, WEIGHTS).parameters
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).float().mean())
    assert accuracy == pytest.approx(zoo.card(name, WEIGHTS).clean_accuracy, abs=0.12)  # 100 images of 10,000


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_of_training_is_that_of_all_stages(name: str) -> None:
    card, results = zoo.card(name, WEIGHTS), WEIGHTS.parent / "benchmarks" / "results"
    recipes = re.findall(r"--recipe recipes/quick/(\S+)\.toml", card.command)
    records = [json.loads((results / f"train-{recipe}.json").read_text()) for recipe in recipes]
    assert len(records) > 1
    stages = records[-1].get("all stages", {kind: sum(one[kind] for one in records) for kind in ("epochs", "seconds")})
    assert card.epochs == stages["epochs"] > records[-1]["epochs"]
    assert card.training_seconds == pytest.approx(stages["seconds"])
    assert card.training_seconds > records[-1]["seconds"]


@pytest.mark.parametrize("name", NAMES)
def test_the_card_quotes_the_lowest_that_any_record_of_its_budget_has_reached(name: str) -> None:
    card, results = zoo.card(name, WEIGHTS), WEIGHTS.parent / "benchmarks" / "results"
    records = [json.loads(file.read_text()) for file in sorted(results.glob(f"anneal-*{name}.json"))]
    reached = [
        row["left"] / row["images"]
        for record in records
        for row in record["runs"]
        if record["data"] == "cifar10-test-1000" and "pattern" not in row and row["images"] == 1000
    ]
    for record in (json.loads(file.read_text()) for file in sorted(results.glob("train-*.json"))):
        if record.get("shipped as") == name:
            reached += [one["robust_accuracy"] for one in record["saa+"]]
    if (file := results / f"measured-{name}.json").is_file():
        reached += [one["robust_accuracy"] for one in json.loads(file.read_text())["robust"]]
    assert card.lowest is not None
    assert card.lowest.robust_accuracy == min(reached)
