"""A training run as an entry of the zoo, with figures that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.training.entries import measure, zoo_entry
from training.toys import network, quadrants, same_weights


def test_a_run_becomes_an_entry_that_the_zoo_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data, test = quadrants(60), quadrants(20, seed=1)
    model = zoo.digits_resnet(num_classes=4)
    trained = sp.train(model, data, "sat", sp.Budget(k=1), epochs=1, batch=20, steps=2, seed=3, held_out=5)
    arguments = {"num_classes": 4}
    card = zoo_entry(trained, tmp_path / "new", "mine", "digits_resnet", test, arguments=arguments, images=8, steps=4)
    assert same_weights(zoo.load("mine", tmp_path / "new"), model)
    assert card == zoo.card("mine", tmp_path / "new")
    assert (card.method, card.seed, card.epochs, card.parameters) == ("sat", 3, 1, 19_444)
    with torch.no_grad():
        clean = float((model(test[0]).argmax(1) == test[1]).float().mean())
    assert card.clean_accuracy == pytest.approx(clean, abs=1e-5)
    assert list(card.robust_accuracy) == [f"sPGD {one}, k=1, 4 steps" for one in ("unprojected", "projected")]
    assert all(value * 8 == round(value * 8) for value in card.robust_accuracy.values())
    assert len(card.curves["loss"]) == 1


def test_the_figures_are_those_of_the_attacks() -> None:
    model, (x, y) = network().eval(), quadrants(12)
    y = model(x).argmax(1)
    y[:3] = (y[:3] + 1) % 4
    found = measure(model, (x, y), sp.Budget(k=3), images=6, steps=5)
    expected = sp.SparsePGD(sp.Budget(k=3), 5)(model, x[:6], y[:6]).robust_accuracy
    assert found["clean_accuracy"] == 0.75
    assert found["robust_accuracy"]["sPGD unprojected, k=3, 5 steps"] == pytest.approx(expected, abs=1e-5)
    assert found["measured"] == "float32; clean: 12 test images; robust: the first 6 of them"
