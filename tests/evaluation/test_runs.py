"""Runs in folders: what is finished stays finished, and a disturbed run ends like an undisturbed one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import sparsepgd as sp
from conftest import SmallConvNet, Tight, images, labelled
from sparsepgd import baselines, zoo
from sparsepgd.errors import RangeError, SourceError, SparsePGDError, UnsupportedError
from sparsepgd.evaluation import chunks, runs
from sparsepgd.evaluation.atomic import write
from sparsepgd.evaluation.audit import audit
from sparsepgd.evaluation.distributed import Workers
from sparsepgd.evaluation.folders import Folder, load, load_adversarial, sha256
from sparsepgd.evaluation.records import About, Record
from sparsepgd.evaluation.sources import Data
from sparsepgd.problem.engine import Engine
from sparsepgd.search.ensemble import SparseAutoAttack

ATTACK = sp.SparsePGD(sp.Budget(k=6), steps=15)
TIMES = {"created", "seconds", "chunks"}


def problem(count: int = 12, seed: int = 0) -> tuple[SmallConvNet, tuple[Tensor, Tensor]]:
    model, x = SmallConvNet(seed=seed).eval(), images(count)
    return model, (x, labelled(model, x))


def outcome(folder: Path) -> tuple[dict[str, object], bytes]:
    """All of a run but the times."""
    return load(folder).model_dump(exclude=TIMES), (folder / "adversarial.safetensors").read_bytes()


def start(folder: Path, stop_after: int | None = None, chunk: int = 4) -> Record:
    """The run that most tests disturb; it ends early after some chunks if asked to."""
    model, data = problem()
    asked = iter(range(100))
    return runs.run(folder, ATTACK, model, data, chunk=chunk, stop=lambda: next(asked) == stop_after)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    start(folder)
    return folder


def test_the_record_holds_what_the_attack_found(undisturbed: Path) -> None:
    model, (x, y) = problem()
    result = ATTACK(model, x, y, seed=0)
    record = load(undisturbed)
    assert record.robust_accuracy == pytest.approx(result.robust_accuracy)
    assert [row.fooled for row in record.rows] == result.fooled.tolist()
    assert [row.l0 for row in record.rows] == result.l0.tolist()
    assert [row.index for row in record.rows] == list(range(12))
    assert record.robust_interval[0] < record.robust_accuracy < record.robust_interval[1]
    assert record.configuration["attack"]["budget"]["k"] == 6
    assert record.environment["torch"] == torch.__version__
    assert [part.stop for part in record.chunks] == [4, 8, 12]
    assert sorted(file.name for file in undisturbed.iterdir()) == ["adversarial.safetensors", "run.json"]
    tensors = load_adversarial(undisturbed)
    assert torch.equal(tensors["y"], y)
    assert (tensors["x_adv"] - result.x_adv).abs().max() < 1e-6


def test_names_of_classes_come_with_the_data() -> None:
    model, (x, y) = problem(2)
    named = runs.run(None, ATTACK, model, Data(x, y, ("one", "two")))
    assert named.about.class_names == ("one", "two")
    assert runs.run(None, ATTACK, model, (x, y)).about == About()


def test_without_a_folder_nothing_is_written_and_the_numbers_are_the_same(undisturbed: Path) -> None:
    record = runs.run(None, ATTACK, *problem())
    assert record.model_dump(exclude={*TIMES, "adversarial", "rows"}) == load(undisturbed).model_dump(
        exclude={*TIMES, "adversarial", "rows"}
    )


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_run_goes_on_where_it_stopped(done: int, undisturbed: Path, tmp_path: Path, monkeypatch) -> None:
    part = start(tmp_path / "r", stop_after=done)
    assert (part.finished, part.images) == (False, 4 * done)
    with pytest.raises(SourceError, match=f"not finished, {4 * done} images are done; run it again"):
        load(tmp_path / "r")
    attacked = []
    real = runs.attack_chunk
    monkeypatch.setattr(runs, "attack_chunk", lambda *args: attacked.append(args[2]) or real(*args))
    start(tmp_path / "r")
    assert attacked == list(range(4 * done, 12, 4))
    assert outcome(tmp_path / "r") == outcome(undisturbed)


def test_a_finished_run_is_only_read(tmp_path: Path, monkeypatch) -> None:
    first = start(tmp_path)
    monkeypatch.setattr(runs, "attack_chunk", None)
    assert start(tmp_path) == first


def test_a_run_may_go_on_with_chunks_of_another_size(undisturbed: Path, tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    record = start(tmp_path, chunk=5)
    assert [(part.start, part.stop) for part in record.chunks] == [(0, 4), (4, 9), (9, 12)]
    assert [row.fooled for row in record.rows] == [row.fooled for row in load(undisturbed).rows]


KILLER = """
import os, signal, sys, torch
from pathlib import Path
sys.path[:0] = [{tests!r}, {here!r}]
torch.set_num_threads(1)
from test_runs import start
import scipy.special  # once, not in each child
real = os.replace

def child(folder, moment):
    count = 0
    def replace(old, new):
        nonlocal count
        count += 1
        if moment == (count, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        real(old, new)
        if moment == (count, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
    if os.fork() == 0:
        os.replace = replace
        start(folder)
        os._exit(0)
    return os.wait()[1]

for number in range(1, 10):
    for when in ("before", "after"):
        folder = Path({out!r}) / f"{{number}}-{{when}}"
        assert child(folder, (number, when)) == signal.SIGKILL
        assert child(folder, None) == 0
"""


def test_killed_at_any_write_the_resumed_run_ends_the_same(undisturbed: Path, tmp_path: Path) -> None:
    """kill -9 just before and just after each of the nine files gets its name: head, 3 x 2 chunks, images, record."""
    here = Path(__file__).parent
    program = KILLER.format(tests=str(here.parent), here=str(here), out=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=one_thread(), timeout=200
    )
    assert done.returncode == 0, done.stderr
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 18
    for folder in folders:
        assert outcome(folder) == outcome(undisturbed), folder
        assert sorted(file.name for file in folder.iterdir()) == ["adversarial.safetensors", "run.json"], folder


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("damage", ["rows cut", "images cut", "images gone", "image changed", "other run", "rows lost"])
def test_a_damaged_chunk_is_made_again(damage: str, undisturbed: Path, tmp_path: Path) -> None:
    start(tmp_path, stop_after=2)
    rows, pictures = (tmp_path / "partial" / f"000004-000008.{kind}" for kind in ("json", "safetensors"))
    content, data = json.loads(rows.read_text()), bytearray(pictures.read_bytes())
    match damage:
        case "rows cut":
            rows.write_bytes(rows.read_bytes()[:-40])
        case "images cut":
            pictures.write_bytes(data[:-40])
        case "images gone":
            pictures.unlink()
        case "image changed":
            data[-1] ^= 1
            pictures.write_bytes(data)
        case "other run":
            rows.write_text(json.dumps({**content, "run": "0" * 64}))
        case "rows lost":
            rows.write_text(json.dumps({**content, "rows": content["rows"][:-1]}))
    start(tmp_path)
    assert outcome(tmp_path) == outcome(undisturbed)


@pytest.mark.parametrize("name", ["000000-000009", "000002-000006"])
def test_no_image_counts_twice_because_a_chunk_was_copied(name: str, undisturbed: Path, tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    partial = tmp_path / "partial"
    for kind in ("json", "safetensors"):
        (partial / f"{name}.{kind}").write_bytes((partial / f"000000-000004.{kind}").read_bytes())
    start(tmp_path)
    assert outcome(tmp_path) == outcome(undisturbed)


def test_of_chunks_that_overlap_one_is_made_again(undisturbed: Path, tmp_path: Path) -> None:
    start(tmp_path / "a", stop_after=1)
    start(tmp_path / "b", stop_after=1, chunk=6)
    for file in (tmp_path / "b" / "partial").glob("*-*"):
        (tmp_path / "a" / "partial" / file.name).write_bytes(file.read_bytes())
    record = start(tmp_path / "a")
    assert [row.fooled for row in record.rows] == [row.fooled for row in load(undisturbed).rows]


class Edited(SmallConvNet):
    """The same weights and structure as `SmallConvNet`, and other code."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(1 - x)


Edited.__name__ = "SmallConvNet"


@pytest.mark.parametrize("done", [1, None])
def test_a_model_whose_code_was_edited_is_not_taken_for_the_one_of_the_folder(done: int | None, tmp_path: Path) -> None:
    start(tmp_path, stop_after=done)
    _, data = problem()
    with pytest.raises(UnsupportedError, match="the model answers differently than the one that began the run"):
        runs.run(tmp_path, ATTACK, Edited().eval(), data, chunk=4)


def test_each_worker_must_have_the_model_that_began_the_run(tmp_path: Path) -> None:
    class Second(Workers):
        def share(self, make: object) -> object:
            return Folder(tmp_path).head()

    start(tmp_path, stop_after=1)
    _, data = problem()
    with pytest.raises(UnsupportedError, match="worker 1 has another run than the first: the model answers diff"):
        runs.run(tmp_path, ATTACK, Edited().eval(), data, workers=Second(rank=1, world=2))


def test_answers_that_differ_by_round_off_are_the_same_model(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    head = tmp_path / "partial" / "head.json"
    content = json.loads(head.read_text())
    assert len(content["answers"]) == 2
    content["answers"] = [[value * 1.0003 for value in row] for row in content["answers"]]
    head.write_text(json.dumps(content))
    assert start(tmp_path).finished


def test_a_folder_from_before_answers_were_kept_goes_on(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    head = tmp_path / "partial" / "head.json"
    content = json.loads(head.read_text())
    del content["answers"]
    head.write_text(json.dumps(content))
    assert start(tmp_path).finished


def test_a_randomised_model_is_not_held_to_its_answers(tmp_path: Path) -> None:
    class Random(SmallConvNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn(1)

    record = runs.run(tmp_path, ATTACK, Random().eval(), problem()[1])
    assert record.answers == ()
    assert runs.run(tmp_path, ATTACK, Random().eval(), problem()[1]) == record


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_a_finished_run_is_not_read_without_its_images(damage: str, tmp_path: Path) -> None:
    start(tmp_path)
    file = tmp_path / "adversarial.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink() if damage == "gone" else file.write_bytes(data)
    with pytest.raises(SourceError, match="bring the file back, or delete the folder and run again"):
        start(tmp_path)


def test_a_finished_run_of_another_precision_says_what_it_was_made_with(tmp_path: Path) -> None:
    model, data = problem()
    first = runs.run(tmp_path, ATTACK, model, data)
    again = runs.run(tmp_path, ATTACK, model, data, engine=Engine("bf16"))
    (notice,) = set(again.warnings) - set(first.warnings)
    assert "finished before with no engine given, not with precision=bf16" in notice.message
    assert load(tmp_path) == first


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("x_adv gone", "x_adv is missing"),
        ("fewer", r"x_adv has the shape \(11, 3, 12, 12\) for 12 images"),
        ("float64", "x_adv is torch.float64 .*, x is torch.float32"),
        ("labels", "y has the shape .*labels are 12 integers"),
        ("no file", "is no safetensors file"),
    ],
)
def test_damaged_images_are_named_even_if_their_checksum_is_right(
    damage: str, message: str, undisturbed: Path, tmp_path: Path
) -> None:
    record = json.loads((undisturbed / "run.json").read_text())
    tensors = load_tensors((undisturbed / "adversarial.safetensors").read_bytes())
    match damage:
        case "x_adv gone":
            del tensors["x_adv"]
        case "fewer":
            tensors["x_adv"] = tensors["x_adv"][:11]
        case "float64":
            tensors["x_adv"] = tensors["x_adv"].double()
        case "labels":
            tensors["y"] = tensors["y"].float()
    data = b"broken" if damage == "no file" else save_tensors(tensors)
    (tmp_path / "adversarial.safetensors").write_bytes(data)
    (tmp_path / "run.json").write_text(json.dumps(record | {"adversarial": sha256(data)}))
    with pytest.raises(SourceError, match=rf"adversarial\.safetensors.*{message}"):
        load_adversarial(tmp_path)


def test_leftovers_of_a_kill_are_cleaned_and_other_files_are_not(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    for name in (".run.json.tmp", "partial/.000004-000008.json.tmp", "mine.txt"):
        (tmp_path / name).write_text("x")
    start(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adversarial.safetensors", "mine.txt", "run.json"]


@pytest.mark.parametrize("done", [1, None])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("k", "attack.budget.k was 6, is 7"),
        ("pattern", "attack.budget.pattern.kind was Pixels, is Rows"),
        ("steps", "attack.steps was 15, is 16"),
        ("attack", "attack.name was spgd-unprojected, is sparse-rs"),
        ("seed", "seed was 0, is 1"),
        ("model", r"model.sha256 was \w{12}\.\.\., is \w{12}"),
        ("model name", "model.name was SmallConvNet, is another"),
        ("images", r"data.sha256 was \w{12}\.\.\., is \w{12}"),
        ("labels", r"data.sha256 was \w{12}\.\.\., is \w{12}"),
        ("n", "data.images was 12, is 11"),
    ],
)
def test_another_run_in_the_folder_is_refused(change: str, message: str, done: int | None, tmp_path: Path) -> None:
    start(tmp_path, stop_after=done)
    model, (x, y) = problem(seed=1 if change == "model" else 0)
    y = problem()[1][1]
    attack, names, seed = ATTACK, {}, 0
    match change:
        case "k":
            attack = sp.SparsePGD(sp.Budget(k=7), steps=15)
        case "pattern":
            attack = sp.SparsePGD(sp.Budget(k=6, pattern=sp.Rows()), steps=15)
        case "steps":
            attack = dataclasses.replace(ATTACK, steps=16)
        case "attack":
            attack = sp.SparseRS(sp.Budget(k=6), queries=9)
        case "seed":
            seed = 1
        case "model name":
            names = {"model": "another"}
        case "images":
            x = x.flip(3)
        case "labels":
            y = (y + 1) % 5
        case "n":
            x, y = x[:11], y[:11]
    with pytest.raises(UnsupportedError, match=f"holds another run: .*{message}.*choose another --out or delete"):
        runs.run(tmp_path, attack, model, (x, y), names, seed=seed)


def test_a_run_that_never_got_anywhere_blocks_no_other(tmp_path: Path) -> None:
    model, data = problem()
    with pytest.raises(SparsePGDError, match="k=500 pixels"):
        runs.run(tmp_path, sp.SparsePGD(sp.Budget(k=500), steps=2), model, data)
    assert start(tmp_path).finished


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with Folder(folder).held(), pytest.raises(UnsupportedError, match="another process works in"):
        start(folder)
    assert start(folder).finished


def test_a_full_disk_names_the_file_and_damages_nothing(tmp_path: Path) -> None:
    """/dev/full gives a real ENOSPC."""
    file = tmp_path / "rows.json"
    write(file, b"old")
    (tmp_path / ".rows.json.tmp").symlink_to("/dev/full")
    with pytest.raises(SparsePGDError, match=r"rows.json cannot be written: No space left on device; free some space"):
        write(file, b"new" * 100_000)
    assert file.read_bytes() == b"old"
    assert [left.name for left in tmp_path.iterdir()] == ["rows.json"]


def test_a_disk_that_fills_up_at_the_end_costs_nothing_that_was_computed(tmp_path: Path, monkeypatch) -> None:
    """A process that may write files of 9 kB: chunks fit, the merged images do not."""
    here = Path(__file__).parent
    program = (
        f"import resource, sys; sys.path[:0] = [{str(here.parent)!r}, {str(here)!r}]; from test_runs import start\n"
        f"from pathlib import Path; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); start(Path('r'))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=one_thread(), timeout=200)
    last = done.stderr.splitlines()[-1]
    assert "r/adversarial.safetensors cannot be written: File too large; free some space and run the same again" in last
    monkeypatch.setattr(runs, "attack_chunk", None)  # all that is left to do is to merge
    assert start(tmp_path / "r").finished


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match=r"file cannot be used: .*; choose another --out"):
        start(tmp_path / "file")
    with pytest.raises(SourceError, match="no run in"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "record of version 7, this sparsepgd reads 1"),
        ({"images": 3}, "12 rows do not give the accuracy of 3 images"),
        ({"robust_accuracy": 0.99}, "12 rows do not give the accuracy"),
        ({"extra": 1}, "is no record: extra: Extra inputs"),
        ({"clean_accuracy": 0.5}, "12 rows do not give the clean accuracy 0.5"),
        ({"clean_interval": [0.9, 1.0]}, "12 of 12 do not give the clean_interval"),
        ({"robust_interval": [0.9, 1.0]}, "of 12 do not give the robust_interval"),
        ({"finished": False}, "says finished: false"),
        ({"seconds": -1}, "seconds: Input should be greater than or equal to 0"),
        ({"configuration.model": None}, "run.json is no record: configuration: .*model is None"),
        ({"configuration.attack.budget.k": "six"}, "configuration: .*attack.budget.k is 'six'"),
        ({"configuration.attack.budget.pattern": {"kind": "Shape"}}, "attack.budget.pattern.name is 'missing'"),
        ({"rows.1.index": 3}, "the rows are not numbered one by one"),
        ({"rows.1.steps": -1}, r"rows\.1\.steps: Input should be"),
        ({"rows.1.clean_correct": False}, "row 1 contradicts itself|do not give the"),
        ({"rows.1.clean_prediction": 9}, "row 1 contradicts itself"),
    ],
)
def test_records_are_checked_when_they_are_read(change: dict, message: str, undisturbed: Path, tmp_path: Path) -> None:
    written = json.loads((undisturbed / "run.json").read_text())
    for path, value in change.items():
        *way, last = (int(word) if word.isdecimal() else word for word in path.split("."))
        place = written
        for word in way:
            place = place[word]
        place[last] = value
    (tmp_path / "run.json").write_text(json.dumps(written))
    with pytest.raises(SourceError, match=message):
        load(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(SourceError, match="is no record"):
        load(tmp_path)


@pytest.mark.parametrize("wrong", ["empty", "range", "chunk"])
def test_wrong_use_leaves_no_folder_behind(wrong: str, tmp_path: Path) -> None:
    model, (x, y) = problem()
    data = {"empty": (x[:0], y[:0]), "range": (x - 1, y), "chunk": (x, y)}[wrong]
    expected = {"empty": SourceError, "range": RangeError, "chunk": UnsupportedError}[wrong]
    with pytest.raises(expected):
        runs.run(tmp_path / "r", ATTACK, model, data, chunk=0 if wrong == "chunk" else 4)
    assert not (tmp_path / "r").exists()


def test_the_result_does_not_depend_on_the_chunks(tmp_path: Path) -> None:
    """In float64: in float32 an image that is alone in its batch may get logits that differ in the last bit."""
    x, y = zoo.bundled_images(24)
    model, x = zoo.load("small-plain").double(), x.double()
    attack = sp.SparsePGD(sp.Budget(k=8), steps=4)
    for chunk in (24, 7):
        runs.run(tmp_path / str(chunk), attack, model, (x, y), chunk=chunk, batch_size=8)
    whole, parts = (load(tmp_path / str(chunk)) for chunk in (24, 7))
    assert 0 < whole.robust_accuracy < whole.clean_accuracy
    for one, other in zip(whole.rows, parts.rows, strict=True):
        assert one.model_dump(exclude={"loss"}) == other.model_dump(exclude={"loss"})
        assert one.loss == pytest.approx(other.loss, abs=1e-9)
    first, second = (load_adversarial(tmp_path / str(chunk))["x_adv"] for chunk in (24, 7))
    assert (first - second).abs().max() < 1e-9


MASK = torch.arange(12 * 12 * 12).view(12, 12, 12) % 3 > 0


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


def test_an_audit_finds_what_does_not_hold(tmp_path: Path) -> None:
    model, data = problem()
    record = start(tmp_path)
    tight = sp.Budget(k=5)
    assert audit(tmp_path, model, data, budget=tight).held < sum(row.fooled for row in record.rows)
    with pytest.raises(UnsupportedError, match=r"model.sha256 was \w+\.\.\., is"):
        audit(tmp_path, SmallConvNet(seed=1), data)
    with pytest.raises(UnsupportedError, match=r"data.sha256 was \w+\.\.\., is"):
        audit(tmp_path, model, (data[0].flip(0), data[1]))
    pictures = tmp_path / "adversarial.safetensors"
    pictures.write_bytes(pictures.read_bytes()[:-1] + b"\x07")
    with pytest.raises(SourceError, match=r"is not the file that run.json speaks of"):
        audit(tmp_path, model, data)


def test_a_plain_function_is_known_by_its_name_alone(tmp_path: Path) -> None:
    model, data = problem()
    attack = sp.SparseRS(sp.Budget(k=6), queries=20)
    record = runs.run(tmp_path, attack, lambda x: model(x).detach(), data, {"model": "service"})
    assert record.configuration["model"] == {"name": "service", "sha256": None}
    assert runs.run(tmp_path, attack, lambda x: model(x).detach(), data, {"model": "service"}) == record


@pytest.mark.parametrize("done", [1, None])
def test_a_function_without_a_name_is_never_taken_for_the_one_of_the_folder(done: int | None, tmp_path: Path) -> None:
    model, data = problem()
    attack, asked = sp.SparseRS(sp.Budget(k=6), queries=20), iter(range(9))
    runs.run(tmp_path, attack, lambda x: model(x), data, chunk=4, stop=lambda: next(asked) == done)
    with pytest.raises(UnsupportedError, match=r"just a function, which cannot be told.*config=\{\"model\": ...\}"):
        runs.run(tmp_path, attack, lambda x: -model(x), data, chunk=4)


def test_a_function_without_a_name_may_begin_where_nothing_was_done(tmp_path: Path) -> None:
    model, data = problem()
    attack = sp.SparseRS(sp.Budget(k=6), queries=20)
    runs.run(tmp_path, attack, lambda x: model(x), data, stop=lambda: True)
    assert runs.run(tmp_path, attack, lambda x: -model(x), data).clean_accuracy == 0


def test_a_run_with_an_infinite_hyper_parameter_goes_on_and_is_read_again(tmp_path: Path) -> None:
    model, data = problem()
    attack, asked = baselines.CWL0.quick(sp.Budget(k=6)), iter(range(9))
    runs.run(tmp_path, attack, model, data, chunk=4, stop=lambda: next(asked) == 1)
    record = runs.run(tmp_path, attack, model, data, chunk=4)
    assert [part.start for part in record.chunks] == [0, 4, 8]
    assert record == runs.run(tmp_path, attack, model, data)
    assert record.configuration["attack"]["small"] == "inf"
    json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)  # JSON has no Infinity
    with pytest.raises(UnsupportedError, match=r"attack\.small was inf, is 1\.0"):
        runs.run(tmp_path, dataclasses.replace(attack, small=1.0), model, data)


def test_numbers_of_numpy_are_as_good_as_pythons(tmp_path: Path) -> None:
    model, data = problem()
    plain, numpys = (sp.SparsePGD(sp.Budget(k=6), steps) for steps in (4, np.int64(4)))
    record = runs.run(tmp_path, numpys, model, data, seed=np.int64(3), batch_size=np.int64(5))
    assert record == runs.run(tmp_path, plain, model, data, seed=3)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_batch_sizes_that_are_none_are_refused_and_leave_no_folder_behind(size: float, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"batch_size={size}; expected"):
        runs.run(tmp_path / "r", ATTACK, *problem(), batch_size=size)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("attack", [ATTACK, baselines.GreedyFool(sp.Budget(k=6), 8)], ids=["stepwise", "standalone"])
def test_a_run_on_a_device_with_little_memory_ends_like_one_with_much(attack) -> None:
    model, (x, y) = problem()
    tight = Tight(3, model)
    small, large = (runs.run(None, attack, net, (x, y)) for net in (tight, model))
    assert tight.refused > 0
    assert [row.fooled for row in small.rows] == [row.fooled for row in large.rows]
    assert [row.forwards for row in small.rows] == [row.forwards for row in large.rows]


def test_any_object_with_the_call_shape_will_do(tmp_path: Path) -> None:
    class Mine:
        name = "mine"

        def __call__(self, *args, **options) -> sp.Result:
            return ATTACK(*args, **options)

    record = runs.run(tmp_path, Mine(), *problem(), chunk=5)
    assert record.configuration["attack"]["kind"] == "Mine"
    assert runs.run(tmp_path, Mine(), *problem()) == record
    with pytest.raises(UnsupportedError, match="names no budget; hand it over"):
        audit(tmp_path, *problem())
    fooled = sum(row.fooled for row in record.rows)
    assert audit(tmp_path, *problem(), budget=sp.Budget(k=6)).held == fooled


def test_progress_covers_the_whole_run(tmp_path: Path) -> None:
    model, data = problem()
    told: list[tuple[int, int, int]] = []
    record = runs.run(tmp_path, ATTACK, model, data, chunk=5, progress=lambda *args: told.append(args))
    done, total, fooled = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert (done[-1], set(total)) == (12_000, {12_000})
    assert fooled[-1] == sum(row.fooled for row in record.rows)


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    head = tmp_path / "partial" / "head.json"
    content = json.loads(head.read_text())
    content["environment"]["torch"] = "1.0"
    head.write_text(json.dumps(content))
    (notice,) = (notice for notice in start(tmp_path).warnings if notice.code == "mixed")
    assert "torch was 1.0, is" in notice.message


def test_folders_are_split_only_where_there_is_more_than_one() -> None:
    out = Path("runs/a")
    assert runs.folders(None, ["m"], ["s"]) == [[None]]
    assert runs.folders(out, ["m"], ["s"]) == [[out]]
    assert runs.folders(out, ["m", "file:f"], ["s"]) == [[out / "m", out / "file-f"]]
    assert runs.folders(out, ["m"], ["s", "t"]) == [[out / "s"], [out / "t"]]
    assert runs.folders(out, ["m", "m"], ["s", "t"])[1] == [out / "m" / "t", out / "m-2" / "t"]
