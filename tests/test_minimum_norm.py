"""benchmarks/minimum_norm.py: what is counted, how a size is judged, and the numbers that follow from sizes."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.models import Linear

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("minimum_norm")


@pytest.fixture
def numbers(script: Any) -> Any:
    return importlib.import_module("minimum_norm_numbers")


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
    args = argparse.Namespace(slow_images=50, passes=20, batch_size=3, seed=0, device="cpu")
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
    used = {"images": len(pixels), "passes": 99.5, "seconds": 1.0}
    return {"attack": attack, "counts": counts, **used, "sizes": {"pixels": pixels, "features": features}}


def test_records_of_parts_make_one_table(script: Any, numbers: Any, tmp_path: Path) -> None:
    common = {"images": 3, "data": {}, "passes": 100, "seed": 0, "hardware": "a device", "torch": "2", "commit": "c"}
    common |= {"attacks": {}, "packages": {}}
    ours = [run("sigma-zero", "pixels", [1, 2], [3, 6]), run("sigma-zero", "features", [2, 2], [2, 4])]
    theirs = [
        run("adv-lib:fmn", "features", [1, 4], [1, 5]),
        {"attack": "adv-lib:vfga", "counts": "features", "error": "no"},
    ]
    files = []
    for place, runs in enumerate((theirs, ours)):
        files.append(tmp_path / f"{place}.json")
        model = {"model": "mine", "sha256": "m", "right": 2, "runs": runs}
        script.write(files[-1], {**common, "command": f"part {place}", "models": [model]})
    record = numbers.merged(files)
    assert record["command"] == "part 0 && part 1"
    assert [one["attack"] for one in record["models"][0]["runs"]] == [
        "sigma-zero", "sigma-zero", "adv-lib:fmn", "adv-lib:vfga"
    ]  # fmt: skip
    shown = script.table(record)
    assert "| sigma-zero | 99.5 | 1.5 |" in shown
    assert "| adv-lib:fmn * | 99.5 | 2.5 |" in shown
    assert "- mine: adv-lib:vfga: no" in shown
    files[1].write_text(json.dumps({**json.loads(files[1].read_text()), "passes": 7}))
    with pytest.raises(SystemExit, match="differ in passes"):
        numbers.merged(files)
