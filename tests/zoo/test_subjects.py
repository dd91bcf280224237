"""The subjects of this repository are what their cards say. The sdist has none, so nothing to test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from sparsepgd import zoo

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "weights" / "subjects"
NAMES = sorted(file.stem for file in WEIGHTS.glob("*.safetensors"))

pytestmark = pytest.mark.skipif(not NAMES, reason="no weights/subjects beside the tests")


def test_every_subject_has_a_recipe_a_card_and_a_record() -> None:
    assert set(NAMES) <= {file.stem for file in (ROOT / "recipes" / "subjects").glob("*.toml")}
    assert zoo.names(WEIGHTS) == NAMES
    assert set(NAMES) <= {file.stem for file in (ROOT / "benchmarks" / "results").glob("subject-*.json")}


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_float16_and_at_most_1_mb_and_the_card_is_that_of_them(name: str) -> None:
    file, card = WEIGHTS / f"{name}.safetensors", zoo.card(name, WEIGHTS)
    assert file.stat().st_size <= 1_000_000
    with safe_open(file, "pt") as tensors:
        assert {tensors.get_slice(key).get_dtype() for key in tensors.keys()} <= {"F16", "I64"}  # noqa: SIM118
    assert card.name == name
    assert "float16" in card.measured
    assert tuple(card.classes) == zoo.CIFAR10_CLASSES
    record = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    assert (record["epochs"], record["clean"]) == (card.epochs, card.clean_accuracy)
    assert [one["robust_accuracy"] for one in record["robust"]] == [one.robust_accuracy for one in card.robust]
    model, (x, y) = zoo.load(name, WEIGHTS), zoo.bundled_images(100)
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).float().mean())
    assert accuracy == pytest.approx(card.clean_accuracy, abs=0.12)  # 100 images of 1,000
