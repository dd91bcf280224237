"""Groups as index sets: the same as the patterns that slide, where both can say it, and what is refused."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import BudgetError, PatternError, ShapeError
from sparsepgd.problem.goals import Untargeted
from sparsepgd.problem.oracle import Oracle
from sparsepgd.problem.verify import verify
from sparsepgd.threat.norms import group_l0, surrogate_group_l0
from support.models import Linear

SIZE = (5, 6)
SLIDING = [sp.Rows(), sp.Columns(), sp.Patches(2), sp.Patches(3, 2), sp.Shape([[1, 0], [1, 1]])]


def listed(pattern: sp.Pattern, height: int = SIZE[0], width: int = SIZE[1]) -> sp.Groups:
    """The groups of a kernel as index sets, in the order of the grid."""
    ones = pattern.kernel(height, width).nonzero().tolist()
    kh, kw = pattern.kernel(height, width).shape
    corners = [(i, j) for i in range(height - kh + 1) for j in range(width - kw + 1)]
    return sp.Groups([[(i + a) * width + j + b for a, b in ones] for i, j in corners])


def integers(*shape: int, seed: int, low: int = -4, high: int = 5) -> Tensor:
    """Whole numbers, so that sums are exact in any order."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("pattern", SLIDING, ids=repr)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 4))
def test_index_sets_equal_the_pattern_that_slides(pattern: sp.Pattern, seed: int, k: int) -> None:
    allowed = integers(*SIZE, seed=seed + 1, low=0, high=3) > 0
    allowed[0] = True
    here, there = (sp.Budget(k=k, pattern=p, allowed=allowed).resolve((3, *SIZE)) for p in (listed(pattern), pattern))
    v = integers(2, *there.grid, seed=seed, low=0, high=2)
    values = integers(2, 3, *SIZE, seed=seed + 2)
    assert torch.equal(here.expand(v.view(2, *here.grid)), there.expand(v))
    assert torch.equal(here.gather(values).flatten(1), there.gather(values).flatten(1))
    mine, theirs = here.masks(2), there.masks(2)
    assert mine is not None
    assert theirs is not None
    assert torch.equal(mine[1].flatten(1), theirs[1].flatten(1))

    delta = values * there.expand(v)
    assert torch.equal(group_l0(delta, listed(pattern)), group_l0(delta, pattern))
    approximated = surrogate_group_l0(delta, v.view(2, *here.grid), listed(pattern))
    assert torch.equal(approximated, surrogate_group_l0(delta, v, pattern))


@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(2)], ids=repr)
@pytest.mark.parametrize("gradient", ["unprojected", "projected"])
def test_an_attack_on_index_sets_is_the_attack_on_the_pattern(pattern: sp.Pattern, gradient: str) -> None:
    model, x = Linear(integers(1, 3, *SIZE, seed=0) / 8, -2.0), integers(6, 3, *SIZE, seed=1, low=0, high=9) / 8
    y = model(x).argmax(1)
    values = {"gradient": gradient, "alpha": 0.25, "beta": 0.25, "tolerance": 5, "beta_scale": "grid"}
    attacks = [sp.SparsePGD(sp.Budget(k=2, pattern=p), 20, **values) for p in (listed(pattern), pattern)]
    one, other = (attack(model, x, y, seed=3) for attack in attacks)
    assert bool(one.fooled.any())
    assert torch.equal(one.fooled, other.fooled)
    assert torch.equal(one.x_adv, other.x_adv)
    assert torch.equal(one.groups, other.groups)


@pytest.mark.parametrize("attack", [sp.SparsePGD, sp.SparseRS])
def test_the_best_sets_of_a_linear_model_are_found(attack: type) -> None:
    """Features (B, F), sets that overlap: the best two by enumeration."""
    pattern = sp.Groups([[0, 1, 2], [2, 3], [4], [5, 6, 7], [1, 7]])
    weight, x = integers(1, 8, seed=4), integers(3, 8, seed=5, low=0, high=9) / 8
    gain = torch.where(weight > 0, (1 - x) * weight, -x * weight)  # of the best value of each feature
    best = torch.stack([gain[:, sorted({*a, *b})].sum(1) for a, b in combinations(pattern.sets, 2)]).amax(0)
    for margin, expected in ((0.01, True), (-0.01, False)):
        start = (x * weight).sum(1)
        for row in range(3):
            model = Linear(weight, -float(start[row] + best[row]) + margin)
            result = attack(sp.Budget(k=2, pattern=pattern), 400)(model, x[row : row + 1], torch.tensor([0]))
            assert result.clean_correct.item()
            assert result.fooled.item() is expected
            assert result.x_adv.shape == (1, 8)
            assert int(result.groups) <= 2


class OwnShape(torch.nn.Module):
    """Fails on any shape but its own."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.linear = shape, torch.nn.Linear(torch.Size(shape).numel(), 3)
        with torch.no_grad():
            self.linear.weight.copy_(integers(*self.linear.weight.shape, seed=7) / 4)

    def forward(self, x: Tensor) -> Tensor:
        assert tuple(x.shape[1:]) == self.shape
        return self.linear(x.flatten(1))


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [
        ((20,), sp.Features()),
        ((20,), sp.Groups([[i, i + 1] for i in range(0, 20, 2)])),
        ((2, 10), sp.Features()),
        ((2, 10), sp.Groups.windows(10, 3)),
        ((4, 5), sp.Groups.sensors(4, 5)),
        ((2, 2, 3, 4), sp.Groups.windows(24, 6, stride=6)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("attack", [sp.SparsePGD, sp.SparseRS, sp.SparseAutoAttack])
def test_inputs_that_are_no_images_keep_their_shape_and_the_budget(
    shape: tuple[int, ...], pattern: sp.Pattern, attack: type
) -> None:
    model, x = OwnShape(*shape), integers(5, *shape, seed=8, low=0, high=9) / 8
    y = model(x).argmax(1)
    result = attack(sp.Budget(k=2, pattern=pattern), 60)(model, x, y, seed=1)
    assert result.x_adv.shape == x.shape
    assert bool(result.fooled.any())
    assert torch.equal(result.fooled, model(result.x_adv).argmax(1) != y)
    changed = (result.x_adv != x).flatten(1)
    if isinstance(pattern, sp.Groups) and not pattern.features and len(shape) > 1:
        changed = (result.x_adv != x).any(1).flatten(1)  # points in time
    for row in changed:
        left = set(row.nonzero()[:, 0].tolist())
        sets = pattern.sets if isinstance(pattern, sp.Groups) else [(i,) for i in range(20)]
        assert any(left <= {*a, *b} for a in sets for b in sets)
    assert model.training, "as it was"
    as_function = attack(sp.Budget(k=2, pattern=pattern), 60)(lambda x: model(x), x, y, seed=1)
    assert torch.equal(as_function.x_adv, result.x_adv)


def test_the_verifier_sees_what_leaves_the_sets() -> None:
    pattern = sp.Groups([[0, 1], [2, 3]])
    x = torch.full((4, 1, 1, 5), 0.5)
    x_adv = x.clone()
    x_adv[0, ..., 0] = 1  # in one set
    x_adv[1, ..., 1:3] = 1  # in two
    x_adv[2, ..., 4] = 1  # in none
    y = torch.zeros(4, dtype=torch.int64)
    oracle = Oracle(Linear(torch.ones(1, 1, 5), -1.0), Untargeted())
    verdict = verify(oracle, sp.Budget(k=1, pattern=pattern), x, x_adv, y, y)
    assert verdict.within.tolist() == [True, False, False, True]
    assert verdict.groups.tolist() == [1, 2, -1, 0]


def test_only_patterns_without_geometry_take_other_shapes() -> None:
    model, x, y = OwnShape(20), torch.rand(2, 20), torch.zeros(2, dtype=torch.int64)
    for pattern in (sp.Pixels(), sp.Rows(), sp.Patches(2)):
        with pytest.raises(ShapeError, match=r"expected \(B, C, H, W\).*use pattern=Features\(\) or Groups"):
            sp.SparsePGD(sp.Budget(k=1, pattern=pattern), 5)(model, x, y)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], "no groups given"),
        ([[0], []], "group 1 is empty"),
        ([[0, 0]], "group 0 holds index 0 2 times"),
        ([[0, -1]], "group 0 holds -1; expected indices"),
        ([[0.5]], "group 0 holds 0.5; expected indices"),
        ([[0.0, 1]], "group 0 holds 0.0; expected indices"),
        ([[1], [False, 2]], "group 1 holds False; expected indices"),
        ([[None]], "group 0 holds None; expected indices"),
        ([[0], 3], "group 1 is 3; expected a set of indices"),
    ],
)
def test_sets_that_are_none_are_refused(sets: list[list[int]], message: str) -> None:
    with pytest.raises(PatternError, match=message):
        sp.Groups(sets)  # type: ignore[arg-type]


def test_index_sets_may_be_rows_of_an_array() -> None:
    groups = sp.Groups(np.array([[0, 1], [3, 2]]))  # type: ignore[arg-type]
    assert groups == sp.Groups([[0, 1], [2, 3]])  # type: ignore[arg-type]
    assert all(type(index) is int for one in groups.sets for index in one)


def test_sets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PatternError, match="index 6 in a group, but x has 6 places"):
        sp.Budget(k=1, pattern=sp.Groups([[0, 6]])).resolve((3, 2, 3))
    assert sp.Budget(k=1, pattern=sp.Groups([[0, 17]], features=True)).resolve((3, 2, 3)).grid == (1, 1, 1)
    with pytest.raises(BudgetError, match="k=3 groups, but a 2x3 image has 2"):
        sp.Budget(k=3, pattern=sp.Groups([[0], [1]])).resolve((3, 2, 3))
    with pytest.raises(PatternError, match="windows of 5"):
        sp.Groups.windows(4, 5)
    assert repr(sp.Groups([[0], [1, 2]])) == "Groups(2 of 1 to 2 places)"
    assert sp.Groups([[2, 1]]) == sp.Groups(((1, 2),))
