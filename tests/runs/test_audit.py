"""What `spgd verify` stands on: no row of a record is believed, whatever it says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from typer.testing import CliRunner

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.analysis.summary import wilson
from sparsepgd.cli import app
from sparsepgd.errors import SourceError, UnsupportedError, UnusableDeviceError, counted
from sparsepgd.runs import chunks, runs
from sparsepgd.runs.audit import TIE, audit
from sparsepgd.runs.folders import load, load_adversarial, sha256
from sparsepgd.search.ensemble import SparseAutoAttack
from support.models import SmallConvNet, images, labelled
from support.small_runs import ATTACK, problem, start

Written = dict[str, Any]
MODEL = SmallConvNet().eval()
X = images(12)
Y = labelled(MODEL, X)
Y[0] = (Y[0] + 1) % 5  # one is wrong from the start
MASK = torch.arange(12 * 12 * 12).view(12, 12, 12) % 3 > 0


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    runs.run(folder, sp.SparsePGD(sp.Budget(k=4), steps=6), MODEL, (X, Y))
    outcomes = {row.fooled for row in load(folder).rows if row.clean_correct}
    assert outcomes == {True, False}
    return folder


def forged(honest: Path, folder: Path, change: Callable[[Written], None], pictures: bytes | None = None) -> Path:
    """A copy whose record was edited, with all sums and checksums in order."""
    folder.mkdir(exist_ok=True)
    record = json.loads((honest / "run.json").read_text())
    data = pictures or (honest / "adversarial.safetensors").read_bytes()
    change(record)
    n, rows = len(record["rows"]), record["rows"]
    for row in rows:
        row["broken_by"] = "spgd" if row["fooled"] else None
    clean = sum(row["clean_correct"] for row in rows)
    robust = sum(row["clean_correct"] and not row["fooled"] for row in rows)
    record |= {"clean_accuracy": clean / n, "clean_interval": wilson(clean, n), "adversarial": sha256(data)}
    record |= {"robust_accuracy": robust / n, "robust_interval": wilson(robust, n)}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "adversarial.safetensors").write_bytes(data)
    return folder


def in_rows(**values: object) -> Callable[[Written], None]:
    def change(record: Written) -> None:
        for row in record["rows"]:
            row |= values

    return change


def test_an_honest_run_is_sound_row_by_row(honest: Path) -> None:
    found = audit(honest, MODEL, batch_size=5)
    assert found.sound
    assert found.held == found.reported == sum(row.fooled for row in load(honest).rows)
    assert list(found.messages()) == []


def test_successes_that_were_hidden_are_found(honest: Path, tmp_path: Path) -> None:
    """An inflated robust accuracy: the images still fool the model."""
    hidden = [row.index for row in load(honest).rows if row.fooled][:3]

    def hide(record: Written) -> None:
        for place in hidden:
            record["rows"][place]["fooled"] = False

    found = audit(forged(honest, tmp_path, hide), MODEL)
    assert found.held == found.reported
    assert found.false == {"fooled": tuple(hidden)}
    assert not found.sound
    assert list(found.messages()) == [
        f"fooled differs from the record in {counted(len(hidden), 'rows')}: {', '.join(map(str, hidden))}"
    ]


def test_successes_that_were_invented_are_found(honest: Path, tmp_path: Path) -> None:
    stood = [row.index for row in load(honest).rows if row.clean_correct and not row.fooled]

    def invent(record: Written) -> None:
        for row in record["rows"]:
            row["fooled"] = row["clean_correct"]

    found = audit(forged(honest, tmp_path, invent), MODEL)
    assert (found.reported - found.held, found.false) == (len(stood), {"fooled": tuple(stood)})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("l0", in_rows(l0=1)),
        ("groups", in_rows(groups=1)),
        ("prediction", in_rows(prediction=77)),
        ("label", in_rows(label=7, clean_prediction=6, clean_correct=False, fooled=False)),
        ("clean_prediction", in_rows(label=4, clean_prediction=4, clean_correct=True)),
        ("clean_confidence", in_rows(clean_confidence=0.5)),
        ("confidence", in_rows(confidence=0.5)),
    ],
)
def test_whatever_a_row_says_is_measured_again(
    name: str, change: Callable[[Written], None], honest: Path, tmp_path: Path
) -> None:
    found = audit(forged(honest, tmp_path, change), MODEL)
    assert len(found.false[name]) > 2


def test_an_image_that_did_not_fool_is_checked_too(honest: Path, tmp_path: Path) -> None:
    tensors = load_tensors((honest / "adversarial.safetensors").read_bytes())
    place = next(row.index for row in load(honest).rows if row.clean_correct and not row.fooled)
    tensors["x_adv"][place] = 0.5
    found = audit(forged(honest, tmp_path, lambda record: None, save_tensors(tensors)), MODEL)
    assert found.false["budget"] == (place,)


def test_a_mask_that_was_widened_is_not_taken(tmp_path: Path) -> None:
    allowed = torch.zeros(12, 12, dtype=torch.bool)
    allowed[:6] = True
    runs.run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=4, allowed=allowed), steps=3), MODEL, (X, Y))
    assert audit(tmp_path / "run", MODEL).sound
    tensors = load_tensors((tmp_path / "run" / "adversarial.safetensors").read_bytes())
    wide = save_tensors(tensors | {"allowed": torch.ones_like(allowed)})
    with pytest.raises(SourceError, match="mask `allowed`"):
        audit(forged(tmp_path / "run", tmp_path / "forged", lambda record: None, wide), MODEL)


def test_images_off_the_8_bit_grid_are_found_where_the_record_claims_it(honest: Path, tmp_path: Path) -> None:
    def claim(record: Written) -> None:
        record["configuration"]["attack"]["quantize"] = True

    found = audit(forged(honest, tmp_path, claim), MODEL)
    assert found.false["budget"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda record: record["configuration"]["attack"].update(budget={"kind": "Other"}),
            "the record of 'spgd.*' has no budget; pass it",
        ),
        (lambda record: record.update(classes=3), "classes is 5, the record has 3; pass the model"),
        (
            lambda record: record["configuration"]["data"].update(images=10_000),
            "data.images is 12, the record has 10000; pass the model",
        ),
    ],
)
def test_budgets_classes_and_numbers_of_images_are_not_believed(
    change: Callable[[Written], None], message: str, honest: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        audit(forged(honest, tmp_path, change), MODEL)


def test_a_model_that_is_wrong_on_everything_confirms_nothing(tmp_path: Path) -> None:
    runs.run(tmp_path, sp.SparseRS(sp.Budget(k=6), queries=30), lambda x: MODEL(x), (X, Y), {"model": "service"})
    found = audit(tmp_path, lambda x: -MODEL(x), (X, Y))
    assert (found.held, found.reported > 0) == (0, True)


def test_ties_that_round_off_decides_are_no_lies(honest: Path, tmp_path: Path) -> None:
    """Logits moved by a fraction of the tolerance tip predictions only where two classes are as good as equal."""

    class Moved(SmallConvNet):
        by = 0.0

        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            best = logits.topk(2, 1)
            gap = best.values[:, :1] - best.values[:, 1:]
            step = gap + self.by * logits.abs().amax(1, keepdim=True)
            return logits.scatter_add(1, best.indices[:, 1:], step)  # the second overtakes the first by so much

    moved = Moved().eval()
    moved.__class__.__name__ = "SmallConvNet"
    moved.by = TIE / 2
    unsure = forged(honest, tmp_path, in_rows(clean_confidence=None, confidence=None))
    assert audit(unsure, moved).sound
    moved.by = TIE * 3
    assert {"clean_prediction", "prediction"} <= set(audit(unsure, moved).false)


def test_a_randomised_model_is_not_held_to_how_sure_it_was(tmp_path: Path) -> None:
    class Shaken(SmallConvNet):
        def forward(self, x: Tensor) -> Tensor:
            return (1 + torch.rand(len(x), 1)) * super().forward(x)  # the order stays

    runs.run(tmp_path, sp.SparsePGD(sp.Budget(k=4), steps=3), Shaken().eval(), (X, Y))
    assert load(tmp_path).answers == ()
    assert audit(tmp_path, Shaken().eval()).sound


def test_verify_names_the_rows_and_fails(tmp_path: Path) -> None:
    model, (x, y) = zoo.load("small-plain"), zoo.bundled_images(8)
    runs.run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=20), steps=5), model, (x, y))
    hidden = next(row.index for row in load(tmp_path / "run").rows if row.fooled)
    place = forged(tmp_path / "run", tmp_path / "forged", lambda record: record["rows"][hidden].update(fooled=False))
    done = CliRunner().invoke(app, ["verify", str(place), "--model", "zoo:small-plain"])
    assert done.exit_code == 1
    assert f"fooled differs from the record in 1 row: {hidden}" in done.output


def test_verify_with_data_finds_images_that_are_not_those_of_the_data(tmp_path: Path) -> None:
    """A run on easier images, with their checksum in the record, is sound in itself."""
    model, (x, y) = zoo.load("small-plain"), zoo.bundled_images(8)
    names, attack = {"model": "small-plain", "data": "bundled"}, sp.SparsePGD(sp.Budget(k=2), steps=2)
    runs.run(tmp_path / "honest", attack, model, (x, y), names)
    runs.run(tmp_path / "easier", attack, model, (x.flip(0), y.flip(0)), names)

    def checked(run: str, *data: str) -> tuple[int, str]:
        words = ("verify", str(tmp_path / run), "--model", "zoo:small-plain", *data)
        done = CliRunner().invoke(app, words)
        return done.exit_code, f"{done.output}{done.exception or ''}"

    assert checked("honest", "--data", "bundled")[0] == 0
    assert checked("easier")[0] == 0
    assert "data.sha256 is" in checked("easier", "--data", "bundled")[1]
    assert "--choose and --size describe the images of --data" in checked("honest", "--size", "32")[1]
    np.savez(tmp_path / "few.npz", x=x[:5].numpy(), y=y[:5].numpy())
    assert "data.images is 5, the record has 8; pass the" in checked("honest", "--data", f"npz:{tmp_path}/few.npz")[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_rows(clean_correct=False), "row 0 contradicts itself|row 1 contradicts itself"),
        (
            lambda record: record["configuration"]["attack"]["budget"].update(pattern={"kind": "Patches", "wide": 3}),
            "the pattern of the record cannot be restored",
        ),
    ],
)
def test_records_that_cannot_be_are_refused_in_words(
    change: Callable[[Written], None], message: str, honest: Path, tmp_path: Path
) -> None:
    """Even with sums that add up: what reads them divides by numbers that are there, and builds what is named."""
    with pytest.raises(SourceError, match=message):
        audit(forged(honest, tmp_path, change), MODEL)


@pytest.mark.parametrize(
    "attack",
    [
        dataclasses.replace(ATTACK, quantize=True),
        sp.SparsePGD(sp.Budget(k=12, eps=0.3), steps=15),
        sp.SparsePGD(sp.Budget(k=1, pattern=sp.Patches(3, 4)), steps=15),
        sp.SparsePGD(sp.Budget(k=2, pattern=sp.Shape.circle(7)), steps=30, alpha=0.25),
        sp.SparsePGD(sp.Budget(k=8, allowed=MASK), steps=15),
        SparseAutoAttack(sp.Budget(k=5, allowed=MASK[0]), steps=4, queries=20),
        SparseAutoAttack(sp.Budget(k=5, allowed=MASK), steps=4, queries=20, quantize=True),
    ],
    ids=["8-bit", "eps", "patch", "shape", "masks", "cascade", "cascade-masks"],
)
def test_what_is_stored_can_be_checked_again(attack, tmp_path: Path) -> None:
    model, data = problem()
    record = runs.run(tmp_path, attack, model, data, chunk=5)
    direct = attack(model, *data)
    fooled = sum(row.fooled for row in record.rows)
    assert fooled == int(direct.fooled.sum()) > 0
    assert audit(tmp_path, model, data).held == fooled
    stored = load_adversarial(tmp_path)["x_adv"]
    assert stored.dtype == (torch.uint8 if attack.quantize else torch.float32)
    assert (chunks.decoded(stored, data[0]) - direct.x_adv).abs().max() < 1e-5


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.float32])
def test_clean_images_that_are_not_their_8_bit_levels_can_be_checked_again(kind: torch.dtype, tmp_path: Path) -> None:
    model, (x, y) = problem()
    model, x = model.to(kind), x.double().mul(255).round().div(255).to(kind)
    if kind == torch.float32:
        x = x * (1 + 2**-23)  # one bit beside the levels
    record = runs.run(tmp_path, dataclasses.replace(ATTACK, quantize=True), model, (x.clamp(0, 1), y), chunk=5)
    found = audit(tmp_path, model)
    assert (found.held, found.false) == (sum(row.fooled for row in record.rows), {})
    assert found.held > 0


def test_an_audit_finds_what_does_not_hold(tmp_path: Path) -> None:
    model, data = problem()
    record = start(tmp_path)
    tight = sp.Budget(k=5)
    assert audit(tmp_path, model, data, budget=tight).held < sum(row.fooled for row in record.rows)
    with pytest.raises(UnsupportedError, match=r"model.digest is \w+\.\.\., the record has"):
        audit(tmp_path, SmallConvNet(seed=1), data)
    with pytest.raises(UnsupportedError, match=r"data.sha256 is \w+\.\.\., the record has"):
        audit(tmp_path, model, (data[0].flip(0), data[1]))
    pictures = tmp_path / "adversarial.safetensors"
    pictures.write_bytes(pictures.read_bytes()[:-1] + b"\x07")
    with pytest.raises(SourceError, match=r"does not match run.json"):
        audit(tmp_path, model, data)


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableDeviceError, match=r"device 'tpu9' cannot be used: .*; try cpu"):
        audit(tmp_path, SmallConvNet(), device="tpu9")
