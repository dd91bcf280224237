"""benchmarks/minimum_norm.py: what is counted, how a size is judged, and the numbers that follow from sizes."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sparsepgd.sources import Data
from sparsepgd.zoo.registry import ARCHITECTURES
from support.models import Linear
from support.scripts import script as imported

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("minimum_norm")


@pytest.fixture
def numbers(script: Any) -> Any:
    return importlib.import_module("minimum_norm_numbers")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported("pages", monkeypatch)


def page(pages: Any, record: dict[str, Any]) -> str:
    """The tables of docs/minimum-k.md from one record."""
    return str(pages.render("minimum-k.md.j2", pages.Records({"minimum-norm-mine": record})))


def linear() -> tuple[Linear, Tensor, Tensor]:
    """Four images of class 0 of a model that says 1 where the first pixel is bright."""
    weight = torch.full((3, 4, 4), 0.1)
    weight[:, 0, 0] = 1
    x = torch.full((4, 3, 4, 4), 0.25)
    return Linear(weight, -float((x[0] * weight).sum()) - 2), x, torch.zeros(4, dtype=torch.int64)


def test_every_image_forward_and_backward_is_counted(script: Any) -> None:
    model, x, _ = linear()
    counting = script.Counting(model)
    x.requires_grad_()
    torch.autograd.grad(counting(x).sum(), x)
    counting(x[:3].detach())
    assert (counting.forwards, counting.backwards) == (7, 4)


def test_a_size_is_counted_after_the_image_is_put_into_range(script: Any) -> None:
    model, x, y = linear()
    x_adv = x.clone()
    x_adv[0, :, 0, 0] = 1  # a pixel of three features: wrong by a little
    x_adv[1, 0, 0, 0] = 9  # as much, but out of range: clamped, it is right
    x_adv[2, 0, 0, 0] = torch.nan
    found = script.judged(model, x, y, x_adv, 3)
    assert found["sizes"] == {"pixels": [1, None, None, None], "features": [3, None, None, None]}
    assert found["out of range"] == {"images": 1, "by": 8.0}


def test_an_attack_is_measured_or_its_error_noted(script: Any) -> None:
    model, x, y = linear()
    args = argparse.Namespace(passes=20, batch_size=3, seed=0)
    found = script.measured(script.ATTACKS["sigma-zero"], "pixels", model, x, y, args)
    assert None not in found["sizes"]["pixels"]
    assert 18 <= found["passes"] <= 20
    broken = script.Attack(lambda task: task.x[:1], "returns one image")
    assert script.measured(broken, "pixels", model, x, y, args) == {
        "error": "ValueError: (2, 3, 4, 4) for images (4, 3, 4, 4)"
    }


def test_starting_points_have_another_label(script: Any) -> None:
    others = importlib.import_module("minimum_norm_attacks").others
    y = torch.tensor([0, 0, 1, 2, 2])
    assert others(y).tolist() == [2, 2, 3, 0, 0]
    with pytest.raises(ValueError, match="one label"):
        others(torch.zeros(3))


def test_optimality_is_the_share_of_the_area_that_the_best_sizes_leave(numbers: Any) -> None:
    best = [1, 2, 4]  # eps is 4; areas up to it: 7 / 3 of the best
    assert numbers.optimality(best, best) == 1
    assert numbers.optimality([None, None, None], best) == 0
    assert numbers.optimality([3, 2, 9], best) == pytest.approx((4 - 3) / (4 - 7 / 3))
    assert numbers.optimality([None], [None]) is None
    assert numbers.smallest([[3, None], [5, 2], [None]]) == [3, 2]


def test_a_failure_is_infinite_in_the_median_and_cut_in_the_mean(numbers: Any) -> None:
    found = numbers.numbers([1, None, None, 300], [1, 4, 8, 8])
    assert found["median"] is None
    assert found["mean"] == (1 + 3 * 200) / 4
    assert found["not fooled"] == 0.5
    assert (found["within"]["3"], found["within"]["200"]) == (0.75, 0.75)


def run(attack: str, counts: str, pixels: list[int | None], features: list[int | None]) -> dict[str, Any]:
    sizes = {"pixels": pixels, "features": features}
    return {"attack": attack, "counts": counts, "commit": "c", "passes": 99.5, "seconds": 1.0, "sizes": sizes}


@pytest.fixture
def measure(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the script on two models with attacks that are not run, and returns which would have been."""
    model, x, y = linear()

    def measured(
        *words: str, fails: str = "", until: Event | None = None, commit: str = "abc"
    ) -> list[tuple[str, str, str]]:
        asked = []

        def work(job: tuple[str, str, str], args: argparse.Namespace) -> dict[str, Any]:
            asked.append(job)
            if until is not None:
                until.wait()
            if job[1] == fails:
                return {"attack": job[1], "counts": job[2], "commit": args.commit, "error": "no"}
            return {**run(job[1], job[2], [1, 2, 3, 4], [2, 3, 4, 5]), "commit": args.commit}

        monkeypatch.setattr(script, "ProcessPoolExecutor", lambda *args, **settings: ThreadPoolExecutor(1))
        monkeypatch.setattr(script, "work", work)
        monkeypatch.setattr(script, "load_images", lambda file, n: Data(x, y))
        monkeypatch.setattr(script, "load_network", lambda given: model)
        monkeypatch.setattr(script, "about", lambda given, model: {"model": given, "sha256": given})
        out = str(tmp_path / "minimum-norm-mine.json")
        words = ("run", *words, "--commit", commit, "--device", "cpu", "--out", out)
        monkeypatch.setattr(sys, "argv", ["minimum_norm.py", *words])
        script.main()
        return asked

    return measured


def test_a_record_is_resumed_and_only_what_is_missing_or_failed_is_run(measure: Any, tmp_path: Path) -> None:
    attacks = ("--attacks", "adv-lib:fmn", "adv-lib:vfga")
    first = [("a", "adv-lib:fmn", "features"), ("a", "adv-lib:vfga", "features")]
    assert measure("a", *attacks, fails="adv-lib:vfga") == first
    assert measure("a", "b", *attacks) == [
        ("b", "adv-lib:fmn", "features"), ("a", "adv-lib:vfga", "features"), ("b", "adv-lib:vfga", "features")
    ]  # fmt: skip
    assert measure("a", "b", *attacks) == []
    record = json.loads((tmp_path / "minimum-norm-mine.json").read_text())
    assert [model["model"] for model in record["models"]] == ["a", "b"]
    for model in record["models"]:
        assert [one["attack"] for one in model["runs"]] == ["adv-lib:fmn", "adv-lib:vfga"]
        assert all("error" not in one for one in model["runs"])
    assert record["command"].count(" && ") == 1


def test_when_the_time_is_over_what_is_under_way_is_stopped_and_not_recorded(
    measure: Any, script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = Event()
    monkeypatch.setattr(script, "stopped", lambda pool: over.set())
    measure("a", "--attacks", "adv-lib:fmn", "--seconds", "0", until=over)
    assert over.is_set()
    assert capsys.readouterr().out == "the time is over\n"
    assert not (tmp_path / "minimum-norm-mine.json").exists()


def test_a_record_of_other_passes_is_not_resumed(measure: Any) -> None:
    measure("a", "--attacks", "adv-lib:fmn", "--passes", "20")
    with pytest.raises(SystemExit, match="passes was 20, is 30"):
        measure("a", "--attacks", "adv-lib:fmn", "--passes", "30")


def test_one_attack_is_run_again_at_another_commit_and_the_others_are_kept(measure: Any, tmp_path: Path) -> None:
    attacks = ("adv-lib:fmn", "adv-lib:vfga")
    measure("a", "b", "--attacks", *attacks)
    with pytest.raises(SystemExit, match=r"commit was abc, is new.*--again"):
        measure("a", "b", "--attacks", attacks[1], commit="new")
    again = ("--attacks", attacks[1], "--again")
    vfga = [(model, "adv-lib:vfga", "features") for model in "ab"]
    assert measure("a", *again, commit="new") == vfga[:1]
    assert measure("a", "b", *again, commit="new") == vfga[1:]  # resumed
    record = json.loads((tmp_path / "minimum-norm-mine.json").read_text())
    assert record["commit"] == "abc"
    for model in record["models"]:
        assert {one["attack"]: one["commit"] for one in model["runs"]} == {attacks[0]: "abc", attacks[1]: "new"}
    assert record["command"].count("--again") == 2


def test_weights_in_pieces_are_one_model_and_its_card_says_how_it_was_trained(script: Any, tmp_path: Path) -> None:
    state = {name: one.contiguous() for name, one in ARCHITECTURES["digits_resnet"]().state_dict().items()}
    for place, part in enumerate((list(state)[::2], list(state)[1::2])):
        save_file({name: state[name] for name in part}, tmp_path / f"mine-{place}.safetensors")
    (tmp_path / "mine.json").write_text('{"command": "spgd train"}')
    given = f"digits_resnet={tmp_path}/mine-0.safetensors,{tmp_path}/mine-1.safetensors"
    model = script.load_network(given)
    known = script.about(given, model)
    assert (known["model"], known["trained by"]) == ("mine", "spgd train")
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())


def record_of(numbers: Any, theirs: list[int | None]) -> dict[str, Any]:
    runs = [
        run("sparse-anneal", "pixels", [1, 2], [3, 6]),
        run("sparse-anneal", "features", [2, 2], [2, 4]),
        run("adv-lib:fmn", "features", [2, 4], theirs),
        {"attack": "adv-lib:vfga", "counts": "features", "commit": "later", "error": "no"},
    ]
    model = {"model": "mine", "sha256": "m", "right": 2, "runs": runs}
    origin = {"hardware": "a device", "torch": "2", "packages": {"adv-lib": "1"}, "commit": "c", "command": "python x"}
    finished: dict[str, Any] = numbers.finish({**origin, "images": 3, "passes": 100, "models": [model]})
    return finished


def test_the_page_shows_every_attack_and_says_which_failed(pages: Any, numbers: Any) -> None:
    text = page(pages, record_of(numbers, [3, 5]))
    assert "| sparse-anneal | 100 | 1.5 / 1.5 | 100.0 |" in text
    assert "| adv-lib:fmn * | 100 | 3 / 3.0 | 0.0 |" in text
    assert "| adv-lib:fmn | 100 | 4 / 4.0 | " in text
    assert "Failed: adv-lib:vfga on `mine` (no)." in text
    assert "In features, no other attack has a lower median" in text
    assert "commit c (adv-lib:vfga: later): `python x`" in text


def test_the_page_says_where_another_attack_is_better(pages: Any, numbers: Any) -> None:
    better = (
        "In features, SparseAnneal is not the best on every model: by median, adv-lib:fmn on `mine` (2.5 against 3)"
    )
    assert better in page(pages, record_of(numbers, [1, 4]))
    assert "In features, no other attack" in page(pages, record_of(numbers, [3, None]))


def test_the_page_says_who_used_more_passes_than_the_others_had(pages: Any, numbers: Any) -> None:
    record = record_of(numbers, [3, 5])
    assert "More than" not in page(pages, record)
    record["models"][0]["runs"][0]["passes"] = 100.26
    assert "More than 100 passes: sparse-anneal on `mine`, pixels (100.3)." in page(pages, record)


def test_every_record_has_its_figure(pages: Any) -> None:
    names = pages.figures(pages.Records.read())
    assert {"anneal.svg", "minimum-norm-small-300.svg", "results-ratio-small.svg"} <= names.keys()
    assert [name for name in names if not (pages.IMAGES / name).is_file()] == [], "run python benchmarks/pages.py"
