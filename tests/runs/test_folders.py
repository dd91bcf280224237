"""Folders of runs: killed, damaged or shared, what is finished stays finished and nothing false is read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.report import leaderboard as board
from sparsepgd.report import refresh_page
from sparsepgd.runs import runs
from sparsepgd.runs.audit import audit
from sparsepgd.runs.folders import Folder, load, load_adversarial, sha256
from support.small_runs import outcome, problem, start

TESTS = str(Path(__file__).parent.parent)
KILLER = """
import os, signal, sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
from support.small_runs import start
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    start(folder)
    return folder


def test_killed_at_any_write_the_resumed_run_ends_the_same(undisturbed: Path, tmp_path: Path) -> None:
    """kill -9 just before and just after each of the nine files gets its name: head, 3 x 2 chunks, images, record."""
    program = KILLER.format(tests=TESTS, out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 18
    for folder in folders:
        assert outcome(folder) == outcome(undisturbed), folder
        assert sorted(file.name for file in folder.iterdir()) == ["adversarial.safetensors", "run.json"], folder


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


@pytest.mark.parametrize("name", ["000000-000009", "000002-000006", "000000-000004 (1)"])
def test_no_image_counts_twice_because_a_chunk_was_copied(name: str, undisturbed: Path, tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    partial = tmp_path / "partial"
    for kind in ("json", "safetensors"):
        (partial / f"{name}.{kind}").write_bytes((partial / f"000000-000004.{kind}").read_bytes())
    with pytest.raises(SourceError, match="is not finished"):
        load(tmp_path)
    start(tmp_path)
    assert outcome(tmp_path) == outcome(undisturbed)


def test_a_copied_file_of_another_name_is_no_chunk(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    rows = tmp_path / "partial" / "000000-000004.json"
    rows.with_name("000000-000004 copy.json").write_bytes(rows.read_bytes())
    with pytest.raises(SourceError, match="is not finished, with 4 images done"):
        load(tmp_path)


def test_of_chunks_that_overlap_one_is_made_again(undisturbed: Path, tmp_path: Path) -> None:
    start(tmp_path / "a", stop_after=1)
    start(tmp_path / "b", stop_after=1, chunk=6)
    for file in (tmp_path / "b" / "partial").glob("*-*"):
        (tmp_path / "a" / "partial" / file.name).write_bytes(file.read_bytes())
    record = start(tmp_path / "a")
    assert [row.fooled for row in record.rows] == [row.fooled for row in load(undisturbed).rows]


def test_leftovers_of_a_kill_are_cleaned_and_other_files_are_not(tmp_path: Path) -> None:
    start(tmp_path, stop_after=1)
    for name in (".run.json.tmp", "partial/.000004-000008.json.tmp", "mine.txt"):
        (tmp_path / name).write_text("x")
    start(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adversarial.safetensors", "mine.txt", "run.json"]


def test_a_folder_of_several_runs_names_one_of_them(undisturbed: Path, tmp_path: Path) -> None:
    for name in ("b", "a"):
        shutil.copytree(undisturbed, tmp_path / "model" / name)
    for folder in (tmp_path, tmp_path / "model"):
        with pytest.raises(SourceError, match=f"choose one of the runs in it, such as {tmp_path / 'model' / 'a'}$"):
            load(folder)


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with Folder(folder).locked(), pytest.raises(UnsupportedError, match="another process is using"):
        start(folder)
    assert start(folder).finished


def test_a_disk_that_fills_up_at_the_end_costs_nothing_that_was_computed(tmp_path: Path, monkeypatch) -> None:
    """A process that may write files of 9 kB: chunks fit, the merged images do not."""
    program = (
        f"import resource, sys; sys.path.insert(0, {TESTS!r}); from support.small_runs import start\n"
        f"from pathlib import Path; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); start(Path('r'))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    last = done.stderr.splitlines()[-1]
    assert "r/adversarial.safetensors cannot be written: File too large; free some space and run" in last
    monkeypatch.setattr(runs, "attack_chunk", None)  # all that is left to do is to merge
    assert start(tmp_path / "r").finished


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match=r"file cannot be used: .*; choose another --out"):
        start(tmp_path / "file")
    with pytest.raises(SourceError, match="no run in"):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_a_finished_run_is_not_read_without_its_images(damage: str, tmp_path: Path) -> None:
    start(tmp_path)
    file = tmp_path / "adversarial.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink() if damage == "gone" else file.write_bytes(data)
    with pytest.raises(SourceError, match="restore the file, or delete the folder and run again"):
        start(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("x_adv gone", "x_adv is missing"),
        ("fewer", r"x_adv has the shape \(11, 3, 12, 12\) for 12 images"),
        ("float64", "x_adv is torch.float64 .*, x is torch.float32"),
        ("labels", "y has the shape .*labels are 12 integers"),
        ("no file", "is not a safetensors file"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "record of version 7, but this sparsepgd reads version 1"),
        ({"images": 3}, "12 rows do not give the accuracy of 3 images"),
        ({"robust_accuracy": 0.99}, "12 rows do not give the accuracy"),
        ({"extra": 1}, "is not a valid record: 'extra' is not known"),
        ({"clean_accuracy": 0.5}, "12 rows do not give the clean accuracy 0.5"),
        ({"clean_interval": [0.9, 1.0]}, "12 of 12 do not give the clean_interval"),
        ({"robust_interval": [0.9, 1.0]}, "of 12 do not give the robust_interval"),
        ({"finished": False}, "finished=False; use one of True"),
        ({"seconds": -1}, "run.json is not a valid record: seconds=-1; use at least 0; delete it"),
        ({"configuration.model": None}, "run.json is not a valid record: configuration.model=None; expected a table"),
        ({"configuration.attack.budget.k": "six"}, "configuration.attack.budget.k='six'; expected an integer"),
        (
            {"configuration.attack.budget.pattern": {"kind": "Shape"}},
            "configuration.attack.budget.pattern.name is missing",
        ),
        ({"rows.1.index": 3}, "the rows are not numbered one by one"),
        ({"rows.1.steps": -1}, r"rows\.1\.steps=-1; use at least 0"),
        ({"rows.1.l0": 10**30}, r"rows\.1\.l0=10+; expected a number below"),
        ({"rows.1.clean_correct": False}, "row 1 contradicts itself|do not give the"),
        ({"rows.1.clean_prediction": 9}, "row 1 contradicts itself"),
        ({"rows.1.broken_by": None}, "row 1 contradicts itself: fooled, broken_by"),
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
    with pytest.raises(SourceError, match="is not a valid record: Invalid JSON"):
        load(tmp_path)


def as_an_earlier_version_wrote_it(folder: Path, **settings: object) -> None:
    """A finished run whose record has the field `near` of SparsePGD, which was removed."""
    file = folder / "run.json"
    written = json.loads(file.read_text())
    written["configuration"]["attack"] |= {"near": None, **settings}
    for row in written["rows"]:
        row["broken_by"] = row["broken_by"] and written["configuration"]["attack"]["name"]
    file.write_text(json.dumps(written))


def test_a_run_of_an_attack_that_was_removed_can_still_be_read_reported_verified_and_entered(tmp_path: Path) -> None:
    fooled = sum(row.fooled for row in start(tmp_path / "run").rows)
    as_an_earlier_version_wrote_it(tmp_path / "run", name="spgd-projected-near", near=0.1, gradient="projected")
    assert {row.broken_by for row in load(tmp_path / "run").rows if row.fooled} == {"spgd-projected-near"}
    found = audit(tmp_path / "run", problem()[0])
    assert (found.held, found.sound) == (fooled, True)
    refresh_page({tmp_path / "run": load(tmp_path / "run")}, tmp_path / "page.html")
    assert "spgd-projected-near" in (tmp_path / "page.html").read_text()
    assert board.add(tmp_path / "board", tmp_path / "run").attempts[0].attack == "spgd-projected-near"


def test_a_finished_run_of_spgd_is_the_same_run_without_the_field_that_was_removed(tmp_path: Path) -> None:
    record = start(tmp_path)
    as_an_earlier_version_wrote_it(tmp_path)
    assert start(tmp_path).rows == record.rows
    as_an_earlier_version_wrote_it(tmp_path, near=0.1)
    with pytest.raises(UnsupportedError, match=r"attack.near was 0.1, is null; choose another --out"):
        start(tmp_path)
