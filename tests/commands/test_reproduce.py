"""`spgd reproduce`: the list, the price, one recipe from end to end; every recipe at its smallest at night."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsepgd.cli import app
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.zoo import places

NEEDS_MORE = ("cifar100", "gtsrb", "detection")


@pytest.fixture(autouse=True)
def _without_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an installation: weights/ of this checkout is not looked at."""
    monkeypatch.setattr(places, "checkout", lambda: None)


def spgd(*words: str) -> str:
    done = CliRunner().invoke(app, ["reproduce", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_without_a_name_the_recipes_are_listed_with_their_places_in_the_paper() -> None:
    said = spgd()
    assert all(name in said for name in RECIPES)
    assert "(Table VIII, Table I)" in said


def test_a_dry_run_says_the_price_and_does_nothing(tmp_path: Path) -> None:
    said = spgd("tolerance", "--dry-run", "-n", "2", "--out", str(tmp_path / "out"))
    assert "5 runs, at most about 420 passes" in said  # 5 variants, 2 images, 21 evaluations, both ways
    assert "measured now" in said
    assert not (tmp_path / "out").exists()


def test_numbers_are_printed_beside_the_papers_with_reasons(tmp_path: Path) -> None:
    said = spgd("tolerance", "-q", "-n", "2", "--out", str(tmp_path))
    assert "Fast-EG-l1, paper 18.1 18.1 18.5 18.5 18.5" in said
    assert "model: small-plain, a substitute from this package; the paper's is Fast-EG-l1 (PRN-18)" in said
    assert "images: 2 of bundled" in said
    kept = json.loads((tmp_path / "tolerance" / "numbers.json").read_text())
    assert [number["column"] for number in kept["numbers"]] == ["1", "3", "5", "7", "10"]
    assert (tmp_path / "tolerance" / "table.md").is_file()


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    for words, match in (
        (["alpha", "--model", "zoo:small-plain", "--model", "zoo:small-strades"], "two models for Fast-EG-l1"),
        (["cifar100"], "give a model and its images"),
        (["alpha", "--scale", "large"], "scale 'large'; use one of"),
        (["alpha", "-n", "1000"], "n=1000, but bundled holds 500 images; use 1 <= n <= 500"),
    ):
        done = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path)])
        assert isinstance(done.exception, UnsupportedError | SourceError)
        assert match in str(done.exception)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all recipes, so that they share their attacks."""
    return tmp_path_factory.mktemp("night")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in NEEDS_MORE])
def test_every_recipe_runs_at_its_smallest(name: str, night: Path) -> None:
    said = spgd(name, "-q", "--out", str(night))
    assert "why they may differ" in said
    kept = json.loads((night / name / "numbers.json").read_text())
    assert kept["numbers"]
    assert all(number["here"] is None or number["here"] >= 0 for number in kept["numbers"])
