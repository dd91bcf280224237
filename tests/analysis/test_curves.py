"""Curves: exact over steps, and over k checked against a model whose smallest k is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.analysis.curves import (
    Smallest,
    accuracy_over_k,
    accuracy_over_queries,
    accuracy_over_steps,
    smallest_k,
    steps_histogram,
)
from sparsepgd.errors import BudgetError, LabelError, ShapeError, UnsupportedError
from sparsepgd.problem.engine import Engine
from sparsepgd.search.ensemble import SparseAutoAttack
from support.models import Linear, SmallConvNet, images, labelled


def result_of(steps: list[int], fooled: list[bool], clean: list[bool]) -> sp.Result:
    y, nothing = torch.zeros(len(steps), dtype=torch.int64), torch.zeros(len(steps))
    return sp.Result(
        x_adv=torch.zeros(len(steps), 1, 2, 2),
        fooled=torch.tensor(fooled, dtype=torch.bool),
        clean_correct=torch.tensor(clean, dtype=torch.bool),
        l0=y,
        groups=y,
        steps=torch.tensor(steps, dtype=torch.int64),
        forwards=y,
        backwards=y,
        loss=nothing,
        clean_prediction=y,
        prediction=y,
        broken_by=("one",) * len(steps),
    )


def at(curve: tuple[Tensor, Tensor], steps: int) -> float:
    """The value of a step function."""
    return float(curve[1][int(torch.searchsorted(curve[0], steps, right=True)) - 1])


@pytest.mark.parametrize("gradient", ["unprojected", "projected"])
def test_accuracy_over_steps_is_that_of_shorter_runs(gradient: Any) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(20, dtype=torch.float64)
    y = labelled(model, x)
    y[3] = (y[3] + 1) % 5
    attack = sp.SparsePGD(sp.Budget(k=5), steps=20, gradient=gradient)
    steps, accuracy = curve = accuracy_over_steps(attack(model, x, y))
    assert (int(steps[0]), int(steps[-1])) == (0, 20)
    assert len(set(accuracy.tolist())) > 3
    for shorter in (1, 2, 3, 5, 8, 13, 20):
        assert at(curve, shorter) == pytest.approx(replace(attack, steps=shorter)(model, x, y).robust_accuracy)


def test_accuracy_over_steps_counts_wrong_images_and_ties() -> None:
    steps, accuracy = accuracy_over_steps(
        result_of([0, 5, 5, 9, 30, 0], [True, True, True, True, False, False], [True] * 5 + [False])
    )
    assert steps.tolist() == [0, 5, 9, 30]
    assert (6 * accuracy).round().tolist() == [4, 2, 1, 1]
    assert accuracy_over_steps(result_of([], [], []))[0].tolist() == []


def test_an_image_that_was_wrong_from_the_start_is_lost_once() -> None:
    """With a target it may be fooled all the same."""
    result = result_of([1, 2, 3, 4], [True, True, True, False], [False, False, True, True])
    assert accuracy_over_steps(result)[1].tolist() == [0.5, 0.25, 0.25]
    model, x = SmallConvNet().eval(), images(12)
    wrong = (labelled(model, x) + 1) % 5
    targeted = sp.SparsePGD(sp.Budget(k=60), 30)(model, x, wrong, goal=sp.Targeted((wrong + 1) % 5))
    assert bool(targeted.fooled.any())
    for curve in (accuracy_over_steps, accuracy_over_queries):
        assert set(curve(targeted)[1].tolist()) == {0.0}


def test_accuracy_over_queries_is_over_forward_passes() -> None:
    result = replace(result_of([0, 5, 9], [True, True, False], [True] * 3), forwards=torch.tensor([2, 70, 90]))
    queries, accuracy = accuracy_over_queries(result)
    assert queries.tolist() == [0, 2, 70, 90]
    assert (3 * accuracy).round().tolist() == [3, 2, 1, 1]


def test_accuracy_over_steps_of_an_ensemble_ends_at_its_robust_accuracy() -> None:
    model, x = SmallConvNet(), images(16)
    y = labelled(model, x)
    result = SparseAutoAttack(sp.Budget(k=12), steps=3, queries=60)(model, x, y)
    curve = accuracy_over_steps(result)
    assert int(curve[0][-1]) == 3 + 3 + 59
    assert at(curve, 65) == pytest.approx(result.robust_accuracy)
    assert at(curve, 3) == pytest.approx(sp.SparsePGD(sp.Budget(k=12), steps=3)(model, x, y).robust_accuracy)


def test_histogram_is_log_spaced_from_ten_and_holds_every_success_once() -> None:
    result = result_of([0, 9, 10, 99, 100, 101, 1000, 1000], [True] * 7 + [False], [True] * 8)
    edges, counts = steps_histogram(result, bins=2)
    torch.testing.assert_close(edges, torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64))
    assert counts.tolist() == [4, 3]
    edges, counts = steps_histogram(result_of([0], [False], [False]), bins=4)
    assert (len(edges), counts.tolist()) == (5, [0, 0, 0, 0])
    assert int(steps_histogram(result_of([], [], []))[1].sum()) == 0
    for bins in (0, 2.5):
        with pytest.raises(UnsupportedError, match=f"bins={bins}; expected"):
            steps_histogram(result, bins)  # type: ignore[arg-type]


def linear_problem() -> tuple[Linear, Tensor, Tensor, list[int]]:
    """score = (sum of all pixels) - 6.5 and image i has i white pixels, the rest black: 7 - i more are needed."""
    x = torch.zeros(7, 1, 4, 4)
    for row in range(7):
        x[row].view(-1)[:row] = 1.0
    return Linear(torch.ones(1, 4, 4), -6.5), x, torch.zeros(7, dtype=torch.int64), [7, 6, 5, 4, 3, 2, 1]


@dataclass(frozen=True, eq=False)
class Noting:
    """An attack that notes the k and the number of images of every call."""

    attack: Any
    budget: sp.Budget
    calls: list[tuple[int, int]] = field(default_factory=list)
    engines: list[object] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "noting"

    def __call__(self, model: Any, x: Tensor, y: Tensor, **options: Any) -> sp.Result:
        self.calls.append((self.budget.k, len(x)))
        self.engines.append(options.get("engine", "none was given"))
        result: sp.Result = replace(self.attack, budget=self.budget)(model, x, y, **options)
        return result


@pytest.mark.parametrize("ks", [8, 5, 1])
def test_smallest_k_of_a_linear_model(ks: int) -> None:
    model, x, y, expected = linear_problem()
    attack = Noting(sp.SparsePGD(sp.Budget(k=1), steps=150), sp.Budget(k=1))
    found = smallest_k(attack, model, x, y, ks)
    assert found.k.tolist() == [min(k, ks + 1) for k in expected]
    assert len({k for k, _ in attack.calls}) == len(attack.calls) <= ks
    assert sum(count for _, count in attack.calls) <= len(x) * ks.bit_length()
    changed = (found.x_adv != x).any(1).flatten(1).sum(1)
    fooled = (found.k >= 1) & (found.k <= ks)
    assert bool((changed[fooled] <= found.k[fooled]).all())
    with torch.no_grad():
        assert torch.equal(model(found.x_adv).argmax(1) != y, fooled)
    assert torch.equal(found.x_adv[~fooled], x[~fooled])


def test_the_curve_over_k_is_that_of_the_known_minima() -> None:
    model, x, y, expected = linear_problem()
    y[2] = 1  # wrong from the start
    expected[2] = 0
    found = smallest_k(sp.SparsePGD(sp.Budget(k=1), steps=150), model, x, y, 6)
    assert found.k.tolist() == [min(k, 7) for k in expected]
    ks, accuracy = found.curve()
    assert ks.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert accuracy.tolist() == [sum(k > at for k in expected) / 7 for at in range(7)]
    assert found.accuracy(0) == 6 / 7
    assert int(found.forwards[2]) == 0
    for k in (-1, 7):
        with pytest.raises(BudgetError, match="was not searched; use 0 <= k <= 6"):
            found.accuracy(k)


def test_a_ladder_of_chosen_values() -> None:
    model, x, y, expected = linear_problem()
    found = smallest_k(sp.SparsePGD(sp.Budget(k=1), steps=150), model, x, y, (2, 4, 6))
    assert found.k.tolist() == [next((k for k in (2, 4, 6) if k >= one), 7) for one in expected]
    assert found.k_max == 6


def test_it_does_not_depend_on_order_or_batch_size() -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(8, dtype=torch.float64)
    y = labelled(model, x)
    attack = SparseAutoAttack(sp.Budget(k=1), steps=3, queries=20)
    whole = smallest_k(attack, model, x, y, 20)
    assert len(set(whole.k.tolist())) > 2
    pick = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    parts = smallest_k(attack, model, x[pick], y[pick], 20, index=pick, batch_size=3)
    assert torch.equal(parts.k, whole.k[pick])
    torch.testing.assert_close(parts.x_adv, whole.x_adv[pick], rtol=0, atol=1e-9)


@dataclass(frozen=True, eq=False)
class Counted(sp.SparseAnneal):
    """SparseAnneal that notes how it is called."""

    calls: list[tuple[int, bool, int]] = field(default_factory=list)

    def __call__(self, model: Any, x: Tensor, y: Tensor, **options: Any) -> sp.Result:
        self.calls.append((self.budget.k, self.early_stop, len(x)))
        return super().__call__(model, x, y, **options)


@pytest.mark.parametrize("ks", [7, 1, 16])
def test_a_minimum_norm_attack_is_run_once_for_all_k(ks: int) -> None:
    model, x, y, expected = linear_problem()
    attack = Counted(sp.Budget(k=1), steps=300)
    found = smallest_k(attack, model, x, y, ks)
    assert attack.calls == [(ks, False, 7)]
    assert all(low <= k <= low + 1 for k, low in zip(found.k.tolist(), (min(k, ks + 1) for k in expected), strict=True))
    assert torch.equal(found.result.groups[found.k <= ks], found.k[found.k <= ks])
    changed = (found.x_adv != x).any(1).flatten(1).sum(1)
    fooled = (found.k >= 1) & (found.k <= ks)
    assert bool((changed[fooled] <= found.k[fooled]).all())
    with torch.no_grad():
        assert torch.equal(model(found.x_adv).argmax(1) != y, fooled)


def test_a_ladder_and_wrong_images_are_minded_in_one_run_too() -> None:
    model, x, y, _ = linear_problem()
    y[2] = 1  # wrong from the start
    attack = sp.SparseAnneal(sp.Budget(k=1), steps=100)
    every, some = (smallest_k(attack, model, x, y, ks) for ks in (6, (2, 4, 6)))
    assert (int(every.k[2]), int(some.k[2])) == (0, 0)
    assert len(set(every.k.tolist())) > 4
    assert some.k.tolist() == [next(k for k in (0, 2, 4, 6, 7) if k >= one) for one in every.k.tolist()]
    result = Smallest(attack, sp.Budget(k=6))(model, x, y)
    assert torch.equal(accuracy_over_k(result, 6)[1], every.curve()[1])
    assert set(result.broken_by) == {"anneal-smallest-k", None}


def test_an_ensemble_with_a_minimum_norm_attack_is_run_by_bisection() -> None:
    model, x, y, expected = linear_problem()
    attack = Noting(SparseAutoAttack(sp.Budget(k=1), 40, 5, version="standard"), sp.Budget(k=1))
    found = smallest_k(attack, model, x, y, 7)
    assert len(attack.calls) > 1
    assert found.k.tolist() == expected
    assert not attack.attack.minimum_norm


def test_every_fooled_image_names_the_attack_that_fooled_it() -> None:
    model, x, y, _ = linear_problem()
    result = smallest_k(sp.SparsePGD(sp.Budget(k=1), steps=20), model, x, y, 7).result
    assert bool(result.fooled.any())
    assert result.broken_by == tuple("spgd-unprojected" if one else None for one in result.fooled.tolist())


def test_the_minimum_norm_attacks_are_those_that_say_so() -> None:
    kinds = [sp.SparseAnneal, sp.SparsePGD, sp.SparseRS, *(getattr(baselines, name) for name in baselines.__all__)]
    fewest = {kind.__name__ for kind in kinds if kind.minimum_norm}
    assert fewest == {"SparseAnneal", "CWL0", "GreedyFool", "SigmaZero"}


@pytest.mark.parametrize("kind", [baselines.CWL0, baselines.GreedyFool, baselines.SigmaZero])
def test_a_minimum_norm_baseline_needs_fewer_groups_than_it_is_allowed(kind: Any) -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    attack = kind.quick(sp.Budget(k=60))
    found, first = smallest_k(attack, model, x, y, 60), attack(model, x, y)
    assert bool(first.fooled.any())
    assert bool((found.k[first.fooled] <= first.groups[first.fooled]).all())
    assert bool((found.k[first.fooled] < first.groups[first.fooled]).any())


def test_the_engine_reaches_the_attack_only_if_there_is_one() -> None:
    model, x, y, _ = linear_problem()
    attack, engine = Noting(sp.SparsePGD(sp.Budget(k=1), steps=20), sp.Budget(k=1)), Engine("fp32")
    smallest_k(attack, model, x, y, 4)
    assert set(attack.engines) == {"none was given"}
    attack.engines.clear()
    result = Smallest(attack, sp.Budget(k=4))(model, x, y, engine=engine)
    assert set(map(id, attack.engines)) == {id(engine)}
    assert len(result) == len(x)


def test_labels_and_index_are_checked_before_anything_runs() -> None:
    model, x, y, _ = linear_problem()
    attack = sp.SparsePGD(sp.Budget(k=1), steps=5)
    with pytest.raises(ShapeError, match=r"labels of shape \(3,\) for 7 images"):
        smallest_k(attack, model, x, y[:3], 4)
    with pytest.raises(LabelError, match="label 9"):
        smallest_k(attack, model, x, y + 9, 4)
    with pytest.raises(ShapeError, match=r"index of shape \(3,\) for 7 images"):
        smallest_k(attack, model, x, y, 4, index=torch.arange(3))


@pytest.mark.parametrize(("ks", "same"), [(np.int64(4), 4), (np.array([1, 2, 4]), (1, 2, 4))], ids=["one", "several"])
def test_ladders_of_numpy_are_those_of_python(ks: Any, same: Any) -> None:
    model, x, y, _ = linear_problem()
    attack = sp.SparsePGD(sp.Budget(k=1), steps=5)
    assert torch.equal(smallest_k(attack, model, x, y, ks).k, smallest_k(attack, model, x, y, same).k)


def test_empty_and_wholly_wrong_batches() -> None:
    model, x, y, _ = linear_problem()
    attack = sp.SparsePGD(sp.Budget(k=1), steps=5)
    assert len(smallest_k(attack, model, x[:0], y[:0], 5).k) == 0
    wrong = smallest_k(attack, model, x, y + 1, 5)
    assert wrong.k.tolist() == [0] * 7
    assert torch.equal(wrong.x_adv, x)
    assert wrong.accuracy(0) == 0


def test_each_image_keeps_its_mask() -> None:
    model, x, y, expected = linear_problem()
    allowed = torch.zeros(7, 4, 4, dtype=torch.bool)
    allowed[:, 1:] = True  # of image 6 ten of these twelve are black
    found = smallest_k(sp.SparsePGD(sp.Budget(k=1, allowed=allowed), steps=150), model, x, y, 8)
    assert found.k.tolist() == expected
    assert not bool(((found.x_adv != x).any(1) & ~allowed).any())


@pytest.mark.parametrize("ks", [0, (), (0, 1), (2, 2), (3, 1), 2.5, (1.5, 2.5), "12", None])
def test_ladders_that_do_not_grow_in_integers_are_refused(ks: Any) -> None:
    model, x, y, _ = linear_problem()
    with pytest.raises(BudgetError, match="ks="):
        smallest_k(sp.SparsePGD(sp.Budget(k=1)), model, x, y, ks)


def test_what_has_no_k_is_refused() -> None:
    model, x, y, _ = linear_problem()
    with pytest.raises(BudgetError, match="use k <= 16"):
        smallest_k(sp.SparsePGD(sp.Budget(k=1), steps=5), model, x, y, 17)

    class Other:
        name = "other"

        def __call__(self, *args: Any, **options: Any) -> sp.Result:
            raise AssertionError

    with pytest.raises(UnsupportedError, match="other has no budget"):
        smallest_k(Other(), model, x, y, 4)
