"""Inputs without rows and columns: their view as images, and a recorded run that can be verified."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import sparsepgd as sp
from sparsepgd.analysis.curves import Smallest, smallest_k
from sparsepgd.errors import ShapeError
from sparsepgd.problem.shapes import as_images, shape_of, viewable
from sparsepgd.runs import runs
from sparsepgd.runs.audit import audit
from sparsepgd.runs.autoattack import AutoAttack
from sparsepgd.runs.identity import budget_of

GROUPS = sp.Groups([[0, 1, 2], [3, 4], [5, 6, 7]])


@pytest.mark.parametrize(
    ("shape", "seen"), [((8,), (1, 1, 8)), ((3, 8), (3, 1, 8)), ((2, 4, 3, 5), (2, 1, 60)), ((2, 3, 4), (2, 3, 4))]
)
def test_the_shape_of_the_view_as_an_image(shape: tuple[int, ...], seen: tuple[int, ...]) -> None:
    x = torch.rand(2, *shape)
    assert shape_of(x) == seen
    if len(shape) != 3:
        assert torch.equal(as_images(x).flatten(1), x.flatten(1)), "entries keep their order"


def test_only_inputs_that_are_not_images_are_viewed() -> None:
    budget, images = sp.Budget(k=1, pattern=GROUPS), torch.rand(2, 3, 4, 4)
    assert viewable(images.flatten(1), budget)
    assert not viewable(images, budget)
    assert not viewable(images[0, 0, 0], budget)
    assert not viewable(images.flatten(1), sp.Budget(k=1))


def test_an_empty_batch_of_features_has_an_empty_result() -> None:
    result = sp.SparsePGD(sp.Budget(k=1, pattern=GROUPS), 5)(
        nn.Linear(8, 2), torch.rand(0, 8), torch.zeros(0, dtype=torch.int64)
    )
    assert result.x_adv.shape == (0, 8)


@pytest.mark.parametrize("shape", [(8,), (2, 4)], ids=["features", "signals"])
def test_every_entry_point_takes_inputs_that_are_not_images(shape: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3)).double().eval()
    x = torch.rand(12, *shape, dtype=torch.float64)
    y = model(x).argmax(1)
    budget = sp.Budget(k=2, pattern=sp.Features())
    attack = sp.SparsePGD(budget, 30)
    result = attack(model, x, y)
    assert 0 < int(result.fooled.sum()) < len(x)

    torch.testing.assert_close(attack.perturb(model, x, y)[result.fooled], result.x_adv[result.fooled])
    smallest = smallest_k(attack, model, x, y, 2)
    assert smallest.x_adv.shape == x.shape
    assert torch.equal((smallest.k <= 2).nonzero(), smallest.result.fooled.nonzero())
    changed = (smallest.x_adv != x).flatten(1).sum(1)
    assert bool((changed[smallest.k <= 2] <= smallest.k[smallest.k <= 2]).all())
    record = runs.run(None, Smallest(attack, budget), model, (x, y))
    assert [row.fooled for row in record.rows] == smallest.result.fooled.tolist()
    adversary = AutoAttack(model, 2, pattern=sp.Features(), steps=30, queries=30, verbose=False)
    x_adv = adversary.run_standard_evaluation(x, y)
    assert isinstance(x_adv, torch.Tensor)
    assert x_adv.shape == x.shape
    assert torch.equal(model(x_adv).argmax(1) != y, adversary.result.fooled)  # type: ignore[union-attr]


def test_a_pattern_of_pixels_refuses_them_at_every_entry_point() -> None:
    model, x, y = nn.Linear(8, 3), torch.rand(4, 8), torch.zeros(4, dtype=torch.int64)
    attack = sp.SparsePGD(sp.Budget(k=2), 3)
    adversary = AutoAttack(model, 2, verbose=False)
    for call in (
        lambda: attack(model, x, y),
        lambda: attack.perturb(model, x, y),
        lambda: smallest_k(attack, model, x, y, 2),
        lambda: adversary.run_standard_evaluation(x, y),
    ):
        with pytest.raises(ShapeError, match=r"images of shape \(4, 8\).*use pattern=Features\(\)"):
            call()


def test_a_recorded_run_on_features_is_resumed_and_verified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.rand(12, 8)
    y = model(x).argmax(1)
    attack = sp.SparsePGD(sp.Budget(k=2, pattern=GROUPS), 30)
    record = runs.run(tmp_path / "run", attack, model, (x, y), chunk=5)
    fooled = sum(row.fooled for row in record.rows)
    assert fooled > 0
    assert record.rows == runs.run(tmp_path / "run", attack, model, (x, y), chunk=5).rows
    assert audit(tmp_path / "run", model).held == fooled
    assert audit(tmp_path / "run", model, budget=sp.Budget(k=2, pattern=sp.Groups([[0]]))).held == 0
    assert budget_of(record.configuration["attack"], None).pattern == GROUPS
    with pytest.raises(ShapeError, match=r"images of shape \(12, 8\)"):
        runs.run(None, sp.SparsePGD(sp.Budget(k=2), 3), model, (x, y))
