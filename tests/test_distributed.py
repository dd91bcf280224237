"""Several workers on one run: real processes, started by torchrun, that end like one process alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import sparsepgd as sp
from sparsepgd.distributed import Workers, joined
from sparsepgd.errors import SparsePGDError, UnsupportedError
from sparsepgd.runs import folders, runs
from sparsepgd.runs.folders import Folder, load
from sparsepgd.runs.records import Chunk
from support.models import SmallConvNet, images, labelled
from support.terminal import spgd

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts")
COMMAND = (
    "-m",
    "sparsepgd",
    "evaluate",
    "--model",
    "zoo:small-plain",
    "--attack",
    "spgd",
    "--steps",
    "80",
    "--k",
    "3",
    "-n",
    "24",
)
CHUNKS = ("--chunk", "4", "--batch-size", "4")
ATTACK = sp.SparsePGD(sp.Budget(k=6), steps=3)


@contextmanager
def started(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    pipe, command = subprocess.PIPE, [sys.executable, *words]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=cwd) as process:
        try:
            yield process
        finally:
            process.terminate()  # torchrun then ends its workers


def ended(*words: str, cwd: Path) -> tuple[int, str, str]:
    with started(*words, cwd=cwd) as process:
        stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


def outcome(folder: Path) -> tuple[dict[str, object], bytes]:
    """All of a run but the times."""
    record = load(folder)
    assert [(part.start, part.stop) for part in record.chunks] == [(i, i + 4) for i in range(0, 24, 4)]
    assert not (folder / "partial").exists()
    kept = record.model_dump(exclude={"created", "seconds", "chunks"})
    return kept, (folder / "adversarial.safetensors").read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("alone")
    done = spgd(*COMMAND[2:], *CHUNKS, "--out", "r", cwd=place)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-3]) == (0, "", "records in r")
    record = load(place / "r")
    assert 0 < record.robust_accuracy < record.clean_accuracy
    return place / "r"


def test_two_workers_end_like_one_and_only_the_first_speaks(alone: Path, tmp_path: Path) -> None:
    words = (*TORCHRUN, "0", *COMMAND, *CHUNKS, "--out", "r")
    code, stdout, stderr = ended(*words, cwd=tmp_path)
    assert code == 0, stderr
    assert (stdout.count("small-plain: input"), stdout.count("records in r")) == (1, 1)
    assert outcome(tmp_path / "r") == outcome(alone)


@pytest.mark.nightly
def test_two_workers_find_the_folder_of_another_run(alone: Path) -> None:
    """The first says so, the other does not wait for ever."""
    code, stdout, stderr = ended(*TORCHRUN, "0", *COMMAND, *CHUNKS, "--out", "r", "--seed", "1", cwd=alone.parent)
    assert code == 1
    assert "robust" not in stdout, "model and data are shown, but no result"
    assert stderr.count("error: r holds another run: seed was 0, is 1") == 1


def worker(launcher: int, rank: int) -> int:
    """The process that torchrun started under this rank."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"no worker {rank}")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_one_worker_killed_costs_nothing_that_was_finished(rank: int, alone: Path, tmp_path: Path) -> None:
    """kill -9 while chunks are under way: torchrun starts both again, and they go on from the files."""
    partial = tmp_path / "r" / "partial"
    with started(*TORCHRUN, "3", *COMMAND, *CHUNKS, "--out", "r", cwd=tmp_path) as launcher:
        while len(list(partial.glob("*-*.json"))) < 2 and launcher.poll() is None:
            time.sleep(0.005)
        os.kill(worker(launcher.pid, rank), signal.SIGKILL)
        finished = [Chunk.model_validate_json(file.read_bytes()).part for file in partial.glob("*-*.json")]
        stdout, stderr = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, stderr
    assert "exitcode: -9" in stderr
    assert stdout.count("records in r") == 1
    assert outcome(tmp_path / "r") == outcome(alone)
    assert 2 <= len(finished) < 6
    assert set(finished) <= set(load(tmp_path / "r").chunks)  # with the same times: they were not made twice


def test_workers_without_a_folder_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="2 workers need a common folder; use --out"):
        runs.run(None, ATTACK, *problem(), workers=Workers(1, 2, 0))


def problem() -> tuple[SmallConvNet, tuple[torch.Tensor, torch.Tensor]]:
    model, x = SmallConvNet().eval(), images(6)
    return model, (x, labelled(model, x))


def test_outside_torchrun_there_is_one_worker_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with joined() as workers:
        assert workers == Workers(0, 1, 0)
        assert not torch.distributed.is_initialized()
        assert (workers.first, workers.device) == (True, None)
        assert (workers.share(lambda: 7), workers.gather(8)) == (7, [8])
        workers.gather(None)


def test_the_environment_of_torchrun_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "13", "WORLD_SIZE": "16", "LOCAL_RANK": "5"}.items():
        monkeypatch.setenv(name, value)
    assert Workers.here() == Workers(rank=13, world=16, local_rank=5)
    assert not Workers.here().first


@pytest.mark.parametrize(("gpus", "expected"), [(8, "cuda:5"), (4, "cuda:1"), (0, None)])
def test_each_worker_of_a_machine_gets_a_gpu(gpus: int, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert Workers(13, 16, 5).device == expected
    assert Workers().device is None


@pytest.mark.parametrize(
    ("world", "count", "size", "device"),
    [(1, 500, 100, "cpu"), (2, 120, 60, "cpu"), (8, 12, 2, "cpu"), (8, 3, 1, "cpu"), (1, 5000, 1000, "cuda")],
)
def test_left_out_the_chunks_are_short_enough_for_all_and_long_where_the_model_is_on_a_gpu(
    world: int, count: int, size: int, device: str
) -> None:
    assert runs.chunk_size(count, None, world, torch.device(device)) == size
    assert runs.chunk_size(count, 4, world, torch.device(device)) == 4


def test_a_worker_with_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = problem()
    first = runs.run(tmp_path, ATTACK, model, data)
    monkeypatch.setattr(Workers, "share", lambda self, make: first)
    with pytest.raises(UnsupportedError, match=r"worker 1 has different settings than the first: model.digest was"):
        runs.run(tmp_path, ATTACK, SmallConvNet(seed=1).eval(), data, workers=Workers(1, 2, 0))


def test_chunks_that_went_to_a_folder_of_another_machine_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Folder.add
    monkeypatch.setattr(folders, "LAG", 0.0)
    monkeypatch.setattr(Folder, "add", lambda self, made, x: made if made.part.start == 2 else real(self, made, x))
    with pytest.raises(
        SparsePGDError, match=r"images 2 to 3 were attacked but are not in .*that all workers can access"
    ):
        runs.run(tmp_path, ATTACK, *problem(), chunk=2)
    assert Folder(tmp_path).images_done() == 4
    monkeypatch.undo()
    runs.run(tmp_path, ATTACK, *problem(), chunk=2)


def test_workers_on_other_hardware_are_said_and_other_numbers_of_the_device_are_not(tmp_path: Path) -> None:
    head = runs.run(tmp_path, ATTACK, *problem())
    here = head.environment
    assert runs._mixed(head, [here, {**here, "device": "cuda:1"}]) == ()
    (notice,) = runs._mixed(head, [here, {**here, "hardware": "other"}, {**here, "hardware": "other"}])
    assert notice.code == "mixed"
    assert notice.message.count("is other") == 1
