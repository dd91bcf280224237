"""`spgd zoo` and the commands that take a model of the zoo by its name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sparsepgd import zoo
from sparsepgd.cli import app
from sparsepgd.errors import SourceError
from sparsepgd.zoo import places
from support.quadrants import quadrants
from support.tiny_zoo import network, put

NAME = zoo.FULL_SIZE[0]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """weights/ of a checkout."""
    monkeypatch.delenv("SPARSEPGD_WEIGHTS", raising=False)
    monkeypatch.setattr(places, "checkout", lambda: tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "weights"


def spgd(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    if done.exception:
        raise done.exception
    return done.stdout


def test_the_list_has_the_lowest_robust_accuracy_with_its_attack_and_the_place(weights: Path) -> None:
    for name in zoo.FULL_SIZE:
        put(weights, name, network(), parameters=11_172_170)
    put(weights, "untested-model-of-a-long-name", network(), robust=[])
    said = spgd("zoo")
    assert max(map(len, said.splitlines())) <= 80
    rows = {line.split()[0]: line.split() for line in said.splitlines()}
    assert rows[NAME][:5] == [NAME, "11.17", "M", "87.5%", "62.5%"]
    assert "untested-model-of-a-long-name" in rows, "a name can be copied"
    assert rows[NAME][-1] == "weights"
    assert "spgd-projected," in said, "the lowest of small-plain"
    assert rows["small-strades"][-1] == "package"
    assert "-" in next(line for line in said.splitlines() if line.startswith("untested")).split()
    assert "not installed" not in said
    assert "saa, k=20" in said


def test_the_list_names_full_size_models_that_are_not_here(weights: Path) -> None:
    said = " ".join(spgd("zoo").split())
    assert f"not installed: {', '.join(zoo.FULL_SIZE)}; they are in weights/ of the repository" in said


def test_a_name_shows_the_whole_card(weights: Path) -> None:
    card = put(weights, NAME, network())
    lines = spgd("zoo", NAME).splitlines()
    said = "\n".join(lines)
    whole = (card.description, card.sha256, card.command, card.measured, str(weights / f"{NAME}.safetensors"))
    assert all(one in said for one in whole)
    assert "trained  fast-ls, 7 epochs, seed 3, 12 s on one core, torch 2.6.0" in lines
    assert "clean    87.5%" in lines
    first = lines.index("robust   62.5% saa, k=20, 10000 steps, 16 images")
    assert lines[first + 1] == "         75.0% spgd-unprojected, k=20, 100 steps, 16 images"


def test_a_model_whose_weights_are_not_here_is_refused_by_every_command(weights: Path) -> None:
    for words in (("zoo", NAME), ("evaluate", "--model", NAME), ("evaluate", "--model", f"zoo:{NAME}")):
        with pytest.raises(SourceError, match=f"the weights of '{NAME}' were not found; looked in the package, "):
            spgd(*words)


def test_evaluate_takes_a_model_of_weights_by_its_bare_name(weights: Path) -> None:
    model = zoo.load("small-plain")
    about = zoo.card("small-plain")
    put(weights, "mine", model, architecture=about.architecture, arguments=about.arguments)
    said = spgd("evaluate", "--model", "mine", "-n", "4", "--steps", "2", "--device", "cpu", "--out", "run")
    assert "mine" in said
    assert json.loads((weights.parent / "run" / "run.json").read_bytes())["configuration"]["model"]["name"] == "mine"


def test_evaluate_without_a_model_stays_with_the_small_ones(weights: Path) -> None:
    put(weights, "mine", network())
    said = spgd("evaluate", "-n", "2", "--steps", "2", "--device", "cpu", "--no-save")
    assert "small-plain" in said
    assert "mine" not in said


def test_training_goes_on_from_a_bare_name_and_writes_a_card(weights: Path) -> None:
    put(weights, "mine", network())
    x, y = quadrants(20)
    np.savez(weights.parent / "q.npz", x=(x * 255).byte().numpy(), y=y.numpy())
    words = ("--data", "npz:q.npz", "--method", "plain", "--epochs", "1", "--k", "1", "--batch", "8", "--device", "cpu")
    spgd("train", "--model", "mine", *words, "--out", "t")
    card = zoo.card("model", weights.parent / "t")
    assert (card.architecture, card.arguments) == ("digits_resnet", {"num_classes": 4})
