"""Recipes: files that are read, checked and make settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models._meta import _IMAGENET_CATEGORIES
from typer.testing import CliRunner

from sparsepgd import options, zoo
from sparsepgd.cli import app
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.sources import datasets
from sparsepgd.threat import Budget
from sparsepgd.training import api, inputs, run_folder
from sparsepgd.training.recipes import SOURCES, STARTS, assignments, read
from sparsepgd.training.settings import make_settings

RECIPES = Path(__file__).parents[2] / "recipes"
FILES, PAPER, QUICK, SUBJECTS = (
    sorted(RECIPES.glob(f"{under}*.toml")) for under in ("", "paper/", "quick/", "subjects/")
)


def test_the_runs_of_the_paper_have_recipes() -> None:
    names = ("plain", "sat", "strades", "strades-sn", "fast-ls", "strades-row", "strades-patch")
    others = ("cifar100-strades", "imagenet100-sat", "gtsrb-sat")
    assert {file.stem for file in PAPER} == {f"paper-{name}" for name in (*names, *others)}
    assert {read(file)["epochs"] for file in PAPER if file.stem.removeprefix("paper-") in names} == {100}


def test_recipes_are_settings_of_spgd_train_and_no_second_training_program() -> None:
    assert list(RECIPES.rglob("*.py")) == []


def test_no_two_recipes_have_the_same_name() -> None:
    """Records and cards name a recipe without its folder."""
    names = [file.stem for file in RECIPES.rglob("*.toml")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("file", [*FILES, *PAPER, *QUICK, *SUBJECTS], ids=lambda file: str(file.relative_to(RECIPES)))
def test_a_recipe_makes_settings(file: Path) -> None:
    values = read(file)
    assert {"method", "data", "model", "k"} <= values.keys()
    data = file.stem.removeprefix("paper-").split("-")[0].removesuffix("224")
    assert (data if data in ("cifar100", "imagenet100", "gtsrb", "digits") else "cifar10") in values["data"]
    budget = Budget(values["k"], options.pattern(values.get("pattern", "pixel")))
    wanted = {n: v for n, v in values.items() if n not in (*SOURCES, "method")}
    wanted["others"] = [options.budget(words) for words in values.get("others", ())]
    made = make_settings(values["method"], budget, wanted)
    assert made.epochs == values["epochs"]


@pytest.mark.parametrize("file", QUICK, ids=lambda file: file.stem)
def test_a_quick_recipe_starts_from_a_fresh_network_from_another_quick_recipe_or_from_the_zoo(file: Path) -> None:
    kind, _, place = read(file)["model"].partition(":")
    starts = [(RECIPES / "quick" / f"{Path(place).name}.toml") in QUICK, kind == "zoo" and place in zoo.names()]
    assert kind in ("preact_resnet18", "wide_resnet28_5") or any(starts)


def test_subjects_start_from_the_plain_one() -> None:
    assert len(SUBJECTS) == 20
    starts = {file.stem: read(file)["model"] for file in SUBJECTS}
    assert starts.pop("subject-plain") == "small_preact_resnet"
    assert set(starts.values()) == {"zoo:subject-plain"}


@pytest.mark.parametrize(("name", "k", "epochs"), [("imagenet100", 200, 40), ("gtsrb", 600, 20)])
def test_large_images_are_trained_on_as_in_the_paper(name: str, k: int, epochs: int) -> None:
    values = read(RECIPES / "paper" / f"paper-{name}-sat.toml")
    assert (values["method"], values["model"], values["size"], values["k"]) == ("sat", "resnet34", 224, k)
    assert (values["epochs"], values["batch"], values["k"] * values["multi_eps"]) == (epochs, 32, 1200)


@pytest.mark.parametrize(
    "name", ["paper/paper-imagenet100-sat", "paper/paper-gtsrb-sat", "imagenet100-anneal", "gtsrb224-anneal"]
)
def test_large_images_are_trained_on_from_their_folders(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two classes, small pictures and budgets; everything else as in the recipe."""
    monkeypatch.setattr(datasets, "GTSRB_TEST", 2)
    monkeypatch.setattr(api, "TESTED", 2)
    monkeypatch.chdir(tmp_path)
    data, method = name.replace("gtsrb224", "gtsrb").split("-")[-2:]
    folders = {"imagenet100": ("train/n01440764", "train/n01484850", "val/n01440764", "val/n01484850"),
               "gtsrb": ("00000", "00001")}[data]  # fmt: skip
    for number, folder in enumerate(folders):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (20, 20), (60 * number, 80 * i, 0)).save(tmp_path / folder / f"{i}.png")
    small = ("--k", "2", "--epochs", "1", "--set", "size=12", "--set", "batch=2", "--set", "steps=1")
    small += ("--set", "steps_last=2", "--set", "held_out=1") if method == "anneal" else ()
    words = ("--recipe", str(RECIPES / f"{name}.toml"), "--data", f"{data}:{tmp_path}", "-q")
    done = CliRunner().invoke(app, ["train", *words, *small, "--out", "o"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    card = zoo.card("model", tmp_path / "o")
    trained = {"sat": "sat", "anneal": "anneal-trades"}[method]
    assert (card.architecture, card.method, card.arguments["num_classes"]) == ("resnet34", trained, 2)


def test_the_classes_of_imagenet_100_are_the_first_hundred_and_hold_those_that_the_paper_names() -> None:
    lines = [line.split(None, 1) for line in (RECIPES / "imagenet100-classes.txt").read_text().splitlines()]
    wnids, names = zip(*(line for line in lines if line[0] != "#"), strict=True)
    assert (len(set(wnids)), wnids[0], wnids[-1]) == (100, "n01440764", "n01855672")
    assert list(wnids) == sorted(wnids)
    assert list(names) == _IMAGENET_CATEGORIES[:100]
    captions = {"cock", "triceratops", "junco", "vulture", "African crocodile", "quail", "red-breasted merganser"}
    assert captions <= set(names)


def test_the_starts_are_made_of_known_words() -> None:
    for values in STARTS.values():
        assert assignments([f"{name}={value}" for name, value in values.items()]) == values


def test_assignments_are_read_as_toml_with_bare_text_allowed() -> None:
    words = ["lam=6", "ema=0.995", "nesterov=true", "schedule=one-cycle", "multi_size=[3, 5]"]
    expected = {"lam": 6, "ema": 0.995, "nesterov": True, "schedule": "one-cycle", "multi_size": (3, 5)}
    assert assignments(words) == expected


def test_a_name_that_is_set_twice_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="--set has 'lam' twice"):
        assignments(["lam=6", "ema=0.9", "lam=3"])


@pytest.mark.parametrize(("word", "value"), [("True", True), ("False", False), ("true", True), ("false", False)])
def test_true_and_false_are_read_as_toml_and_as_python_writes_them(word: str, value: bool) -> None:
    assert assignments([f"early_stop={word}"])["early_stop"] is value


def test_one_number_is_enough_where_several_are_taken() -> None:
    assert assignments(["multi_size=5"]) == {"multi_size": (5,)}
    assert assignments(["others=1 row"]) == {"others": ("1 row",)}
    assert assignments(['others=["1 row", "2 patch:3x4"]']) == {"others": ("1 row", "2 patch:3x4")}


def test_the_wide_network_is_made_by_its_recipe() -> None:
    x, y = torch.rand(4, 3, 32, 32), torch.arange(4)
    made = inputs.network(read(RECIPES / "quick" / "cifar10-wide-plain.toml")["model"], inputs.Datasets("d", (x, y)), 0)
    assert (made.architecture, made.arguments) == ("wide_resnet28_5", {"num_classes": 4, "activation": "softplus"})


NEW = [
    file for file in (*QUICK, *SUBJECTS) if file.stem.split("-", 1)[1] in ("anneal-row", "anneal-patch", "anneal-union")
]


@pytest.mark.parametrize("file", NEW, ids=lambda file: file.stem)
def test_structures_are_trained_against_by_recipe(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits and a small network; everything else as in the recipe."""
    monkeypatch.setattr(api, "TESTED", 2)
    monkeypatch.chdir(tmp_path)
    x = torch.rand(24, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    np.savez("d.npz", x_train=x[:20], y_train=torch.arange(20) % 2, x_test=x[20:], y_test=torch.arange(4) % 2)
    small = ("--k", "2", "--epochs", "2", "--set", "batch=5", "--set", "steps=1", "--set", "steps_last=2")
    small += ("--set", "held_out=2", "--model", "small_preact_resnet")
    words = ("--recipe", str(file), "--data", "npz:d.npz", "-q", *small, "--out", "o")
    done = CliRunner().invoke(app, ["train", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = {
        (one.k, one.pattern["kind"], one.attack) for one in zoo.card("model", tmp_path / "o").robust if one.pattern
    }
    own = {"row": "Rows", "patch": "Patches", "union": "Pixels"}[file.stem.rsplit("-", 1)[1]]
    others = [(1, "Rows"), (1, "Patches")] if own == "Pixels" else []
    assert found == {(k, pattern, name) for k, pattern in [(2, own), *others] for name in ("saa", "saa+")}
    assert run_folder.load(tmp_path / "o").configuration["settings"]["keep"] is True


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("early_stop=maybe", "early_stop='maybe'; expected true or false"),
        ("lr=fast", "lr='fast'; expected a number"),
        ("pattern=3", "pattern=3; expected text"),
        ("size=large", "size='large'; expected an integer"),
        ("k=2.5", "k=2.5; expected an integer"),
        ("others=3", r"others\.0=3; expected text"),
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
    with pytest.raises(SourceError, match=r"r.toml is not a valid recipe"):
        read(file)
    file.write_text("epoch = 3")
    with pytest.raises(UnsupportedError, match=r"an unknown setting 'epoch'; use one of data, model"):
        read(file)
    with pytest.raises(UnsupportedError, match=r"use NAME=VALUE"):
        assignments(["lam"])
