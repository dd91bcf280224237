"""`sp.evaluate`: the run of `spgd evaluate` from Python, its result, its page, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.analysis.sanity import Notice
from sparsepgd.cli import app
from sparsepgd.errors import DTypeError, FolderError, UnsupportedError
from sparsepgd.runs import runs
from sparsepgd.runs.folders import load
from sparsepgd.runs.records import About

X, Y = zoo.bundled_images(12)
NAMES = {"model": "small-plain", "data": "bundled"}
TIMES = {"created", "seconds", "chunks"}
SPGD = sp.SparsePGD(sp.Budget(k=8), steps=4)


def same(one: sp.Result, other: sp.Result) -> bool:
    fields = [name for name in vars(one) if name not in ("broken_by", "loss")]
    alike = all(torch.equal(vars(one)[name], vars(other)[name]) for name in fields)
    return alike and one.broken_by == other.broken_by and torch.equal(one.loss.nan_to_num(9), other.loss.nan_to_num(9))


def test_the_command_line_and_python_give_the_same_record(tmp_path: Path) -> None:
    words = ("evaluate", "--model", "small-plain", "-n", "12", "--k", "8", "--steps", "4", "--queries", "9", "-q")
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "command")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = sp.evaluate(
        zoo.load("small-plain"), X, Y, sp.Budget(k=8), out=tmp_path / "python", steps=4, queries=9, names=NAMES,
        class_names=zoo.CIFAR10_CLASSES,
    )  # fmt: skip
    ours, theirs = (load(tmp_path / name) for name in ("python", "command"))
    assert ours == found.record
    assert ours.model_dump(exclude={*TIMES, "about"}) == theirs.model_dump(exclude={*TIMES, "about"})
    assert ours.about == About(class_names=zoo.CIFAR10_CLASSES)
    images = [tmp_path / name / "adversarial.safetensors" for name in ("python", "command")]
    assert images[0].read_bytes() == images[1].read_bytes()
    assert found.report() == tmp_path / "python" / "report.html"


def test_numbers_may_name_the_classes() -> None:
    found = sp.evaluate(zoo.load("small-plain"), X[:2], Y[:2], attack=SPGD, class_names=range(10))  # type: ignore[arg-type]
    assert found.record.about.class_names == tuple("0123456789")


@pytest.mark.parametrize("quantize", [False, True])
def test_the_result_is_that_of_the_attack_with_and_without_a_folder(quantize: bool, tmp_path: Path) -> None:
    model, attack = zoo.load("small-plain"), sp.SparsePGD(sp.Budget(k=8), 4, quantize=quantize)
    expected = attack(model, X, Y, seed=3)
    here, kept = (sp.evaluate(model, X, Y, attack=attack, out=out, seed=3) for out in (None, tmp_path / "run"))
    assert same(here.result, expected)
    assert same(kept.result, expected)
    assert kept.result is kept.result
    assert (here.robust_accuracy, here.clean_accuracy) == (expected.robust_accuracy, expected.clean_accuracy)
    assert here.robust_interval[0] <= here.robust_accuracy <= here.robust_interval[1]
    assert here.clean_interval[0] <= here.clean_accuracy <= here.clean_interval[1]


def test_a_run_that_was_interrupted_goes_on_and_ends_like_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, whole, stopped = zoo.load("small-plain"), tmp_path / "whole", tmp_path / "stopped"
    expected = sp.evaluate(model, X, Y, attack=SPGD, out=whole, chunk=4)
    real, seen = runs.attack_chunk, list[int]()

    def killed(*args: Any) -> Any:
        seen.append(args[2])
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(runs, "attack_chunk", killed)
    with pytest.raises(KeyboardInterrupt):
        sp.evaluate(model, X, Y, attack=SPGD, out=stopped, chunk=4)
    found = sp.evaluate(model, X, Y, attack=SPGD, out=stopped, chunk=4)
    assert seen == [0, 4, 4, 8]
    assert found.record.model_dump(exclude=TIMES) == expected.record.model_dump(exclude=TIMES)
    assert same(found.result, expected.result)
    again = sp.evaluate(model, X, Y, attack=SPGD, out=stopped)
    assert (again.only_read, found.only_read, again.record) == (True, False, found.record)
    with pytest.raises(FolderError, match=r"holds another run: seed was 0, is 1"):
        sp.evaluate(model, X, Y, attack=SPGD, out=stopped, seed=1)


KILLED = """
import os, sys, sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.runs import runs
real = runs.attack_chunk
def attack_chunk(task, run_id, start, stop, fooled):
    if start == 8:
        os.kill(os.getpid(), 9)
    return real(task, run_id, start, stop, fooled)
runs.attack_chunk = attack_chunk
x, y = zoo.bundled_images(12)
sp.evaluate(zoo.load("small-plain"), x, y, attack=sp.SparsePGD(sp.Budget(k=8), steps=4), out=sys.argv[1], chunk=4)
"""


def test_a_run_whose_process_was_killed_goes_on(tmp_path: Path) -> None:
    model, expected = zoo.load("small-plain"), tmp_path / "whole"
    sp.evaluate(model, X, Y, attack=SPGD, out=expected, chunk=4)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], env=os.environ)
    assert done.returncode == -9
    assert sorted(file.name for file in (tmp_path / "run" / "partial").glob("*.json"))[:2] == [
        "000000-000004.json",
        "000004-000008.json",
    ]
    sp.evaluate(model, X, Y, attack=SPGD, out=tmp_path / "run", chunk=4)
    assert load(tmp_path / "run").model_dump(exclude=TIMES) == load(expected).model_dump(exclude=TIMES)


def test_it_prints_a_table_and_its_warnings_and_is_one_line_in_a_list() -> None:
    found = sp.evaluate(zoo.load("small-plain"), X, torch.full_like(Y, 9), attack=SPGD, names=NAMES)
    assert [notice.code for notice in found.warnings] == ["chance"]
    lines = str(found).splitlines()
    assert lines[0].strip() == "spgd-unprojected, 4 steps, k = 8 pixels"
    assert max(map(len, lines)) <= 80
    assert "small-plain" in str(found)
    assert "12 images of bundled, seed 0" in str(found)
    assert "warning: clean accuracy" in str(found)
    assert repr(found).startswith("Evaluation(small-plain under spgd-unprojected, 12 images, clean ")
    assert repr(found).endswith(", 1 warning)")


def test_without_a_folder_the_page_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = sp.evaluate(zoo.load("small-plain"), X, Y, attack=SPGD, names=NAMES)
    assert list(tmp_path.iterdir()) == []
    assert found.report() == Path("report.html")
    kept = sp.evaluate(zoo.load("small-plain"), X, Y, attack=SPGD, names=NAMES, out="run")
    assert kept.report("other.html") == Path("other.html")
    assert "small-plain under spgd-unprojected" in (tmp_path / "report.html").read_text()
    written = Path("other.html").stat().st_mtime_ns
    kept.report("other.html")
    assert Path("other.html").stat().st_mtime_ns == written, "it shows this run already"


def test_models_that_are_functions_and_outputs_that_hold_logits(tmp_path: Path) -> None:
    network = zoo.load("small-plain")

    def model(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": network(x)}

    attack = sp.SparseRS(sp.Budget(k=8), queries=5)
    expected = attack(network, X, Y)
    for one in (model, Holder(network)):
        found = sp.evaluate(one, X, Y, attack=attack, logits=lambda out: out["logits"])
        assert torch.equal(found.result.fooled, expected.fooled)
    named: dict[str, Any] = {"attack": attack, "logits": lambda out: out["logits"]}
    sp.evaluate(model, X, Y, out=tmp_path / "named", names=NAMES, **named)
    assert sp.evaluate(model, X, Y, out=tmp_path / "named", names=NAMES, **named).only_read
    sp.evaluate(model, X, Y, out=tmp_path / "run", **named)
    with pytest.raises(FolderError, match="plain function"):
        sp.evaluate(model, X, Y, out=tmp_path / "run", **named)


class Holder(torch.nn.Module):
    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.network(x)}


def test_the_defaults_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(runs, "run", lambda *args, **words: seen.append((args, words)))
    for words in ({}, {"budget": sp.Budget(k=20), "attack": "saa+", "steps": 100, "queries": 200}):
        sp.evaluate(zoo.load("small-plain"), X, Y, **words)
    (first, words), (second, _) = seen
    assert repr(first[1]) == repr(second[1])
    assert (words["seed"], words["engine"], words["batch_size"], words["chunk"]) == (0, None, None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"attack": "magic"}, "attack 'magic'; use one of "),
        ({"attack": 3}, "3 is not an attack; expected one, e.g. SparsePGD"),
        ({"engine": "fp16"}, r"engine='fp16'; expected an Engine, e.g. Engine\('fp32'\)"),
        ({"out": 3}, "out=3; expected a folder, e.g. 'runs/mine', or None"),
        ({"chunk": 2.5}, "chunk=2.5; use at least 1 image"),
        ({"chunk": "2"}, "chunk='2'; use at least 1 image"),
        ({"budget": 20}, r"budget=20; expected a Budget, e.g. Budget\(k=20\)"),
        ({"attack": SPGD, "steps": 5}, "steps=5 was given with an attack object, which has its own; set it there"),
        ({"attack": SPGD, "queries": 5}, "queries=5 was given with an attack object"),
        (
            {"attack": SPGD, "budget": sp.Budget(k=9)},
            r"budget=Budget\(k=9, .* was given with an attack that has budget=Budget\(k=8",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        sp.evaluate(zoo.load("small-plain"), X, Y, **words)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X.numpy(), Y, "images of type ndarray; expected a torch tensor"),
        (X, Y.numpy(), "labels of type ndarray; expected a tensor of integers"),
    ],
)
def test_arrays_of_numpy_are_refused_in_words(x: Any, y: Any, message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        sp.evaluate(zoo.load("small-plain"), x, y, sp.Budget(k=8), SPGD)


def test_the_budget_of_an_attack_may_be_said_again() -> None:
    assert sp.evaluate(zoo.load("small-plain"), X, Y, sp.Budget(k=8), SPGD).record.images == 12


def test_in_a_notebook_it_is_a_table_with_pairs_of_images_and_its_warnings() -> None:
    found = sp.evaluate(
        zoo.load("small-plain"), X, Y, attack=SPGD, names=NAMES, class_names=["<cat>", *zoo.CIFAR10_CLASSES[1:]]
    )
    noticed = found.record.model_copy(update={"warnings": (Notice("code", "a < b"),)})
    html = dataclasses.replace(found, record=noticed)._repr_html_()
    for word in ("small-plain", "spgd-unprojected", "k = 8 pixels", f"{found.robust_accuracy:.1%}"):
        assert f"<td>{word}</td>" in html
    assert "<p>warning: a &lt; b</p>" in html
    assert html.count("<img") == 2 * html.count("<figure") == 2 * int(found.result.fooled.sum()[None].clamp(max=8))
    assert "<cat>" not in html


def test_a_record_in_a_notebook_is_the_same_table_without_images() -> None:
    found = sp.evaluate(zoo.load("small-plain"), X, Y, attack="saa", steps=3, queries=20, names=NAMES)
    noticed = found.record.model_copy(update={"warnings": (Notice("code", "a < b"),)})
    html = noticed._repr_html_()
    for word in ("small-plain", "saa", "k = 20 pixels", f"{found.robust_accuracy:.1%}"):
        assert f"<td>{word}</td>" in html
    assert "<p>warning: a &lt; b</p>" in html
    by = {row.broken_by for row in found.record.rows} - {None}
    assert ("<p>fooled by " in html) == (len(by) > 1)
    assert "<img" not in html
