"""`spgd train` as a user meets it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparsepgd import zoo
from sparsepgd.cli import main
from sparsepgd.commands import train as command
from sparsepgd.errors import UnsupportedError
from sparsepgd.sources import load_data
from sparsepgd.training import recipes, run_folder
from support.quadrants import quadrants

RECIPES = Path(__file__).parents[2] / "recipes"
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
    assert done.stdout.splitlines()[-2] == "weights and record in o"
    assert done.stdout.splitlines()[-1].startswith("next: evaluate the model: spgd evaluate --model ")
    wanted = run_folder.load(place / "o").configuration["settings"]
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
    assert done.stdout.startswith("trained  plain, 1 epoch, ")
    card = zoo.card("model", place / "o")
    assert card.measured.startswith("float32; clean: 12 test images")  # a fifth, which was not trained on
    assert run_folder.load(place / "o").configuration["data"]["images"] == 48
    assert card.command.startswith("spgd train --method plain --model digits_resnet --data npz:q.npz --k 2")
    use = next(line for line in done.stdout.splitlines() if line.startswith("next: evaluate")).split("spgd ")[1]
    used = spgd(*shlex.split(use), "--steps", "3", "--no-save")
    assert used.returncode == 0, used.stderr
    assert "12 images of npz:o/test.npz" in " ".join(used.stdout.split())
    more = spgd("train", "--recipe", "r.toml", "--model", "trained:o", "--epochs", "1", "--out", "p")
    assert more.returncode == 0, more.stderr
    about = zoo.card("model", place / "p")  # a network to start from stays a network of the zoo
    assert (about.architecture, about.method) == ("digits_resnet", "sat")
    assert about.command.startswith("spgd train --recipe r.toml --model trained:o")


def test_the_line_to_use_it_has_the_whole_budget_and_images_that_were_not_trained_on(place: Path, spgd: Spgd) -> None:
    folder = "a folder whose name is longer than the terminal is wide, " * 2
    words = ("--data", "npz:q.npz", "--model", "digits_resnet", "--method", "plain", "--epochs", "1", "--out", folder)
    done = spgd("train", *words, "--k", "1", "--pattern", "patch:2", "--eps", "8/255", "--batch", "16")
    assert done.returncode == 0, done.stderr
    use = next(line for line in done.stdout.splitlines() if line.startswith("next: evaluate the model"))
    budget = ["--k", "1", "--pattern", "patch:2", "--eps", "8/255"]
    assert shlex.split(use)[4:] == ["spgd", "evaluate", "--model", f"trained:{folder}", "--data",
                                    f"npz:{folder}/test.npz", *budget]  # fmt: skip
    x, y = load_data("npz:q.npz")
    kept = load_data(f"npz:{place / folder / 'test.npz'}")
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:12].sort().values
    assert torch.equal(kept.x, x[order])
    assert torch.equal(kept.y, y[order])


@pytest.mark.parametrize("network", ["nets.py:small", "torchvision:squeezenet1_1"])
def test_other_networks_are_tested_too_and_the_line_to_use_them_names_their_weights(
    place: Path, spgd: Spgd, network: str
) -> None:
    if network.startswith("torchvision:"):
        np.savez(place / "q.npz", x=torch.rand(20, 3, 32, 32).numpy(), y=np.arange(20) % 4)
    words = ("--recipe", "r.toml", "--model", network, "--method", "plain", "--epochs", "1", "--out", "o")
    done = spgd("train", *words)
    assert done.returncode == 0, done.stderr
    tested, _, _, use = done.stdout.splitlines()[-4:]
    assert shlex.split(use)[4:9] == ["spgd", "evaluate", "--model", network, "--weights"]
    used = spgd(*shlex.split(use)[5:], "--steps", "2", "--no-save")
    assert used.returncode == 0, used.stderr
    row = next(line.split("│") for line in used.stdout.splitlines() if line.startswith("│"))
    assert row[2].strip() == tested.split("clean ")[1].split(",")[0]


@pytest.mark.parametrize("saved", [False, True])
def test_an_interrupt_says_whether_anything_was_saved(
    saved: bool, place: Path, spgd: Spgd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, out: Path, **__: Any) -> None:
        if saved:
            out.mkdir()
            (out / "checkpoint.pt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_training", interrupted)
    done = spgd("train", "--recipe", "r.toml", "--out", "o")
    words = "finished epochs are in o; run the same command again to resume" if saved else "nothing was saved yet; "
    assert (done.returncode, done.stderr.startswith(f"interrupted; {words}")) == (130, True)


def test_a_class_that_only_the_images_to_test_on_have_is_known_to_the_network(place: Path, spgd: Spgd) -> None:
    x, y = quadrants(60)
    kept = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:12]
    y[kept[0]] = 6
    np.savez(place / "q.npz", x=x.numpy(), y=y.numpy())
    done = spgd("train", "--recipe", "r.toml", "--model", "digits_resnet", "--epochs", "1", "--out", "o")
    assert done.returncode == 0, done.stderr
    assert zoo.card("model", place / "o").arguments == {"num_classes": 7}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0], "npz:few.npz holds 1 image; it needs more, some for training and some for testing"),
        ([0] * 8, "npz:few.npz has labels 0 to 0; expected 0, 1, 2, ..., at least two classes"),
        ([-1, 1] * 4, "npz:few.npz has labels -1 to 1; expected 0, 1, 2, ..., at least two classes"),
    ],
)
def test_labels_that_nothing_can_be_learned_from_are_refused(
    place: Path, spgd: Spgd, labels: list[int], message: str
) -> None:
    np.savez(place / "few.npz", x=np.zeros((len(labels), 1, 8, 8), np.float32), y=np.array(labels))
    done = spgd("train", "--data", "npz:few.npz", "--model", "digits_resnet", "--k", "1", "--out", "o")
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")


def test_images_that_the_model_does_not_take_are_refused_before_the_training(place: Path, spgd: Spgd) -> None:
    done = spgd("train", "--data", "npz:q.npz", "--model", "torchvision:resnet18", "--method", "plain", "--k", "1")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: the model fails on images of shape (2, 1, 8, 8): RuntimeError: Given groups=1"
    )
    assert done.stderr.count("\n") == 1
    assert not (place / "runs").exists()


def test_a_program_with_fixed_weights_is_not_trained(place: Path, spgd: Spgd) -> None:
    """Its trained weights could not be evaluated: --weights does not take the place of those in the file."""
    program = torch.export.export(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), (torch.rand(2, 1, 8, 8),))
    torch.export.save(program, place / "m.pt2")
    done = spgd("train", "--data", "npz:q.npz", "--model", "m.pt2", "--k", "1", "--out", "o")
    assert done.returncode == 2
    assert done.stderr.startswith("error: m.pt2 is a program with fixed weights, which cannot be trained; use preact")
    assert not (place / "o").exists()


def test_images_in_float64_as_numpy_makes_them_are_trained_on(place: Path, spgd: Spgd) -> None:
    x, y = quadrants(40)
    np.savez(place / "d.npz", x=x.double().numpy(), y=y.numpy())
    words = ("--data", "npz:d.npz", "--model", "digits_resnet", "--epochs", "1", "--out", "o")
    done = spgd("train", "--recipe", "r.toml", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted(RECIPES.rglob("*.toml")), ids=lambda file: str(file.relative_to(RECIPES)))
def test_the_command_of_a_recipe_asks_for_the_same_when_it_is_pasted(
    file: Path, spgd: Spgd, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = recipes.read(file)
    assert asked_for(command._command(None, values), spgd, monkeypatch) == {**command.DEFAULTS, **values}


def test_a_command_with_settings_of_every_kind_asks_for_the_same_when_it_is_pasted(
    spgd: Spgd, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "--model",
        "digits_resnet",
        "--data",
        "npz:q.npz",
        "--pattern",
        "patch:3",
        "--lr",
        "1e-5",
        "--eps",
        "8/255",
    ]
    for setting in ("early_stop=False", "bf16=true", "multi_size=[3, 5]", "schedule=one-cycle", "lam=6"):
        words += ["--set", setting]
    wanted = asked_for(["spgd", "train", *words], spgd, monkeypatch)
    assert wanted["early_stop"] is False
    assert (wanted["multi_size"], wanted["lam"], wanted["lr"]) == ((3, 5), 6, 1e-5)
    given = {name: value for name, value in wanted.items() if value != command.DEFAULTS.get(name)}
    assert asked_for(shlex.split(shlex.join(command._command(None, given))), spgd, monkeypatch) == wanted


def asked_for(words: list[str], spgd: Spgd, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a command line comes to, without a training."""
    seen: list[dict[str, Any]] = []

    def folder(parts: Any, words: Any) -> None:
        seen.append(dict(words))
        raise UnsupportedError("seen")

    with monkeypatch.context() as patch:
        patch.setattr(command.options, "run_folder", folder)
        done = spgd(*words[1:])
    assert done.stderr == "error: seen\n"
    return seen[0]


@pytest.mark.slow
def test_without_arguments_digits_are_trained_and_end_up_robust(place: Path, spgd: Spgd) -> None:
    pytest.importorskip("sklearn")
    robust = {}
    for method, epochs in (("plain", "5"), ("fast-ls", "12")):
        done = spgd("train", "--method", method, "--epochs", epochs, "--out", method)
        assert done.returncode == 0, done.stderr
        robust[method] = min(one.robust_accuracy for one in zoo.card("model", place / method).robust)
    assert robust["fast-ls"] > robust["plain"] + 0.2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "magic"), "error: method 'magic'; use one of plain"),
        (("--data", "npz:q.npz"), "error: no --model given for the data 'npz:q.npz'; use preact_resnet18"),
        (("--data", "npz:q.npz", "--model", "torchvision:nothing"), "error: torchvision has no classifier 'nothing'"),
        (("--data", "npz:q.npz", "--model", "trained:none"), "error: no trained model in 'none'"),
        (("--recipe", "none.toml"), "error: 'none.toml' cannot be read"),
        (("--recipe", "q.npz"), "error: q.npz is not a valid recipe: 'utf-8' codec can't decode"),
        (("--set", "speed=9"), "error: --set has an unknown setting 'speed'"),
        (("--epochs", "3", "--set", "epochs=2"), "error: --epochs 3 and --set epochs=...; omit one of them"),
        (("--set", "size=0"), "error: size=0; use at least 1"),
        (("--set", "lr=fast"), "error: lr='fast'; expected a number"),
        (("--set", "early_stop=maybe"), "error: early_stop='maybe'; expected true or false"),
        (("--data", "npz:none.npz", "--set", "lam=-3"), "error: lam=-3; use at least 0"),
        (("--set", "seed=first"), "error: seed='first'; expected an integer"),
        (("--set", "nesterov=true", "--set", "momentum=0"), "error: nesterov=True with momentum=0"),
        (("--recipe", "r.toml", "--k", "65"), "error: k=65 pixels, but a 8x8 image has 64"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(words: tuple[str, ...], message: str, spgd: Spgd) -> None:
    done = spgd("train", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
