"""Recipes: files that are read, checked and make settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsepgd import options, zoo
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.threat import Budget
from sparsepgd.training.recipes import SOURCES, STARTS, assignments, read
from sparsepgd.training.settings import make_settings

RECIPES = Path(__file__).parents[2] / "recipes"
FILES, QUICK = sorted(RECIPES.glob("*.toml")), sorted(RECIPES.glob("quick/*.toml"))


def test_the_runs_of_the_paper_have_recipes() -> None:
    names = {file.stem for file in FILES}
    assert {f"cifar10-{name}" for name in ("plain", "sat", "strades", "strades-sn", "fast-ls")} <= names
    assert {"cifar10-strades-row", "cifar10-strades-patch", "cifar100-strades", "imagenet100-strades"} <= names


@pytest.mark.parametrize("file", [*FILES, *QUICK], ids=lambda file: str(file.relative_to(RECIPES)))
def test_a_recipe_makes_settings(file: Path) -> None:
    values = read(file)
    assert {"method", "data", "model", "k"} <= values.keys()
    assert values["data"] == file.stem.split("-")[0]
    budget = Budget(values["k"], options.pattern(values.get("pattern", "pixel")))
    made = make_settings(values["method"], budget, {n: v for n, v in values.items() if n not in (*SOURCES, "method")})
    assert made.epochs == values["epochs"]


@pytest.mark.parametrize("file", QUICK, ids=lambda file: file.stem)
def test_a_quick_recipe_starts_from_a_fresh_network_from_another_quick_recipe_or_from_the_zoo(file: Path) -> None:
    kind, _, place = read(file)["model"].partition(":")
    starts = [(RECIPES / "quick" / f"{Path(place).name}.toml") in QUICK, kind == "zoo" and place in zoo.names()]
    assert kind == "preact_resnet18" or any(starts)


def test_the_recipe_of_imagenet_trains_with_1200_pixels() -> None:
    values = read(next(file for file in FILES if file.stem == "imagenet100-strades"))
    assert values["k"] * values["multi_eps"] == 1200
    assert (values["epochs"], values["batch"], values["model"]) == (40, 32, "torchvision:resnet34")


def test_the_starts_are_made_of_known_words() -> None:
    for values in STARTS.values():
        assert assignments([f"{name}={value}" for name, value in values.items()]) == values


def test_assignments_are_read_as_toml_with_bare_text_allowed() -> None:
    words = ["lam=6", "ema=0.995", "nesterov=true", "schedule=one-cycle", "multi_size=[3, 5]"]
    expected = {"lam": 6, "ema": 0.995, "nesterov": True, "schedule": "one-cycle", "multi_size": (3, 5)}
    assert assignments(words) == expected


def test_a_name_that_is_set_twice_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="--set names 'lam' twice; once is enough"):
        assignments(["lam=6", "ema=0.9", "lam=3"])


@pytest.mark.parametrize(("word", "value"), [("True", True), ("False", False), ("true", True), ("false", False)])
def test_true_and_false_are_read_as_toml_and_as_python_writes_them(word: str, value: bool) -> None:
    assert assignments([f"early_stop={word}"])["early_stop"] is value


def test_one_number_is_enough_where_several_are_taken() -> None:
    assert assignments(["multi_size=5"]) == {"multi_size": (5,)}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("early_stop=maybe", "early_stop='maybe'; expected true or false"),
        ("lr=fast", "lr='fast'; expected a number"),
        ("pattern=3", "pattern=3; expected text"),
        ("size=large", "size='large'; expected an integer"),
        ("k=2.5", "k=2.5; expected an integer"),
        ("schedule=cosine", "schedule='cosine'; use one of 'paper'"),
    ],
)
def test_a_value_of_another_kind_is_refused_where_it_is_read(word: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        assignments([word])
    name, _, value = word.partition("=")
    (tmp_path / "r.toml").write_text(f"{name} = {value}" if value[0].isdigit() else f'{name} = "{value}"')
    with pytest.raises(UnsupportedError, match=message):
        read(tmp_path / "r.toml")


def test_a_recipe_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    with pytest.raises(SourceError, match=r"cannot be read: No such file"):
        read(file)
    file.write_text("epochs = = 3")
    with pytest.raises(SourceError, match=r"r.toml is no recipe"):
        read(file)
    file.write_text("epoch = 3")
    with pytest.raises(UnsupportedError, match=r"no use for 'epoch'; known are data, model"):
        read(file)
    with pytest.raises(UnsupportedError, match=r"use NAME=VALUE"):
        assignments(["lam"])
