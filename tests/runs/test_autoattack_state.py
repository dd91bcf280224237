"""AutoAttack's state_path: a run goes on where it was, and only that run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsepgd as sp
from conftest import SmallConvNet
from runs.test_autoattack import SHORT, THREE, problem
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.runs.autoattack import AutoAttack
from sparsepgd.search.ensemble import SparseAutoAttack


def test_a_function_has_no_state_to_go_on_from(tmp_path: Path) -> None:
    model, x, y = problem(3)
    with pytest.raises(UnsupportedError, match="state_path with a model that is just a function"):
        AutoAttack(lambda x: model(x), k=12, **SHORT).run_standard_evaluation(x, y, state_path=tmp_path / "state.json")
    assert list(tmp_path.iterdir()) == []


class BreaksError(Exception):
    """The end of a run."""


class Fragile:
    """An attack that fails the first time."""

    def __init__(self, attack: Any) -> None:
        self.attack, self.calls, self.name = attack, 0, attack.name

    def __call__(self, *args: Any, **options: Any) -> sp.Result:
        self.calls += 1
        if self.calls == 1:
            raise BreaksError
        result: sp.Result = self.attack(*args, **options)
        return result


@pytest.mark.parametrize("as_text", [True, False])
def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path: Path, as_text: bool) -> None:
    model, x, y = problem()
    first, second, third = SparseAutoAttack(sp.Budget(k=12), 3, 100).members
    path = tmp_path / "state.json"
    state = str(path) if as_text else path

    def adversary(*attacks: Any) -> AutoAttack:
        return AutoAttack(model, k=12, version="custom", attacks_to_run=attacks, **SHORT)

    undisturbed = adversary(first, second, third)
    expected = undisturbed.run_standard_evaluation(x, y)
    fragile = Fragile(second)
    once = Fragile(first)
    once.calls = 1
    with pytest.raises(BreaksError):
        adversary(once, fragile, third).run_standard_evaluation(x, y, state_path=state)
    assert json.loads(path.read_text())["finished"] == ["spgd-unprojected"]
    resumed = adversary(once, fragile, third)
    found = resumed.run_standard_evaluation(x, y, state_path=state, bs=5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert once.calls == 2  # not run again
    assert undisturbed.result is not None
    assert resumed.result is not None
    assert resumed.result.broken_by == undisturbed.result.broken_by
    assert set(resumed.result.broken_by) == {*THREE, None}
    assert torch.equal(resumed.result.steps, undisturbed.result.steps)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state-3.safetensors", "state.json"]
    again = adversary(once, fragile, third).run_standard_evaluation(x, y, state_path=state)
    assert torch.equal(again, found)
    assert (once.calls, fragile.calls) == (2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 11}, "k is 12 there, 11 here"),
        ({"seed": 3}, "seed is 0 there, 3 here"),
        ({"eps": 0.5}, "eps is 1.0 there, 0.5 here"),
        ({"steps": 4}, "attacks is .*steps=3.* there, .*steps=4"),
        ({"pattern": sp.Features()}, r"pattern is Pixels\(\) .* there, Features\(\)"),
        ({"version": "paper"}, "attacks is .*SparseAnneal.* there"),
    ],
)
def test_the_state_of_another_evaluation_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    model, x, y = problem(3)
    options = {"k": 12, **SHORT}
    path = tmp_path / "state.json"
    AutoAttack(model, **options).run_standard_evaluation(x, y, state_path=path)
    with pytest.raises(UnsupportedError, match=message):
        AutoAttack(model, **options | change).run_standard_evaluation(x, y, state_path=path)


def test_other_images_labels_and_weights_are_refused(tmp_path: Path) -> None:
    model, x, y = problem(3)
    path = tmp_path / "state.json"
    AutoAttack(model, k=12, **SHORT).run_standard_evaluation(x, y, state_path=path)
    other = SmallConvNet(seed=1, dtype=torch.float64)
    for net, data, labels, message in (
        (model, x.flip(0), y, "images is"),
        (model, x, y + 1, "images is"),
        (other, x, y, "model is SmallConvNet"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            AutoAttack(net, k=12, **SHORT).run_standard_evaluation(data, labels % 5, state_path=path)


def test_a_file_that_is_no_state_is_refused_and_kept(tmp_path: Path) -> None:
    model, x, y = problem(2)
    path = tmp_path / "state.json"
    for text in ("{", "[]", '{"finished": []}'):
        path.write_text(text)
        with pytest.raises(SourceError, match="is no state of an evaluation"):
            AutoAttack(model, k=12, **SHORT).run_standard_evaluation(x, y, state_path=path)
        assert path.read_text() == text


def test_a_kill_between_the_two_files_leaves_the_older_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = problem(8)
    path, real = tmp_path / "state.json", os.replace
    expected = AutoAttack(model, k=12, **SHORT).run_standard_evaluation(x, y)

    def dying(source: Any, target: Any) -> None:
        if Path(target) == path and path.exists():  # the second time that the JSON file is to be put in place
            raise BreaksError
        real(source, target)

    monkeypatch.setattr("os.replace", dying)
    with pytest.raises(BreaksError):
        AutoAttack(model, k=12, **SHORT).run_standard_evaluation(x, y, state_path=path)
    monkeypatch.undo()
    assert json.loads(path.read_text())["finished"] == ["anneal"]
    found = AutoAttack(model, k=12, **SHORT).run_standard_evaluation(x, y, state_path=path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
