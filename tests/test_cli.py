"""The command line as a user meets it, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd import zoo

COMMAND = [sys.executable, "-c", "from sparsepgd.cli import main; main()"]


def spgd(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, cwd=cwd, env=environment, timeout=300)


def test_evaluate_prints_a_table_that_fits_the_terminal(tmp_path: Path) -> None:
    done = spgd("evaluate", "-n", "24", "--steps", "8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no terminal, no progress bar
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = re.findall(r"│ (small-\S+) +│ +([\d.]+)% │ +([\d.]+)% │", done.stdout)
    assert [row[0] for row in rows] == zoo.names()
    plain, robust = ({"clean": float(row[1]), "robust": float(row[2])} for row in rows)
    assert plain["robust"] < robust["robust"] <= robust["clean"]


@pytest.mark.parametrize("pattern", ["row", "patch:5", "heart:9"])
def test_evaluate_takes_structured_budgets(pattern: str, tmp_path: Path) -> None:
    words = ("evaluate", "--model", "zoo:small-plain", "-n", "8", "--steps", "5", "--k", "1", "--pattern", pattern)
    done = spgd(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "small-plain" in done.stdout


def test_attack_writes_a_png_that_fools_the_model_when_read_back(tmp_path: Path) -> None:
    done = spgd("attack", "bundled:3", "--out", "adversarial.png", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "before  airplane" in done.stdout
    assert "pixels changed" in done.stdout
    x, y = zoo.bundled_images(4)
    read = torch.from_numpy(np.array(Image.open(tmp_path / "adversarial.png"))).permute(2, 0, 1)[None].float() / 255
    changed = int((read[0] != x[3]).any(0).sum())
    assert 0 < changed <= 20
    with torch.no_grad():
        assert int(zoo.load("small-plain")(read).argmax()) != int(y[3])


def test_attack_on_a_large_photo_says_what_was_done_to_it(tmp_path: Path) -> None:
    x, _ = zoo.bundled_images(1)
    levels = (x[0] * 255).to(torch.uint8).permute(1, 2, 0).numpy()
    Image.fromarray(levels).resize((90, 60)).save(tmp_path / "photo.jpg")
    done = spgd("attack", "photo.jpg", "--k", "60", cwd=tmp_path)
    assert "90x60, cut and resized to 32x32" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_attack_that_fails_says_so_and_exits_with_1(tmp_path: Path) -> None:
    done = spgd("attack", "bundled:3", "--k", "1", "--eps", "1/255", "--steps", "3", cwd=tmp_path)
    assert done.returncode == 1
    assert "not fooled within Budget(k=1, Pixels(), eps=0.003922)" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "--model", "zoo:nothing"), "error: no model 'nothing'"),
        (("evaluate", "--pattern", "blob"), "error: pattern 'blob'; use one of"),
        (("evaluate", "--k", "0"), "error: k=0;"),
        (("evaluate", "--k", "5000"), "error: k=5000 pixels, but a 32x32 image has 1024"),
        (("evaluate", "--eps", "x"), "error: eps 'x'"),
        (("evaluate", "--attack", "fgsm"), "error: attack 'fgsm'"),
        (("evaluate", "-n", "501"), "error: n=501, but 500 images are bundled"),
        (("evaluate", "--device", "tpu9"), "error: device 'tpu9' cannot be used"),
        (("attack", "nowhere.png"), "error: no file 'nowhere.png'"),
        (("attack", "bundled:3", "--label", "99"), "error: label 99 of image 0"),
    ],
)
def test_wrong_use_is_one_line_on_stderr_and_exit_code_2(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = spgd(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = spgd("evaluate", "--k", "0", "--debug", cwd=tmp_path)
    assert "Traceback" in done.stderr


def test_zoo_lists_the_models(tmp_path: Path) -> None:
    done = spgd("zoo", cwd=tmp_path)
    assert done.returncode == 0
    assert all(name in done.stdout for name in zoo.names())
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_names_every_command(tmp_path: Path) -> None:
    done = spgd("--help", cwd=tmp_path)
    assert all(word in done.stdout for word in ("evaluate", "attack", "zoo"))
