"""Every record and every model card says where it comes from."""

from __future__ import annotations

import json
import re
import tomllib
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsepgd.zoo import ALL_RUNS, Card
from support.scripts import ROOT, script

RECORDS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
FOLDERS = (ROOT / "weights", ROOT / "src" / "sparsepgd" / "zoo" / "bundled")
CARDS = sorted(file.with_suffix(".json") for folder in FOLDERS for file in folder.glob("**/*.safetensors"))
OLDER = {  # commits with which records came here that lack a field. None is added: a new record has every field
    "4cc5296", "6cce714", "7339dea", "79ea4b8", "80ce449", "88aecd6", "9c35c19", "aa2b348", "bd9d80d", "bfb8bbb",
    "e213e80", "e24de56", "e8ab371", "ec60eed", "fde71e9", "ff7cf68",
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


@pytest.fixture
def provenance(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("provenance", monkeypatch)


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_a_record_has_every_field_or_is_older_and_names_those_that_it_lacks(file: Path, provenance: Any) -> None:
    record = json.loads(file.read_text())
    assert provenance.missing(record) == record.get("unknown", [])
    assert record.get("numbers since") in (OLDER if "unknown" in record else {None}), "a new record has every field"


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
