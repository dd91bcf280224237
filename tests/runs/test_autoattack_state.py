"""AutoAttack's state_path: a run goes on where it was, and only that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sparsepgd as sp
from runs.test_autoattack import SHORT, THREE, problem
from sparsepgd.errors import FolderError, UnsupportedError
from sparsepgd.runs.audit import audit
from sparsepgd.runs.autoattack import AutoAttack
from sparsepgd.search.ensemble import SparseAutoAttack
from support.models import SmallConvNet


def test_a_function_has_no_state_to_go_on_from(tmp_path: Path) -> None:
    model, x, y = problem(3)
    with pytest.raises(UnsupportedError, match="state_path was given, but the model is a plain function"):
        AutoAttack(lambda x: model(x), k=12, **SHORT).run_standard_evaluation(x, y, state_path=tmp_path / "state.json")
    assert list(tmp_path.iterdir()) == []


class BreaksError(Exception):
    """The end of a run."""


class Fragile:
    """An attack that fails the second time."""

    def __init__(self, attack: Any) -> None:
        self.attack, self.calls, self.name = attack, 0, attack.name

    def __call__(self, *args: Any, **options: Any) -> sp.Result:
        self.calls += 1
        if self.calls == 2:
            raise BreaksError
        result: sp.Result = self.attack(*args, **options)
        return result


@pytest.mark.parametrize("as_text", [True, False])
def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path: Path, as_text: bool) -> None:
    model, x, y = problem()
    first, second, third = SparseAutoAttack(sp.Budget(k=12), 3, 100).members
    path = tmp_path / "state"
    state, fragile = str(path) if as_text else path, Fragile(second)

    def adversary(*attacks: Any) -> AutoAttack:
        return AutoAttack(model, k=12, version="custom", attacks_to_run=attacks, **SHORT)

    undisturbed = adversary(first, second, third)
    expected = undisturbed.run_standard_evaluation(x, y)
    with pytest.raises(BreaksError):
        adversary(first, fragile, third).run_standard_evaluation(x, y, state_path=state, bs=1)
    assert len(list(path.glob("partial/0*.json"))) == 1  # 16 batches are a chunk
    resumed = adversary(first, fragile, third)
    found = resumed.run_standard_evaluation(x, y, state_path=state, bs=5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert fragile.calls == 3
    assert undisturbed.result is not None
    assert resumed.result is not None
    assert resumed.result.broken_by == undisturbed.result.broken_by
    assert set(resumed.result.broken_by) == {*THREE, None}
    for name in ("steps", "forwards", "backwards", "groups", "l0", "fooled", "prediction", "clean_correct"):
        assert torch.equal(getattr(resumed.result, name), getattr(undisturbed.result, name))
    torch.testing.assert_close(resumed.result.loss, undisturbed.result.loss, equal_nan=True)
    again = adversary(first, fragile, third).run_standard_evaluation(x, y, state_path=state)
    assert torch.equal(again, found)
    assert fragile.calls == 3
    assert audit(path, model).sound


def test_the_way_to_the_logits_is_part_of_the_run(tmp_path: Path) -> None:
    model, x, y = problem(4)

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return self.net(x), None

    pair = AutoAttack(Pair(), k=12, logits=lambda output: output[0], **SHORT)
    found = pair.run_standard_evaluation(x, y, state_path=tmp_path / "state")
    assert torch.equal(found, AutoAttack(model, k=12, **SHORT).run_standard_evaluation(x, y))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 11}, "attack.budget.k was 12, is 11"),
        ({"seed": 3}, "seed was 0, is 3"),
        ({"eps": 0.5}, "attack.budget.eps was 1.0, is 0.5"),
        ({"steps": 4}, "attack.steps was 3, is 4"),
        ({"pattern": sp.Features()}, "attack.budget.pattern.kind was Pixels, is Features"),
        ({"version": "paper"}, r"attack.name was saa\+, is saa"),
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
        (model, x.flip(0), y, "data.sha256 was"),
        (model, x, y + 1, "data.sha256 was"),
        (other, x, y, "model.digest was"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            AutoAttack(net, k=12, **SHORT).run_standard_evaluation(data, labels % 5, state_path=path)


def test_a_file_is_refused_and_kept(tmp_path: Path) -> None:
    model, x, y = problem(2)
    path = tmp_path / "state.json"
    path.write_text("{}")
    with pytest.raises(FolderError, match="is a file, but the state of an evaluation is a folder"):
        AutoAttack(model, k=12, **SHORT).run_standard_evaluation(x, y, state_path=path)
    assert path.read_text() == "{}"
