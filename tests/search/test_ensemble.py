"""Sparse-AutoAttack: members attack survivors only, results are merged row by row, and passes add up."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import BudgetError, LabelError, ShapeError, UnsupportedError
from sparsepgd.problem.verify import untouched
from sparsepgd.search.contract import Attacker
from sparsepgd.search.ensemble import SparseAutoAttack, TopTargets, verified
from sparsepgd.search.random_search.sparse_rs import SparseRS
from support.models import Counting, Linear, SmallConvNet, images, labelled

BUDGET = sp.Budget(k=12)
THREE = ("spgd-unprojected", "spgd-projected", "sparse-rs")
STANDARD = ("anneal", "spgd-unprojected", "spgd-projected", "cluster-rs")


def small(**options: Any) -> SparseAutoAttack:
    """Each member breaks a few of the images of `problem`, and none breaks all."""
    return SparseAutoAttack(options.pop("budget", BUDGET), steps=3, queries=100, **options)


def problem(count: int = 24, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor, Tensor]:
    model, x = SmallConvNet(dtype=dtype).eval(), images(count, dtype=dtype)
    return model, x, labelled(model, x)


@dataclass(frozen=True, eq=False)
class Spy:
    """An attack that notes what it is called with."""

    attack: Any
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"spy-{self.attack.name}"

    def __call__(self, model: Any, x: Tensor, y: Tensor, **options: Any) -> sp.Result:
        before = model.asked
        result: sp.Result = self.attack(model, x, y, **options)
        self.calls.append({"x": x, "result": result, "asked": model.asked - before, **options})
        return result


def test_the_members_are_the_papers_in_its_order() -> None:
    ensemble = SparseAutoAttack(sp.Budget(k=20))
    assert ensemble.name == "saa"
    assert ensemble.names == THREE
    first, second, third = ensemble.members
    assert isinstance(first, sp.SparsePGD)
    assert isinstance(second, sp.SparsePGD)
    assert isinstance(third, SparseRS)
    assert (first.steps, second.steps, third.queries, third.p_init, third.loss) == (10_000, 10_000, 10_000, 0.8, "ce")
    assert ensemble.evaluations == 10_001 + 10_001 + 10_000
    assert all(member.quantize for member in SparseAutoAttack(BUDGET, quantize=True).members)


def test_each_gradient_has_its_own_defaults_for_structures() -> None:
    rows = sp.Budget(k=1, pattern=sp.Rows())
    for found in SparseAutoAttack(rows, 200).members[:2]:
        assert isinstance(found, sp.SparsePGD)
        assert found.tolerance == sp.SparsePGD(rows, 200, found.gradient).tolerance


@pytest.mark.parametrize("budget", [sp.Budget(k=12), sp.Budget(k=4, pattern=sp.Patches(2))], ids=repr)
def test_it_fools_the_union_of_the_images_that_its_members_fool_alone(budget: sp.Budget) -> None:
    model, x, y = problem(dtype=torch.float64)
    ensemble = small(budget=budget)
    result = ensemble(model, x, y, seed=0)
    alone = [member(model, x, y, seed=0) for member in ensemble.members]
    assert 0 < result.robust_accuracy <= min(one.robust_accuracy for one in alone)
    assert torch.equal(result.fooled, torch.stack([one.fooled for one in alone]).any(0))
    for row, by in enumerate(result.broken_by):
        found = [name for name, one in zip(THREE, alone, strict=True) if bool(one.fooled[row])]
        assert by == (found[0] if found else None)
        if by is not None:
            assert torch.equal(result.x_adv[row], alone[THREE.index(by)].x_adv[row])
    history = ensemble.history(result)
    assert list(history) == ["clean", *THREE]
    assert history["clean"] == 1
    assert history["spgd-unprojected"] == alone[0].robust_accuracy
    assert history["sparse-rs"] == result.robust_accuracy


def test_more_than_one_member_is_needed_in_these_tests() -> None:
    model, x, y = problem()
    assert set(small()(model, x, y).broken_by) == {*THREE, None}


def test_each_member_sees_the_survivors_only_with_their_numbers() -> None:
    inner, x, y = problem()
    y[5] = (y[5] + 1) % 5  # wrong from the start
    model = Counting(inner)
    spies = tuple(Spy(member) for member in small().members)
    numbers = torch.arange(23, -1, -1)
    result = small(attacks=spies)(model, x, y, seed=0, index=numbers)
    alive = torch.arange(len(x)) != 5
    for spy in spies:
        (call,) = spy.calls
        assert torch.equal(call["x"], x[alive])
        assert torch.equal(call["index"], numbers[alive])
        assert call["seed"] == 0
        searched = int(call["result"].forwards.sum())
        assert 0 < searched <= call["asked"] <= searched + 3 * int(alive.sum())  # clean, confirmed, verified
        alive[alive.clone()] = ~call["result"].fooled
    assert torch.equal(alive, result.robust)
    assert result.broken_by[5] is None
    assert int(result.forwards[5]) == 0


def test_a_success_with_early_stop_off_is_not_attacked_by_later_members() -> None:
    model, x, y = problem()
    strong, weak = (sp.SparsePGD(BUDGET, steps, early_stop=False) for steps in (6, 1))
    alone, both = strong(model, x, y), small(attacks=(strong, weak))(model, x, y)
    assert 0 < int(alone.fooled.sum()) < len(x)
    assert bool(both.fooled[alone.fooled].all())
    assert torch.equal(both.x_adv[alone.fooled], alone.x_adv[alone.fooled])
    assert set(both.forwards[alone.fooled].tolist()) == {7}


def test_the_ensemble_needs_a_gradient_if_one_of_its_members_does() -> None:
    assert small().needs_gradient
    assert not small(attacks=(SparseRS(BUDGET, 5),)).needs_gradient


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_invalid_batch_sizes_are_refused(size: Any) -> None:
    model, x, y = problem(2)
    for attack in (small(), TopTargets(sp.SparsePGD(BUDGET, 3)), sp.SparsePGD(BUDGET, 3)):
        with pytest.raises(UnsupportedError, match=f"batch_size={size}; expected"):
            attack(model, x, y, batch_size=size)


def test_a_member_without_work_is_not_called() -> None:
    model, x, y = problem(4)
    sure = Spy(sp.SparsePGD(sp.Budget(k=100), steps=200))
    idle = Spy(sp.SparsePGD(sp.Budget(k=100), steps=200))
    result = SparseAutoAttack(sp.Budget(k=100), attacks=(sure, idle))(Counting(model), x, y)
    assert result.robust_accuracy == 0
    assert len(sure.calls) == 1
    assert idle.calls == []


def test_counters_are_sums_and_the_rest_is_of_the_last_member() -> None:
    model, x, y = problem(dtype=torch.float64)
    ensemble = small()
    result = ensemble(model, x, y, seed=0)
    alone = [member(model, x, y, seed=0) for member in ensemble.members]
    for row, by in enumerate(result.broken_by):
        worked = alone[: THREE.index(by) + 1] if by is not None else alone
        for counter in ("steps", "forwards", "backwards"):
            assert int(getattr(result, counter)[row]) == sum(int(getattr(one, counter)[row]) for one in worked)
        for value in ("loss", "l0", "groups", "prediction", "x_adv"):
            torch.testing.assert_close(getattr(result, value)[row], getattr(worked[-1], value)[row])
    survivor = result.broken_by.index(None)
    assert (int(result.steps[survivor]), int(result.forwards[survivor])) == (3 + 3 + 99, 4 + 4 + 100)
    assert int(result.backwards[survivor]) == 8


def test_empty_wrong_and_single_batches_are_aligned() -> None:
    model, x, y = problem(3)
    empty = small(targeted=True)(model, x[:0], y[:0])
    assert (len(empty), empty.x_adv.shape, empty.broken_by) == (0, (0, 3, 12, 12), ())
    wrong = small()(model, x, (y + 1) % 5)
    assert (wrong.clean_accuracy, wrong.robust_accuracy, wrong.broken_by) == (0, 0, (None,) * 3)
    assert torch.equal(wrong.x_adv, x)
    assert wrong.forwards.tolist() == [0, 0, 0]
    whole = small()(model, x, y)
    for row in range(3):
        one = small()(model, x[row : row + 1], y[row : row + 1], index=torch.tensor([row]))
        assert one.broken_by == whole.broken_by[row : row + 1]
        assert one.x_adv.shape == (1, 3, 12, 12)


def test_every_image_has_its_own_allowed_mask_in_every_member() -> None:
    model, x, y = problem(12)
    generator = torch.Generator().manual_seed(0)
    allowed = torch.rand(12, 12, 12, generator=generator) < 0.6
    ensemble = small(budget=sp.Budget(k=12, allowed=allowed), targeted=True)
    result = ensemble(model, x, y)
    changed = (result.x_adv != x).any(1)
    assert not bool((changed & ~allowed).any())
    assert 0 < int(result.fooled.sum()) < 12  # later members had some of the images only
    assert bool(changed.flatten(1).any(1).all())
    nested = SparseAutoAttack(ensemble.budget, attacks=(ensemble,))(model, x, y)
    assert torch.equal(nested.x_adv, result.x_adv)


def test_custom_attacks_run_in_the_given_order_under_distinct_names() -> None:
    model, x, y = problem()
    weak, strong = sp.SparsePGD(BUDGET, steps=1), sp.SparsePGD(BUDGET, steps=20)
    ensemble = small(attacks=[weak, strong])
    result = ensemble(model, x, y)
    assert ensemble.names == ("spgd-unprojected", "spgd-unprojected-2")
    early, late = weak(model, x, y).fooled, strong(model, x, y).fooled
    assert bool((late & ~early).any())
    for row, by in enumerate(result.broken_by):
        assert (by == ensemble.names[0]) == bool(early[row])
        assert (by == ensemble.names[1]) == bool(late[row] & ~early[row])


def test_targeted_members_try_the_likeliest_wrong_classes_and_take_any_wrong_answer() -> None:
    model, x, y = problem()
    ensemble = small(targeted=True)
    assert ensemble.names == (*THREE, "spgd-unprojected-targeted", "spgd-projected-targeted")
    plain, more = small()(model, x, y), ensemble(model, x, y)
    assert more.robust_accuracy <= plain.robust_accuracy
    with torch.no_grad():
        said, clean = model(more.x_adv).argmax(1), model(x)
    assert torch.equal(more.fooled, said != y)

    led = TopTargets(sp.SparsePGD(BUDGET, steps=3))
    fooled = torch.zeros(len(x), dtype=torch.bool)
    for rank in range(1, 5):  # five classes: four are wrong
        target = clean.argsort(1, descending=True)[:, rank]
        fooled |= led.attack(model, x, y, goal=sp.Targeted(target, accept="any")).fooled
    result = led(model, x, y)
    assert torch.equal(result.fooled, fooled)
    assert bool(fooled.any())
    assert set(result.forwards[~fooled].tolist()) == {4 * 4}
    assert led.evaluations == 9 * 4


@pytest.mark.parametrize(
    ("steps", "share"), [(2, 2), (19, 19), (20, 20), (99, 20), (100, 20), (105, 21), (1000, 200), (10_000, 2000)]
)
def test_the_standard_version_has_all_steps_for_anneal_and_a_share_for_spgd(steps: int, share: int) -> None:
    ensemble = SparseAutoAttack(BUDGET, steps, 30, version="standard", quantize=True)
    assert ensemble.name == "saa+"
    assert ensemble.names == STANDARD
    anneal, first, second, box = ensemble.members
    assert isinstance(anneal, sp.SparseAnneal)
    assert isinstance(first, sp.SparsePGD)
    assert isinstance(second, sp.SparsePGD)
    assert isinstance(box, sp.ClusterRS)
    assert (anneal.steps, first.steps, second.steps, box.queries) == (steps, share, share, 30)
    assert (first.gradient, second.gradient) == ("unprojected", "projected")
    assert all(member.quantize for member in (anneal, first, second, box))
    assert ensemble.evaluations == steps + 2 * (share + 1) + 30


@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Groups([[0, 1], [2, 3]])], ids=repr)
def test_the_standard_version_ends_with_sparse_rs_for_other_patterns_than_points(pattern: sp.Pattern) -> None:
    ensemble = SparseAutoAttack(sp.Budget(k=1, pattern=pattern), 200, 30, version="standard")
    assert ensemble.names == ("anneal", *THREE)
    assert ensemble.members[-1].evaluations == 30


def test_the_standard_version_fools_more_images_than_anneal_alone() -> None:
    """One member alone leaves images that a later one breaks, so that the order can be seen."""
    model, x, y = problem()
    ensemble = SparseAutoAttack(sp.Budget(k=8), 4, 300, version="standard")
    result, anneal = ensemble(model, x, y), ensemble.members[0](model, x, y)
    first = torch.tensor([by == "anneal" for by in result.broken_by])
    assert torch.equal(first, anneal.fooled)
    assert 0 < int(first.sum()) < int(result.fooled.sum()) < len(x)


def test_targeted_members_come_last_in_the_standard_version_too() -> None:
    ensemble = SparseAutoAttack(BUDGET, 200, 30, version="standard", targeted=True)
    assert ensemble.names == (*STANDARD, "spgd-unprojected-targeted", "spgd-projected-targeted")
    assert ensemble.members[-1].evaluations == 9 * 41
    model, x, y = problem(4)
    assert len(dataclasses.replace(ensemble, steps=2, queries=2)(model, x, y)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "plus"}, "version='plus'; use one of 'paper', 'standard'"),
        ({"version": "standard", "steps": 1}, "steps=1; .* use at least 2"),
    ],
)
def test_versions_that_are_not_known_and_too_few_steps_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        SparseAutoAttack(BUDGET, **options)


def test_two_classes_leave_one_target() -> None:
    weight = torch.zeros(1, 4, 4)
    weight[0, 1, 2] = 1.0
    result = TopTargets(sp.SparsePGD(sp.Budget(k=1), steps=40))(
        Linear(weight, -0.5), torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64)
    )
    assert result.fooled.tolist() == [True, True]


def test_progress_grows_to_the_end_of_the_cascade() -> None:
    model, x, y = problem()
    seen: list[tuple[int, int, int]] = []
    result = small(targeted=True)(model, x, y, progress=lambda *now: seen.append(now))
    done, total, fooled = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert set(total) == {len(x) * small(targeted=True).evaluations}
    assert done[-1] == total[-1]
    assert list(fooled) == sorted(fooled)
    assert fooled[-1] == int(result.fooled.sum())


def test_the_model_is_given_back_as_it_was_also_after_an_error() -> None:
    model, x, y = problem(4)
    model.train()
    small()(model, x, y)
    assert model.training

    class Failing:
        name = "failing"

        def __call__(self, *args: Any, **options: Any) -> sp.Result:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        small(attacks=(Failing(),))(model, x, y)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_targeted_goals_are_refused_with_advice() -> None:
    model, x, y = problem(2)
    with pytest.raises(UnsupportedError, match=r"goal=Targeted.*use SparseAnneal\(budget\).*targeted=True"):
        small()(model, x, y, goal=sp.Targeted((y + 1) % 5))
    assert len(small()(model, x, y, goal=sp.Untargeted())) == 2


@pytest.mark.parametrize(
    ("attacks", "options", "error", "message"),
    [
        ((), {}, UnsupportedError, r"attacks=\(\) is empty; give at least one"),
        ((sp.SparsePGD(sp.Budget(k=99)),), {}, BudgetError, r"has Budget\(k=99, .* the ensemble Budget\(k=12"),
        ((sp.SparsePGD(sp.Budget(k=12, pattern=sp.Rows())),), {}, BudgetError, "give both the same budget"),
        ((sp.SparsePGD(BUDGET),), {"quantize": True}, UnsupportedError, "set quantize=True for both"),
    ],
)
def test_members_may_not_do_more_than_the_ensemble(
    attacks: tuple[Attacker, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        small(attacks=attacks, **options)


def test_a_member_may_not_ignore_the_mask_of_the_ensemble() -> None:
    mask = torch.arange(144).view(12, 12) < 70
    masked = dataclasses.replace(BUDGET, allowed=mask)
    small(budget=masked, attacks=(sp.SparsePGD(dataclasses.replace(BUDGET, allowed=mask.clone())),))
    with pytest.raises(BudgetError, match="give both the same budget"):
        small(budget=masked, attacks=(sp.SparsePGD(BUDGET),))


def test_results_with_counters_of_other_types_are_merged() -> None:
    """The first result determines types and devices: attacks of other packages may count in int32."""
    model, x, y = problem(4)
    part = sp.SparsePGD(BUDGET, 3)(model, x[1:3], y[1:3])
    counts = {name: getattr(part, name).int() for name in ("steps", "forwards", "backwards", "l0", "groups")}
    before = untouched(x, y, model(x).detach())
    merged = verified(before, torch.tensor([1, 2]), dataclasses.replace(part, **counts), "one")
    assert merged.forwards.tolist() == [0, *part.forwards.tolist(), 0]
    assert merged.forwards.dtype == torch.int64
    assert torch.equal(merged.x_adv[1:3], part.x_adv)


def test_unusable_input_is_refused_before_the_first_member_runs() -> None:
    model, x, y = problem(3)
    with pytest.raises(ShapeError, match="index of shape"):
        small()(model, x, y, index=torch.arange(2))
    with pytest.raises(LabelError, match="label 7 of image 0"):
        small()(model, x, y * 0 + 7)
    with pytest.raises(BudgetError, match="use k <= 144"):
        small(budget=sp.Budget(k=200))(model, x[:0], y[:0])


@pytest.mark.parametrize("member", ["spgd", sp.SparsePGD, None])
def test_a_member_that_is_not_an_attack_is_refused(member: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"is not an attack; expected one, e.g. SparsePGD"):
        small(attacks=(member,))
