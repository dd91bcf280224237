"""One lookup for models by name: the package, the folder of SPARSEPGD_WEIGHTS, weights/ of a checkout."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.errors import SourceError
from sparsepgd.zoo import places
from support.tiny_zoo import network, put

NAME = zoo.FULL_SIZE[0]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 22369348\n"


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the variable names; there is a checkout beside it, without weights."""
    (tmp_path / "named").mkdir()
    monkeypatch.setenv("SPARSEPGD_WEIGHTS", str(tmp_path / "named"))
    monkeypatch.setattr(places, "checkout", lambda: tmp_path / "repository")
    return tmp_path / "named"


@pytest.fixture
def weights(named: Path) -> Path:
    """weights/ of the checkout."""
    return named.parent / "repository" / "weights"


def from_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSEPGD_WEIGHTS", raising=False)
    monkeypatch.setattr(places, "checkout", lambda: None)


def test_models_of_all_places_are_found_by_name(named: Path, weights: Path) -> None:
    put(named, "mine", network(1))
    put(weights, NAME, network(2))
    assert zoo.names() == sorted(["mine", NAME, *zoo.bundled_names()])
    assert [zoo.where(name).kind for name in ("small-plain", "mine", NAME)] == ["package", "weights", "weights"]
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for name, seed in (("mine", 1), (NAME, 2)):
        assert torch.equal(zoo.load(name)(x), network(seed)(x))
        for words in (name, f"zoo:{name}"):
            source = sp.load_model(words)
            assert (source.name, source.classes, source.size) == (name, (), None)
            assert torch.equal(source.model(x), network(seed)(x))


def test_subjects_are_found_in_a_folder_of_either(named: Path, weights: Path) -> None:
    put(named / "subjects", "subject-a", network(1))
    put(weights / "subjects", "subject-b", network(2))
    assert {"subject-a", "subject-b"} <= set(zoo.names())
    assert sp.load_model("zoo:subject-b").name == "subject-b"


def test_bundled_models_are_those_of_the_package_only(named: Path) -> None:
    put(named, "mine", network())
    assert sorted(zoo.bundled_names()) == places.package().names()
    assert "mine" not in zoo.bundled_names()


def test_the_package_comes_first_then_the_variable_then_the_checkout(named: Path, weights: Path) -> None:
    for folder, seed in ((weights, 1), (named, 2)):
        put(folder, "mine", network(seed), seed=seed)
        put(folder, "small-plain", network(seed), seed=seed)
    assert zoo.card("mine").seed == 2
    assert zoo.card("small-plain").architecture == "small_preact_resnet"
    (named / "mine.safetensors").unlink()
    assert zoo.card("mine").seed == 1, "a card without weights does not hide a whole model"


def test_a_variable_that_names_no_folder_is_said_when_its_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEPGD_WEIGHTS", str(tmp_path / "gone"))
    assert zoo.card("small-plain").name == "small-plain"
    for ask in (zoo.names, lambda: zoo.load("mine")):
        with pytest.raises(SourceError, match=r"SPARSEPGD_WEIGHTS is '.*gone', which is not a folder; .* or unset it"):
            ask()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from_a_wheel(monkeypatch)
    monkeypatch.setenv("SPARSEPGD_WEIGHTS", "")
    assert zoo.names() == sorted(zoo.bundled_names())


def test_a_full_size_model_that_a_wheel_has_not_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from_a_wheel(monkeypatch)
    message = (
        rf"the weights of '{NAME}' were not found; looked in the package; full-size models are not in the wheel: copy "
        rf"{NAME}.safetensors and {NAME}.json from weights/ of the repository and set SPARSEPGD_W"
    )
    assert NAME not in zoo.names()
    for ask in (zoo.card, zoo.load, sp.load_model):
        with pytest.raises(SourceError, match=message):
            ask(NAME)


def test_a_card_without_weights_names_every_place_that_was_looked_at(named: Path, weights: Path) -> None:
    put(named, "mine", network())
    (named / "mine.safetensors").unlink()
    looked = re.escape(f"looked in the package, {named}, {weights} (no such folder); ")
    for ask in (zoo.load, sp.load_model):
        with pytest.raises(SourceError, match=f"the weights of 'mine' were not found; {looked}"):
            ask("mine")
    with pytest.raises(SourceError, match=r"the weights of 'mine' were not found; .*from where the model was trained"):
        zoo.load("mine", named)


def test_other_files_are_no_cards(named: Path) -> None:
    (named / "notes.json").write_text("{}")
    for name in ("notes", "cifar10_test_500", "../named/notes"):  # the second lies in the package
        with pytest.raises(SourceError, match=r"no model .*; use one of: "):
            zoo.load(name)
        assert not zoo.known(name)


def test_weights_in_half_precision_come_back_in_float32_unchanged(named: Path) -> None:
    put(named, "mine", network(), torch.float16)
    loaded, state = zoo.load("mine").state_dict(), network().state_dict()
    floating = [key for key in state if state[key].is_floating_point()]
    assert any((state[key] != state[key].half().float()).any() for key in floating), "rounding shows at all"
    for key in floating:
        assert loaded[key].dtype == torch.float32
        assert torch.equal(loaded[key], state[key].half().float())


@pytest.mark.parametrize("form", ["pointer", "truncated", "empty", "of another model"])
def test_what_are_not_the_weights_gives_the_checksum_error(form: str, named: Path) -> None:
    put(named, "mine", network(), torch.float16)
    file = named / "mine.safetensors"
    whole = file.read_bytes()
    put(named, "other", network(1), torch.float16)
    other = (named / "other.safetensors").read_bytes()
    file.write_bytes({"pointer": POINTER, "truncated": whole[:-9], "empty": b"", "of another model": other}[form])
    with pytest.raises(
        SourceError, match=r"mine.safetensors has sha256 .*, but its card says .* download it again"
    ) as caught:
        sp.load_model("mine")
    assert ("git lfs pull" in str(caught.value)) == (form == "pointer")


def test_class_names_are_those_of_the_card_whatever_it_says_of_the_data(named: Path) -> None:
    put(named, "mine", network(), description="PreActResNet for CIFAR-10; fast", classes=["ant", "bee", "cat", "dog"])
    assert sp.load_model("mine").classes == ("ant", "bee", "cat", "dog")


def test_a_card_from_before_class_names_is_read_and_has_none(named: Path) -> None:
    put(named, "old", network(), description="PreActResNet for CIFAR-10; fast")
    file = named / "old.json"
    content = json.loads(file.read_text())
    del content["classes"]
    file.write_text(json.dumps(content))
    assert sp.load_model("old").classes == ()


def test_a_checkout_is_one_by_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for top, project, expected in (("src", True, True), ("src", False, False), ("site-packages", True, False)):
        root = tmp_path / f"{top}-{project}"
        module = root / top / "sparsepgd" / "zoo" / "places.py"
        module.parent.mkdir(parents=True)
        if project:
            (root / "pyproject.toml").touch()
        monkeypatch.setattr(places, "__file__", str(module))
        assert places.checkout() == (root if expected else None)
