"""Every record and every model card says where it comes from."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch

import sparsepgd as sp
from sparsepgd.training.data import split
from sparsepgd.training.settings import make_settings
from sparsepgd.zoo import ALL_RUNS, Card
from support.scripts import ROOT, output, script

RECORDS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
FOLDERS = (ROOT / "weights", ROOT / "src" / "sparsepgd" / "zoo" / "bundled")
CARDS = sorted(file.with_suffix(".json") for folder in FOLDERS for file in folder.glob("**/*.safetensors"))
OLDER = {  # commits with which records came here that lack a field. None is added: a new record has every field
    "4cc5296", "6cce714", "7339dea", "79ea4b8", "80ce449", "88aecd6", "9c35c19", "aa2b348", "bd9d80d", "bfb8bbb",
    "e213e80", "e24de56", "ec60eed", "fde71e9", "ff7cf68",
}  # fmt: skip
FULL = {  # by field, as most records have it
    "commit": {"commit": "abc"},
    "command": {"command": "python x"},
    "seeds": {"seed": 0},
    "hardware": {"hardware": "a device"},
    "torch": {"torch": "2"},
    "data": {"data": "images.npz"},
    "checksum": {"sha256": "6b86"},
    "images": {"images": 2},
    "lengths": {"steps": 3},
    "seconds": {"seconds": 0.5},
}


FILE = re.compile(r"[\w./-]+\.(?:py|toml|npz|safetensors|csv|pt)\b|(?<=folder:)[\w./-]+|(?<=trained:)[\w./-]+")


@pytest.fixture
def provenance(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("provenance", monkeypatch)


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_a_record_has_every_field_or_is_older_and_names_those_that_it_lacks(file: Path, provenance: Any) -> None:
    record = json.loads(file.read_text())
    assert provenance.missing(record) == record.get("unknown", [])
    assert record.get("numbers since") in (OLDER if "unknown" in record else {None}), "a new record has every field"


def commands(value: Any) -> Iterator[str]:
    """All commands of a record or a card, also those of its parts."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    for name, inner in value.items() if isinstance(value, dict) else ():
        told = inner if isinstance(inner, list) else [inner]
        yield from told if name in ("command", "commands") and inner is not None else commands(inner)


def named_files(command: str) -> set[str]:
    """The files that a command reads, and the folders of data and of weights."""
    outputs = r"--(?:out|record|records)[ =]\S+"
    return {file for word in shlex.split(re.sub(outputs, "", command)) for file in FILE.findall(word)}


@pytest.mark.parametrize("file", [*RECORDS, *CARDS], ids=lambda file: file.stem)
def test_the_files_of_a_command_are_here_or_the_page_says_where_they_come_from(file: Path) -> None:
    page = (ROOT / "docs" / "reproducing.md").read_text()
    names = {name for command in commands(json.loads(file.read_text())) for name in named_files(command)}
    unknown = {name for name in names if not (ROOT / name).is_file() and f"`{name}`" not in page}
    assert {name for name in unknown if not name.startswith("runs/")} == set(), "runs/ is written by trainings"


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_the_scripts_and_recipes_of_a_record_are_in_one_of_its_commits(file: Path) -> None:
    record = json.loads(file.read_text())
    told = [record.get(name, "") for name in ("runs at", "commit", "commit of attacks", "numbers since")]
    commits = re.findall(r"\b[0-9a-f]{7,}\b", " ".join(told))
    there: set[str] = set()
    for one in commits:
        asked = ["git", "ls-tree", "-r", "--name-only", one]
        tree = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False) if which("git") else None
        if tree is None or tree.returncode:
            pytest.skip("without the history of the repository")
        there.update(tree.stdout.splitlines())
    named = {name for command in commands(record) for name in named_files(command)}
    assert {name for name in named if name.startswith(("benchmarks/", "recipes/"))} <= there


def test_the_files_of_a_command_are_found() -> None:
    assert named_files("python benchmarks/a.py --data npz:b.npz --model c=d.safetensors --out benchmarks/e.json") == {
        "benchmarks/a.py", "b.npz", "d.safetensors",
    }  # fmt: skip
    assert named_files("spgd train --recipe recipes/a.toml --model x=b.py:c --data folder:d && e.csv") == {
        "recipes/a.toml", "b.py", "d", "e.csv",
    }  # fmt: skip
    assert [*commands({"commands": ["a", "b"], "c": [{"command": "d"}, {"command": None}]})] == ["a", "b", "d"]


def test_the_files_that_commands_name_can_be_made(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {"x_train": 1020, "y_train": 1020, "x_test": 1001, "y_test": 1001}
    shapes = {name: (count, 32, 32, 3) if name[0] == "x" else (count,) for name, count in parts.items()}
    whole = {name: rng.integers(0, 10, shape, dtype=np.uint8) for name, shape in shapes.items()}
    np.savez(tmp_path / "cifar10.npz", **whole)
    program, files = ROOT / "benchmarks" / "data_files.py", tmp_path / "files"
    told = output(program, "--cifar10", str(tmp_path), "--out", str(files), cwd=tmp_path)
    assert (files / "cifar10.npz").read_bytes() == (tmp_path / "cifar10.npz").read_bytes()
    sums = {line.split()[1]: line.split()[0] for line in told.splitlines()}
    assert sums["bundled.npz"] == "076dc2e29d86c8b1", "of the records ratio-cpu-*"
    assert sums["cifar10.npz"] == hashlib.sha256((tmp_path / "cifar10.npz").read_bytes()).hexdigest()[:16]
    with np.load(files / "test1000.npz") as test, np.load(files / "heldout.npz") as held:
        assert np.array_equal(test["x_test"], whole["x_test"][:1000])
        assert np.array_equal(test["y_test"], whole["y_test"][:1000])
        settings = make_settings("plain", sp.Budget(k=1), {"held_out": 1000})
        assert np.array_equal(held["x"], whole["x_train"][split(1020, settings)[1]])
        assert len(held["y"]) == 1000


@pytest.mark.parametrize("field", FULL)
def test_a_record_that_lacks_a_field_is_noticed(field: str, provenance: Any) -> None:
    assert list(FULL) == list(provenance.ORIGIN)
    full = {name: value for one in FULL.values() for name, value in one.items()}
    assert provenance.missing(full) == []
    (name,) = FULL[field]
    assert provenance.missing({**full, name: None}) == [field]
    assert provenance.missing({other: value for other, value in full.items() if other != name}) == [field]


def test_every_run_of_a_record_has_its_seed_or_the_record_has_one(provenance: Any) -> None:
    full = {name: value for field, one in FULL.items() if field != "seeds" for name, value in one.items()}
    assert provenance.missing({**full, "runs": [{"seed": 0}, {"seed": 1}]}) == []
    assert provenance.missing({**full, "runs": [{"seed": 0}, {}]}) == ["seeds"]


def test_data_that_come_with_the_code_need_no_checksum(provenance: Any) -> None:
    full = {name: value for field, one in FULL.items() if field != "checksum" for name, value in one.items()}
    assert provenance.missing({**full, "data": "bundled"}) == []
    assert provenance.missing(full) == ["checksum"]


@pytest.mark.parametrize("file", CARDS, ids=lambda file: file.stem)
def test_a_card_says_how_the_model_was_trained_and_what_all_stages_cost(file: Path) -> None:
    card = Card.of(json.loads(file.read_text()))
    assert all((card.command, card.hardware, card.torch_version, card.measured)), "of the training, and of the figures"
    assert card.training_seconds > 0
    stages = [ROOT / name for name in re.findall(r"--recipe (\S+)", card.command)]
    recipes = [tomllib.loads(stage.read_text()) for stage in stages]
    told = [int(epochs) for epochs in re.findall(r"--epochs (\d+)", card.command)]
    assert card.epochs == sum(told or [recipe["epochs"] for recipe in recipes])
    starts = [Path(recipe["model"].partition(":")[2]).name for recipe in recipes]
    assert starts == ["", *(stage.stem for stage in stages)][: len(stages)], "from fresh weights on"


@pytest.mark.parametrize("file", CARDS, ids=lambda file: file.stem)
def test_all_runs_together_leave_no_more_images_than_each_of_them(file: Path) -> None:
    card = Card.of(json.loads(file.read_text()))
    assert card.budgets
    for one in card.robust:
        same = [other for other in card.robust if (other.budget, other.images) == (one.budget, one.images)]
        if one.attack == ALL_RUNS:
            assert one.robust_accuracy <= min(other.robust_accuracy for other in same)
            assert 1 < one.runs <= len(same) - 1


def test_the_cost_of_every_training_is_known_from_fresh_weights_on(monkeypatch: pytest.MonkeyPatch) -> None:
    every_record = script("records", monkeypatch).Records.read()
    for name, record in every_record.of("train").items():
        every = every_record.all_stages(name.removeprefix("train-"))
        assert every["epochs"] >= record["epochs"] > 0, name
        assert every["seconds"] >= record["seconds"] > 0, name


def test_a_record_that_is_written_now_knows_its_code_and_its_data(
    provenance: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMIT", "abc")
    (tmp_path / "d.npz").write_bytes(b"1")
    assert provenance.origin(f"npz:{tmp_path / 'd.npz'}") == {"commit": "abc", "sha256": "6b86b273ff34fce1"}
    assert provenance.origin("bundled") == {"commit": "abc"}
    assert provenance.origin("cifar10") == {"commit": "abc", "unknown": ["checksum"]}
    (tmp_path / "list.csv").write_text("a.png,0\n")
    x, y = torch.zeros(1, 3, 2, 2), torch.tensor([0])
    listed = f"csv:{tmp_path / 'list.csv'}"
    images, others = (provenance.origin(listed, *pair)["sha256"] for pair in ((x, y), (x, y + 1)))
    assert images == provenance.checksum(x, y) != others, "a list names the pictures, it does not hold them"
    assert provenance.origin("bundled", x, y) == {"commit": "abc"}


def test_the_record_of_a_training_counts_the_stages_that_it_starts_from(monkeypatch: pytest.MonkeyPatch) -> None:
    training = script("training", monkeypatch)
    monkeypatch.setattr(training.zoo, "card", lambda name: name)
    monkeypatch.setattr(training, "card_of", lambda folder: folder.name)
    args = Namespace(runs=Path("runs/quick"))
    assert training.before("cifar10-plain", args) == []
    assert training.before("cifar10-strades-long", args) == ["cifar10-plain", "cifar10-strades"]
    assert training.before("cifar10-strades-sn", args) == ["prn18-fast-ls"], "whose card counts all its stages"
