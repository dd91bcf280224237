"""The command line as a user meets it; in a process of its own where signals and a full disk need one."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.main import get_command

import sparsepgd
from sparsepgd import zoo
from sparsepgd.cli import COMMANDS, app, main
from sparsepgd.runs.folders import load
from support.terminal import spgd

COMMAND = [sys.executable, "-c", "from sparsepgd.cli import main; main()"]


def test_evaluate_prints_a_table_that_fits_the_terminal(tmp_path: Path) -> None:
    words = [*COMMAND, "evaluate", "-n", "24", "--steps", "8", "--queries", "20", "--no-save"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no terminal, no progress bar
    assert "saa+, 8 steps, 20 queries" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = re.findall(r"│ (small-\S+) +│ +([\d.]+)% │ +([\d.]+)% │", done.stdout)
    assert [row[0] for row in rows] == zoo.bundled_names()
    plain, *trained = ({"clean": float(row[1]), "robust": float(row[2])} for row in rows)
    assert all(plain["robust"] < robust["robust"] <= robust["clean"] for robust in trained)


@pytest.mark.parametrize("pattern", ["row", "patch:5", "heart:9"])
def test_evaluate_takes_structured_budgets(pattern: str, tmp_path: Path) -> None:
    words = ("evaluate", "--model", "zoo:small-plain", "-n", "4", "--steps", "5", "--k", "1", "--pattern", pattern)
    done = spgd(*words, "--no-save", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "small-plain" in done.stdout


RUN = (
    "evaluate",
    "--model",
    "zoo:small-strades",
    "--attack",
    "spgd",
    "-n",
    "20",
    "--steps",
    "20",
    "--chunk",
    "2",
    "--out",
    "runs/a",
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    done = spgd(*RUN, cwd=place)
    assert (done.returncode, done.stdout.splitlines()[-3]) == (0, "records in runs/a"), done.stderr
    return place / "runs" / "a"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_and_ends_like_an_undisturbed_one(
    how: signal.Signals, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "a"
    pipe = subprocess.PIPE
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    with subprocess.Popen(
        [*COMMAND, *RUN], stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, preexec_fn=heard
    ) as running:
        while not (folder / "partial" / "000002-000004.json").exists() and running.poll() is None:
            time.sleep(0.005)
        running.send_signal(how)
        stdout, stderr = running.communicate(timeout=300)
    assert not (folder / "run.json").exists()
    if how == signal.SIGINT:
        assert running.returncode == 130
        assert "robust" not in stdout, "model and data are shown, but no result"
        assert stderr == "interrupted; finished images are in runs/a; run the same command again to resume\n"
    again = spgd(*RUN, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    times = {"created", "seconds", "chunks"}
    assert load(folder).model_dump(exclude=times) == load(undisturbed).model_dump(exclude=times)
    assert (folder / "adversarial.safetensors").read_bytes() == (undisturbed / "adversarial.safetensors").read_bytes()


def test_several_models_and_attacks_get_sub_folders_and_are_read_the_second_time(tmp_path: Path) -> None:
    words = ("evaluate", "-n", "4", "--steps", "3", "--attack", "saa,rs", "--queries", "8", "--out", "all")
    first, second = (spgd(*words, "--quiet", cwd=tmp_path) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert second.stdout.startswith(first.stdout)
    assert second.stdout.removeprefix(first.stdout).startswith("these runs were already finished and only read")
    assert "saa, 3 steps, 8 queries" in first.stdout
    assert "sparse-rs, 8 queries" in first.stdout
    assert max(map(len, first.stdout.splitlines())) <= 80
    records = sorted(str(file.parent.relative_to(tmp_path)) for file in tmp_path.rglob("run.json"))
    models, attacks = sorted(zoo.bundled_names()), ("saa", "sparse-rs")
    assert records == [f"all/{model}/{attack}" for model in models for attack in attacks]
    refused = spgd(*words, "--k", "3", "--seed", "1", cwd=tmp_path)
    assert refused.returncode == 2
    assert "attack.budget.k was 20, is 3; seed was 0, is 1; choose another --out" in refused.stderr


def test_a_folder_of_pictures_and_a_model_of_ones_own_and_what_is_odd_about_it(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / "data" / f"class{number % 3}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 8), (20 * number, 0, 0)).save(tmp_path / "data" / f"class{number % 3}" / f"{number}.png")
    (tmp_path / "mine.py").write_text(
        "from torch import manual_seed, nn\n"
        "def net():\n"
        "    manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(192, 3), nn.Softmax(1))\n"
    )
    words = ("evaluate", "--model", "mine.py:net", "--data", "folder:data", "--size", "8", "--steps", "2", "--k", "2")
    done = spgd(*words, "--no-save", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 images of folder:data" in done.stdout
    said = " ".join(done.stdout.split())
    assert "warning: mine:net: the model is in training mode (Dropout)" in said
    assert "warning: mine:net: the model's outputs look like probabilities" in said
    assert "warning: mine:net: clean accuracy 33.3% is no better than guessing among 3 classes" in said
    assert sorted(file.name for file in tmp_path.iterdir() if file.name != "__pycache__") == ["data", "mine.py"]


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
    assert "90x60, cropped and resized to 32x32" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_attacked_picture_is_not_overwritten(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (32, 32), "red").save(photo)
    before = photo.read_bytes()
    done = spgd("attack", "photo.png", "--out", str(photo), cwd=tmp_path)
    assert done.returncode == 2
    assert "is the image itself, which would be lost; choose another --out" in done.stderr
    assert photo.read_bytes() == before


@pytest.mark.parametrize(("attack", "length"), [("anneal", "--steps"), ("sparse-rs", "--queries")])
def test_an_attack_that_fails_says_so_and_exits_with_1(tmp_path: Path, attack: str, length: str) -> None:
    words = ("--attack", attack, length, "3")
    done = spgd("attack", "bundled:3", "--k", "1", "--eps", "1/255", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "not fooled with k = 1 pixel, eps = 1/255" in done.stdout
    assert f"try a larger --k or more {length}" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "--model", "zoo:nothing"), "error: no model 'nothing'"),
        (("zoo", "nothing"), "error: no model 'nothing'; use one of: "),
        (("evaluate", "--pattern", "blob"), "error: pattern 'blob'; use one of"),
        (("evaluate", "--k", "0"), "error: k=0;"),
        (("evaluate", "--k", "5000"), "error: k=5000 pixels, but a 32x32 image has 1024"),
        (("evaluate", "--eps", "x"), "error: eps 'x'"),
        (("evaluate", "--steps", "1"), "error: steps=1; the first is taken at the clean image: use at least 2"),
        (("evaluate", "--attack", "spgd-near"), "error: attack 'spgd-near'; use one of anneal, "),
        (("evaluate", "--attack", "fgsm"), "error: attack 'fgsm'"),
        (("evaluate", "--data", "folder:nowhere"), "error: no images in 'nowhere'"),
        (("evaluate", "--chunk", "0", "--out", "runs/a"), "error: chunk=0; use at least 1 image"),
        (("evaluate", "--no-save", "--out", "a"), "error: --no-save with --out a; omit one of them"),
        (("evaluate", "-n", "501"), "error: n=501, but bundled holds 500 images"),
        (("evaluate", "--device", "tpu9"), "error: device 'tpu9' cannot be used"),
        (("evaluate", "--device", "meta"), "error: device 'meta' cannot be used: it holds no values; try cpu"),
        (("evaluate", "--k", "many"), "error: Invalid value for '--k': "),
        (("evaluate", "--nothing"), "error: No such option: --nothing"),
        (("nothing",), "error: No such command 'nothing'"),
        (("report",), "error: Missing argument 'RUN'; see spgd report --help"),
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


def test_a_path_that_the_system_refuses_is_one_line_and_no_success(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, name in (
        (("evaluate", "--model", f"trained:{'a' * 300}"), f"{'a' * 300}/model.json"),
        (("reproduce", "ratio", "-n", "1", "--out", "file"), "file/cases"),
    ):
        done = spgd(*words, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: '{name}' cannot be used: ")
        assert len(done.stderr.splitlines()) == 1


def test_an_interrupt_at_any_moment_is_one_line_and_exit_code_130(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def net():\n    raise KeyboardInterrupt\n")
    done = spgd("evaluate", "--model", "mine.py:net", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_the_command_alone_shows_its_help(tmp_path: Path) -> None:
    done = spgd(cwd=tmp_path)
    assert "evaluate" in done.stdout
    assert done.stderr == ""
    assert done.returncode == 2


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = spgd("evaluate", "--k", "0", "--debug", cwd=tmp_path)
    assert "Traceback" in done.stderr


def test_zoo_lists_the_models(tmp_path: Path) -> None:
    done = spgd("zoo", cwd=tmp_path)
    assert done.returncode == 0
    assert all(name in done.stdout for name in zoo.names())
    assert max(map(len, done.stdout.splitlines())) <= 80
    card = spgd("zoo", "small-strades", cwd=tmp_path)
    assert (card.returncode, card.stderr) == (0, "")
    assert zoo.card("small-strades").command in card.stdout


@pytest.mark.parametrize("words", [("zoo",), ("--help",)])
def test_a_full_disk_behind_stdout_is_one_line_and_no_success(words: tuple[str, ...], tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=300,
        )
    assert (done.returncode, done.stderr) == (1, "error: cannot print: No space left on device\n")


def test_help_fits_80_columns_with_whole_summaries_panels_and_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    general = spgd("--help", cwd=tmp_path).stdout
    one = spgd("evaluate", "--help", cwd=tmp_path).stdout
    assert max(len(line) for line in (general + one).splitlines()) <= 80
    for name, (_, summary, _) in COMMANDS.items():
        assert re.search(rf"│ {name} +{re.escape(summary)} +│", general), name
    for panel in ("Model and data", "Budget", "Attack", "Output", "Performance"):
        assert f"─ {panel} ─" in one
    assert "spgd evaluate --model mine.py:make_model" in one
    assert "--debug" in general
    assert "--debug" in one
    assert "letter:H:60" in one, "and no emoji in its place"


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--model", "zoo:small-plain", "-n", "3", "--attack", "spgd", "--steps", "3", "--out", "run"),
        ("compare", "-n", "3", "--attack", "spgd,anneal", "--equal-cost", "20"),
        ("leaderboard", "--folder", str(Path(__file__).parent.parent / "leaderboard")),
        ("zoo",),
    ],
    ids=lambda words: words[0],
)
def test_json_has_stdout_for_itself(words: tuple[str, ...], tmp_path: Path) -> None:
    done = spgd(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "small-plain" in json.dumps(told)
    assert "small-plain" in done.stderr, "the table"
    if words[0] == "evaluate":
        assert told[0]["robust_accuracy"] == load(tmp_path / "run").robust_accuracy


def test_with_json_warnings_go_to_stderr_too(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import sparsepgd as sp\nfrom sparsepgd import zoo\n"
        "def make():\n    return sp.Source('mine', zoo.load('small-plain'), tuple('abcdefghij'))\n"
    )
    x, y = zoo.bundled_images(3)
    np.savez(tmp_path / "d.npz", x=x.permute(0, 2, 3, 1).numpy(), y=y.numpy(), class_names=zoo.CIFAR10_CLASSES)
    words = ("compare", "--model", "m.py:make", "--data", "npz:d.npz", "-n", "3", "--attack", "spgd")
    done = spgd(*words, "--equal-cost", "20", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["n"] == 3
    assert "warning: mine: class" in done.stderr


def test_with_json_what_a_model_prints_goes_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "from sparsepgd import zoo\n"
        "print('imported')\n"
        "def make():\n"
        "    print('made')\n"
        "    model = zoo.load('small-plain')\n"
        "    model.register_forward_hook(lambda *_: print('asked'))\n"
        "    return model\n"
    )
    words = ("evaluate", "--model", "m.py:make", "-n", "2", "--steps", "2", "--attack", "spgd", "--no-save")
    done = spgd(*words, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)[0]["images"] == 2
    assert all(word in done.stderr for word in ("imported\n", "made\n", "asked\n"))
    after = spgd(*words, cwd=tmp_path)
    assert "asked\n" in after.stdout, "only with --json"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_examples_that_parse(name: str) -> None:
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    for example in COMMANDS[name][2]:
        assert example.split()[0] == name
        command.make_context(name, shlex.split(example)[1:])


def test_seeds_and_the_curve_over_k_are_tabled_drawn_and_recorded(tmp_path: Path) -> None:
    words = ("evaluate", "--model", "zoo:small-plain", "-n", "10", "--steps", "5", "--k", "8")
    done = spgd(*words, "--k-curve", "--seeds", "2", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "robust accuracy over 2 seeds: anneal, 5 steps" in " ".join(done.stdout.split())
    curve = re.search(r"%, at k = (.*?)┃\n.*?│ small-plain +│(.*?)│\n", done.stdout, re.S)
    assert curve is not None
    accuracies = [int(word) for word in re.findall(r"\d+", curve[2])]
    assert accuracies == sorted(accuracies, reverse=True)
    for seed in ("seed-0", "seed-1"):
        folder = tmp_path / "run" / seed
        assert "Against k" in (folder / "report.html").read_text()
        record = load(folder)
        assert record.configuration["seed"] == int(seed[-1])
        assert {row.groups <= 8 for row in record.rows} == {True}
        assert record.configuration["attack"]["name"] == "anneal-smallest-k"
        assert {row.forwards for row in record.rows if row.clean_correct} == {5}  # one run, not a bisection


def test_records_go_to_a_folder_named_after_the_command_and_can_be_verified(tmp_path: Path) -> None:
    words = ("evaluate", "--model", "zoo:small-plain", "-n", "12", "--steps", "6", "--attack", "saa", "--queries", "20")
    first = spgd(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"records in runs/{folder.name}" in first.stdout
    again = spgd(*words, cwd=tmp_path)
    assert "this run was already finished and only read" in again.stdout
    assert again.stdout.splitlines()[:6] == first.stdout.splitlines()[:6]
    fooled = sum(row.fooled for row in load(folder).rows)
    checked = spgd("verify", str(folder), "--model", "zoo:small-plain", cwd=tmp_path)
    assert (checked.returncode, checked.stdout) == (0, f"{fooled} of {fooled} reported successes confirmed\n")
    other = spgd("verify", str(folder), "--model", "zoo:small-strades", cwd=tmp_path)
    assert other.returncode == 2
    assert "model.digest" in other.stderr


def test_no_save_writes_nothing(tmp_path: Path) -> None:
    done = spgd("evaluate", "--model", "zoo:small-plain", "-n", "4", "--steps", "2", "--no-save", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_told(tmp_path: Path) -> None:
    assert spgd("--version", cwd=tmp_path).stdout == f"spgd {sparsepgd.__version__}\n"


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["nothing"], 2)])
def test_the_command_does_not_wait_for_the_compiler(
    words: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(sys, "argv", ["spgd", *words])
    monkeypatch.setattr("os._exit", left.append)
    for compiling in (False, True):
        monkeypatch.setattr("sparsepgd.cli.compiling", lambda compiling=compiling: compiling)
        with pytest.raises(SystemExit):
            main()
    assert left == [code]


def test_an_interruption_ends_with_one_line_under_older_versions_of_typer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise type("Abort", (RuntimeError,), {})

    monkeypatch.setattr(sys, "argv", ["spgd", "zoo"])
    monkeypatch.setattr("sparsepgd.cli.app", interrupted)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_help_of_the_command_alone_is_printed_if_typer_has_not_shown_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with TYPER_USE_RICH=0."""

    class NoArgsIsHelpError(RuntimeError):
        exit_code = 2

        def format_message(self) -> str:
            return "Usage: spgd [OPTIONS] COMMAND"

    def alone(*_: object, **__: object) -> None:
        raise NoArgsIsHelpError

    monkeypatch.setattr(sys, "argv", ["spgd"])
    monkeypatch.setattr("sparsepgd.cli.app", alone)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr() == ("Usage: spgd [OPTIONS] COMMAND\n", "")
