"""`spgd compare`: every attack by name, at its preset or at equal cost, in one table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sparsepgd as sp
from sparsepgd import options
from sparsepgd.analysis.summary import line
from sparsepgd.cli import app
from sparsepgd.errors import UnsupportedError
from sparsepgd.runs.identity import hardware
from support.models import SmallConvNet, images, labelled


def test_all_attacks_that_take_the_pattern_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    words = ["compare", "-n", "2", "--k", "30", "--pattern", "patch:2", "--equal-cost", "12", "-q", "--out", str(file)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())
    assert record["command"].startswith("spgd")
    assert record["hardware"] == hardware(torch.device("cpu"))
    lines = record["lines"]
    assert {line["attack"] for line in lines} == {"anneal", "spgd-unprojected", "spgd-projected", "sparse-rs", "loap"}
    assert "do not support patches" in " ".join(done.output.split())
    assert "pgd0" in done.output


def test_a_comparison_that_is_stopped_keeps_the_finished_attacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> sp.SparseRS:
        raise KeyboardInterrupt

    monkeypatch.setattr(sp.SparseRS, "run", interrupted)
    file = tmp_path / "table.json"
    words = ["compare", "-n", "2", "--attack", "anneal,sparse-rs", "--equal-cost", "12", "-q", "--out", str(file)]
    assert CliRunner().invoke(app, words).exit_code != 0
    assert [line["attack"] for line in json.loads(file.read_text())["lines"]] == ["anneal"]


def test_the_clean_accuracy_is_shown(tmp_path: Path) -> None:
    """Without it, a model that misclassifies all images seems to be broken by every attack."""
    x, y = sp.zoo.bundled_images(2)
    np.savez(tmp_path / "wrong.npz", x=x.numpy(), y=(y.numpy() + 1) % 10)
    data = ["--data", f"npz:{tmp_path / 'wrong.npz'}", "-n", "2"]
    words = ["compare", *data, "--attack", "anneal", "--equal-cost", "12", "-q"]
    assert "clean accuracy 0.0%" in " ".join(CliRunner().invoke(app, words).output.split())


def test_all_images_are_taken_if_there_are_fewer_than_the_default(tmp_path: Path) -> None:
    x, y = sp.zoo.bundled_images(2)
    np.savez(tmp_path / "two.npz", x=x.numpy(), y=y.numpy())
    words = ["compare", "--data", f"npz:{tmp_path / 'two.npz'}", "--attack", "anneal", "--equal-cost", "12", "-q"]
    assert "2 images" in " ".join(CliRunner().invoke(app, words).output.split())


@pytest.mark.parametrize("name", sorted({*options.ATTACKS, "spgd", "rs"} - {"loap"}))
def test_every_attack_has_a_preset_and_a_form_of_a_given_cost(name: str) -> None:
    budget = sp.Budget(k=3)
    quick, paper, cheap = (
        options.preset(name, budget, "quick"),
        options.preset(name, budget, "paper"),
        options.at_cost(name, budget, 40),
    )
    assert quick.name == paper.name == cheap.name
    assert quick.evaluations < paper.evaluations


@pytest.mark.parametrize("name", sorted(set(options.ATTACKS) - {"loap", "cw-l0", "sparse-fool"}))
def test_the_cost_is_about_what_was_asked_for(name: str) -> None:
    """CW and SparseFool have no length of their own: of these, successes after too many passes do not count."""
    hopeless = SmallConvNet()
    with torch.no_grad():
        hopeless.net[-1].bias[2] += 1e4
    x = images(2)
    result = options.at_cost(name, sp.Budget(k=3), 200)(hopeless, x, labelled(hopeless, x))
    passes = (result.forwards + result.backwards).tolist()
    assert max(passes) >= 100
    assert max(passes) <= 200


@pytest.mark.parametrize("passes", [10, 20, 100, 167, 168, 1000, 10_000])
def test_the_standard_cascade_has_at_most_half_of_the_passes_for_anneal_and_all_in_all_as_many_as_asked_for(
    passes: int,
) -> None:
    cascade = options.at_cost("saa+", sp.Budget(k=3), passes)
    *gradients, box = cascade.members
    asked = sum(2 * member.evaluations for member in gradients) + box.evaluations
    assert asked == passes or (passes < 20 and cascade.steps == 2)  # with ten no cascade can do
    assert 2 * cascade.steps <= passes // 2 or cascade.steps == 2


def test_successes_after_too_many_passes_do_not_count() -> None:
    model, x = SmallConvNet(), images(8)
    result = options.preset("greedy-fool", sp.Budget(k=30), "quick")(model, x, labelled(model, x))
    passes = (result.forwards + result.backwards)[result.fooled]
    assert len(passes) >= 2
    least = int(passes.min())
    all_, few = line("a", result, 0.0), line("a", result, 0.0, least)
    assert all_.robust_accuracy == result.robust_accuracy
    assert few.robust_accuracy == 1 - int((passes == least).sum()) / 8
    assert few.forwards == all_.forwards == pytest.approx(float(result.forwards.double().mean()))


def test_a_named_attack_that_cannot_is_an_error_and_so_are_unknown_words() -> None:
    done = CliRunner().invoke(app, ["compare", "--attack", "cw-l0", "--pattern", "row", "--k", "1"])
    assert isinstance(done.exception, UnsupportedError)
    for words, message in (
        (("--preset", "paper", "--equal-cost", "20"), "--preset paper with --equal-cost 20; both set the length"),
        (("--attack", "spgd,spgd"), "attack 'spgd' is named twice"),
        (("--attack", ""), "attack '' contains an empty name"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            CliRunner().invoke(app, ["compare", *words], catch_exceptions=False)
    with pytest.raises(UnsupportedError, match="preset 'slow'; use one of quick, paper"):
        options.preset("pgd0", sp.Budget(k=1), "slow")
    with pytest.raises(UnsupportedError, match="attack 'fgsm'; use one of anneal"):
        options.at_cost("fgsm", sp.Budget(k=1), 40)
    with pytest.raises(UnsupportedError, match="9 passes are too few"):
        options.at_cost("pgd0", sp.Budget(k=1), 9)


def test_steps_and_queries_are_the_length_of_a_baseline() -> None:
    budget = sp.Budget(k=5)
    greedy = options.attack("greedy-fool", budget, 70, quantize=True)
    assert (options.length(greedy), greedy.quantize) == ("70 steps", True)
    for name in ("corner-search", "one-pixel"):
        assert 400 <= options.attack(name, budget, 70, queries=500).evaluations <= 500
    assert options.length(options.attack("one-pixel", budget, 70, queries=500)) == "495 queries"


def test_evaluate_runs_baselines_by_name(tmp_path: Path) -> None:
    words = ["evaluate", "--model", "zoo:small-plain", "-n", "3", "--k", "60", "--steps", "30", "--queries", "40", "-q"]
    done = CliRunner().invoke(app, [*words, "--attack", "greedy-fool,one-pixel", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "greedy-fool, 30 steps" in done.output
    assert "one-pixel, 40 queries" in done.output or "one-pixel, 39 queries" in done.output
