"""What all commands share: names are printed as they are, and images that do not fit are refused."""

from __future__ import annotations

import shlex
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from sparsepgd import zoo
from sparsepgd.cli import app
from sparsepgd.commands import common
from sparsepgd.commands.common import command_line, out
from sparsepgd.errors import ModelError, ShapeError, SourceError, UnsupportedError
from sparsepgd.sources.data import KINDS
from sparsepgd.sources.listings import Listing, Part, of_tensors
from sparsepgd.speed import bench

MODEL = """
from sparsepgd import Source, zoo
def odd(): return Source("net[/red]", zoo.load("small-plain"), tuple(f"class[/b]{i}" for i in range(10)), 32)
"""
GREY = """
import torch
from torch import nn
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
"""


def spgd(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_brackets_in_names_of_folders_models_and_classes_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(MODEL)
    for folder in ("r[/b]", "r[b]c"):
        said = spgd("evaluate", "--model", "m.py:odd", "-n", 2, "--steps", 2, "--out", folder)
        assert f"records in {folder}\n" in said
        assert Path(folder).is_dir()
        assert "net[/red]" in said
    assert "class[/b]" in spgd("attack", "bundled:3", "--model", "m.py:odd")
    assert "net[/red]" in spgd("compare", "--model", "m.py:odd", "-n", 2, "--attack", "spgd", "--equal-cost", 10)


def next_lines(said: str) -> list[str]:
    return [line.removeprefix("next: ") for line in said.splitlines() if line.startswith("next: ")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("evaluate", "--out", "run"), ["spgd verify run --model zoo:small-plain", "use --steps 1000 and more images"]),
        (("evaluate", "--no-save", "--steps", 1000), ["omit --no-save"]),
        (("compare", "--equal-cost", 20), ["spgd evaluate --model zoo:small-plain --data bundled --attack anneal "]),
    ],
)
def test_the_last_lines_say_what_to_do_next(
    words: tuple[object, ...], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*words, "--model", "zoo:small-plain", "-n", 2, "--attack", "anneal")
    said = spgd(*words)
    found = next_lines(said)
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True))
    assert said.splitlines()[-len(found) :] == [f"next: {line}" for line in found]
    for silent in ("--quiet", "--json"):
        assert next_lines(spgd(*words, silent)) == []
    if "run" in words:
        assert "reported successes confirmed" in spgd(*shlex.split(found[0].split(": spgd ")[1]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sparse-rs,anneal", "--queries", 5000, "--steps", 9), "to publish numbers, use --steps 1000 and more images"),
        (("sparse-rs", "--queries", 9), "to publish numbers, use --queries 5000 and more images (-n)"),
        (("saa+", "--queries", 9, "--steps", 9), "to publish numbers, use --steps 1000 --queries 5000 and more images"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_longer_run_is_proposed_by_the_options_that_the_attacks_use(words: tuple[object, ...], expected: str) -> None:
    found = next_lines(spgd("evaluate", "--no-save", "--model", "small-plain", "-n", 2, "--attack", *words))
    assert found[-1].startswith(expected)


def test_if_robust_accuracy_was_still_falling_the_last_line_says_so() -> None:
    models = ("--model", "small-plain", "--model", "small-strades")
    said = spgd("evaluate", "--no-save", *models, "-n", 32, "--attack", "anneal", "--steps", 60)
    words = "warning: small-strades: robust accuracy was still falling: by "
    assert " ".join(said.split()).count(words) == said.count("warning: ") == 1
    assert next_lines(said)[-1] == "robust accuracy was still falling: use --steps 1000 or more"


def test_of_several_runs_the_first_is_verified_and_all_are_only_read(tmp_path: Path) -> None:
    words = ("--model", "small-plain", "-n", 2, "--attack", "sparse-rs,anneal", "--queries", 3, "--steps", 3)
    for read in (False, True):
        said = spgd("evaluate", *words, "--out", tmp_path / "r")
        assert next_lines(said)[0].startswith("verify the first run: spgd verify ")
        assert ("these runs were already finished and only read; delete the folder to run again" in said) == read


def test_after_an_attack_that_worked_the_next_command_measures_how_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = next_lines(spgd("attack", "bundled:3", "--eps", "0.9"))
    assert line.endswith("spgd evaluate --model zoo:small-plain --attack anneal --k 20 --pattern pixel --eps 0.9")
    assert next_lines(spgd("attack", "bundled:3", "--quiet")) == []


def test_a_command_line_to_copy_leaves_out_what_is_not_given() -> None:
    words = command_line("verify", Path("a b"), model="m.py:net", weights=None, trust=True, normalise=None, json=False)
    assert words == "spgd verify 'a b' --model m.py:net --trust"


def test_numbers_are_not_coloured_and_nothing_is_markup() -> None:
    with out.capture() as seen:
        out.print("[red]3[/red] :smile:")
    assert seen.get() == "[red]3[/red] :smile:\n"


@pytest.mark.parametrize("command", ["compare", "bench", "verify"])
def test_data_are_listed_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a million pictures, or a large npz file, takes long to read."""
    monkeypatch.setattr(bench, "REPEAT", 0.01)
    names: list[str] = []

    def few(rest: str, part: Part) -> Listing:
        names.append(rest)
        return of_tensors(*zoo.bundled_images(2))

    monkeypatch.setitem(KINDS, "few", few)
    words = ["--model", "small-plain", "--data", "few:images"]
    if command == "verify":
        spgd("evaluate", *words, "--steps", 2, "--attack", "spgd", "--out", tmp_path)
        words = [str(tmp_path), *words]
    names.clear()
    spgd(command, *words, *{"compare": ("--attack", "rs"), "bench": ("--steps", 2)}.get(command, ()))
    assert names == ["images"]


@pytest.mark.parametrize("command", ["evaluate", "compare", "bench"])
def test_images_that_do_not_fit_the_model_are_refused_in_words(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.py").write_text(GREY)
    monkeypatch.chdir(tmp_path)
    words = ("-n", 2, "--model", f"{tmp_path / 'm.py'}:net", *(("--no-save",) if command == "evaluate" else ()))
    with pytest.raises(ModelError, match=r"images of shape \(\d, 3, 32, 32\): RuntimeError: Given groups=1"):
        spgd(command, *words)
    for channels in (1, 4):
        np.savez(tmp_path / "d.npz", x=np.zeros((2, channels, 32, 32), np.uint8), y=[0, 1])
        with pytest.raises(ShapeError, match=rf"images of shape \(\d, {channels}, 32, 32\); this network takes 3"):
            spgd(command, "--model", "small-plain", "--data", f"npz:{tmp_path / 'd.npz'}", "-n", 2)


def test_a_picture_is_read_as_grey_for_a_model_of_one_channel(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(GREY)
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(tmp_path / "a.png")
    words = ("--model", f"{tmp_path / 'm.py'}:net", "--k", 40, "--out", tmp_path / "b.png")
    assert "verified on the file" in spgd("attack", tmp_path / "a.png", *words)
    with Image.open(tmp_path / "b.png") as written:
        assert written.mode == "L"


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "--steps", "0"),
        ("bench", "-n", "0"),
        ("bench", "--queries", "0"),
        ("bench", "--batch-size", "0"),
        ("evaluate", "--batch-size", "-1"),
        ("evaluate", "--size", "0"),
        ("evaluate", "-n", "0"),
        ("compare", "--size", "-1"),
        ("attack", "bundled:0", "--queries", "0"),
        ("detect", "d", "--model", "m.pt", "--batch-size", "0"),
    ],
)
def test_counts_below_one_are_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert f"Invalid value for '{words[-2]}'" in done.output


@pytest.mark.parametrize("command", ["attack", "compare", "bench", "detect"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    needed = {"attack": ("bundled:0",), "detect": (tmp_path,)}.get(command, ())
    words = (command, *needed, "--model", "no model at all", "--out", tmp_path / "file" / "out.json")
    with pytest.raises(SourceError, match=r"cannot be written: .*; choose another --out"):
        spgd(*words)


def test_the_plot_of_a_bench_does_not_take_the_place_of_its_record(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"is where the plot goes; name the record FILE\.json"):
        spgd("bench", "--out", tmp_path / "a.png")


def test_one_of_a_thing_is_counted_without_an_s() -> None:
    said = spgd("evaluate", "--model", "small-plain", "-n", 1, "--steps", 2, "--no-save")
    assert "1 image of bundled" in said


def test_the_progress_bar_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, markup=False, emoji=False, highlight=False)
    monkeypatch.setattr(common, "err", terminal)
    with common.progress("net[/red], {spgd}", quiet=False) as report:
        report(1, 2, 1)
    assert "net[/red], {spgd}" in screen.getvalue()
