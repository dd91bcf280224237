"""`spgd train` as a user meets it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sparsepgd import zoo
from sparsepgd.cli import main
from sparsepgd.training import records
from training.toys import quadrants

NETWORK = """
from torch import nn
def small(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
"""


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Spgd = Callable[..., Done]


@pytest.fixture
def spgd(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spgd:
    """The command in this process, in the folder `place`."""

    def run(*words: str) -> Done:
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "argv", ["spgd", *words])
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        return Done(int(code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    x, y = quadrants(60)
    np.savez(tmp_path / "q.npz", x=(x * 255).byte().numpy(), y=y.numpy())
    (tmp_path / "nets.py").write_text(NETWORK)
    (tmp_path / "r.toml").write_text(
        'method = "sat"\ndata = "npz:q.npz"\nmodel = "nets.py:small"\nk = 1\nbatch = 16\nepochs = 3\nsteps = 2\n'
    )
    return tmp_path


def test_a_recipe_is_followed_and_the_command_line_overrides_it(place: Path, spgd: Spgd) -> None:
    words = ("--recipe", "r.toml", "--epochs", "2", "--set", "lam=4", "--set", "gradient=alternating", "--out", "o")
    done = spgd("train", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no terminal, no progress bar
    assert done.stdout.splitlines()[-1] == "weights and record in o"
    wanted = records.load(place / "o").configuration["settings"]
    assert (wanted["method"], wanted["epochs"], wanted["steps"], wanted["batch"]) == ("sat", 2, 2, 16)
    assert (wanted["lam"], wanted["gradient"]) == (4, "alternating")
    again = spgd("train", *words)  # finished: read, not run
    assert again.returncode == 0, again.stderr
    other = spgd("train", *words, "--seed", "1")
    assert other.returncode == 2
    assert other.stderr.startswith("error: o holds another run: settings.seed was 0, is 1")


def test_a_network_of_the_zoo_becomes_a_model_for_the_other_commands(place: Path, spgd: Spgd) -> None:
    words = ("--data", "npz:q.npz", "--model", "digits_resnet", "--method", "plain", "--epochs", "1", "--out", "o")
    done = spgd("train", *words, "--k", "2", "--batch", "16")
    assert done.returncode == 0, done.stderr
    card = zoo.card("model", place / "o")
    assert card.measured.startswith("float32; clean: 12 test images")  # a fifth, which was not trained on
    assert records.load(place / "o").configuration["data"]["images"] == 48
    assert card.command.startswith("spgd train --method plain --model digits_resnet --data npz:q.npz --k 2")
    evaluate = ("evaluate", "--model", "trained:o", "--data", "npz:q.npz", "--k", "2", "--steps", "3", "--no-save")
    used = spgd(*evaluate)
    assert used.returncode == 0, used.stderr
    more = spgd("train", "--recipe", "r.toml", "--model", "trained:o", "--epochs", "1", "--out", "p")
    assert more.returncode == 0, more.stderr
    about = zoo.card("model", place / "p")  # a network to start from stays a network of the zoo
    assert (about.architecture, about.method) == ("digits_resnet", "sat")
    assert about.command.startswith("spgd train --recipe r.toml --model trained:o")


@pytest.mark.slow
def test_without_arguments_digits_are_trained_and_end_up_robust(place: Path, spgd: Spgd) -> None:
    pytest.importorskip("sklearn")
    robust = {}
    for method, epochs in (("plain", "5"), ("fast-ls", "8")):
        done = spgd("train", "--method", method, "--epochs", epochs, "--out", method)
        assert done.returncode == 0, done.stderr
        robust[method] = min(zoo.card("model", place / method).robust_accuracy.values())
    assert robust["fast-ls"] > robust["plain"] + 0.2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "magic"), "error: method 'magic'; use one of plain"),
        (("--data", "npz:q.npz"), "error: no --model for the data 'npz:q.npz'; use preact_resnet18"),
        (("--data", "npz:q.npz", "--model", "torchvision:nothing"), "error: torchvision has no model 'nothing'"),
        (("--data", "npz:q.npz", "--model", "trained:none"), "error: no trained model in 'none'"),
        (("--recipe", "none.toml"), "error: 'none.toml' cannot be read"),
        (("--set", "speed=9"), "error: --set has no use for 'speed'"),
        (("--recipe", "r.toml", "--k", "65"), "error: k=65 pixels, but a 8x8 image has 64"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(words: tuple[str, ...], message: str, spgd: Spgd) -> None:
    done = spgd("train", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
