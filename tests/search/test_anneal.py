"""SparseAnneal: finds known optima, stays within the budget, and counts its evaluations."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.engine import metered
from sparsepgd.problem.goals import LOSSES
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.problem.rows import clone
from sparsepgd.search import anneal, loop
from sparsepgd.search.attack import queue
from sparsepgd.search.noise import Noise
from support import linear, operations
from support.budgets import BUDGETS
from support.models import Counting, Linear, NoLook, SmallConvNet, images, labelled
from support.promises import broken

OVERLAPPING = sp.Groups.windows(144, 6)
MORE_BUDGETS = [
    sp.Budget(k=2, pattern=sp.Groups([range(i, i + 9) for i in range(0, 144, 9)])),
    sp.Budget(k=2, pattern=OVERLAPPING),
    sp.Budget(k=2, pattern=sp.Groups([[i, i + 1, i + 150] for i in range(0, 140, 2)], features=True)),
    sp.Budget(k=2, allowed=torch.arange(4 * 144).view(4, 12, 12) % 5 < 2),
    sp.Budget(k=2, pattern=sp.Patches(3), allowed=torch.arange(4 * 144).view(4, 12, 12) % 7 == 0, eps=0.25),
    sp.Budget(k=4, pattern=sp.Patches(11)),  # all there are
]


@pytest.mark.parametrize(
    ("budget", "early_stop"),
    [(one, i % 2 > 0) for i, one in enumerate(BUDGETS)] + [(one, False) for one in MORE_BUDGETS],
)
def test_promises_hold_also_when_cycles_begin_at_the_best_point(budget: sp.Budget, early_stop: bool) -> None:
    """The attacks of tests/test_contract.py end in the first cycle; 45 evaluations reach the fifth."""
    model, x = SmallConvNet().eval(), images(4)
    y = labelled(model, x)
    y[2] = (y[2] + 1) % 5
    attack = sp.SparseAnneal(budget, 45, early_stop=early_stop, quantize=not early_stop)
    result = attack(model, x, y, seed=1)
    assert broken(attack, result, model, x, y) == []


@pytest.mark.parametrize(
    "budget",
    [
        sp.Budget(k=1),
        sp.Budget(k=4),
        sp.Budget(k=3, eps=0.1),
        sp.Budget(k=3, pattern=sp.Features()),
        sp.Budget(k=2, pattern=sp.Rows()),
        sp.Budget(k=1, pattern=sp.Columns()),
        sp.Budget(k=2, pattern=sp.Patches(2)),
        sp.Budget(k=1, pattern=sp.Patches(3), eps=0.1),
        sp.Budget(k=1, pattern=sp.Shape.heart(5)),
        sp.Budget(k=1, pattern=sp.Frame(1)),
        sp.Budget(k=2, pattern=sp.Groups([range(i, i + 4) for i in range(0, 64, 4)])),
        sp.Budget(k=1, pattern=sp.Groups.windows(64, 5)),  # these overlap
        sp.Budget(k=2, pattern=sp.Groups([[0, 1, 2, 9], [2, 3, 4], [5, 6, 7, 8, 20], [40, 41, 50], [50, 51, 2]])),
        sp.Budget(k=2, pattern=sp.Groups.sensors(3, 64)),
    ],
    ids=repr,
)
def test_the_groups_that_matter_are_found_and_changed_as_far_as_they_may_be(budget: sp.Budget) -> None:
    weight, x, best = linear.planted(budget)
    model = linear.just_out_of_reach(weight, x, best)
    result = sp.SparseAnneal(budget, 63)(model, x, torch.zeros(4, dtype=torch.int64))
    assert not bool(result.fooled.any())
    reached = ((result.x_adv - x) * weight).flatten(1).sum(1)
    torch.testing.assert_close(reached, best, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "budget",
    [
        sp.Budget(k=1),
        sp.Budget(k=4),
        sp.Budget(k=3, pattern=sp.Features()),
        sp.Budget(k=2, pattern=sp.Rows()),
        sp.Budget(k=1, pattern=sp.Patches(3)),
    ],
    ids=repr,
)
def test_comes_close_to_the_best_groups_where_many_matter(budget: sp.Budget) -> None:
    weight, x, best = linear.problem(budget)
    model = linear.just_out_of_reach(weight, x, best)
    result = sp.SparseAnneal(budget, 63)(model, x, torch.zeros(4, dtype=torch.int64))
    share = ((result.x_adv - x) * weight).flatten(1).sum(1) / best
    assert bool((share < 1 + 1e-5).all())
    assert float(share.min()) > 0.8
    assert float(share.mean()) > 0.9


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Rows(), sp.Patches(2)], ids=repr)
@pytest.mark.parametrize("early_stop", [True, False])
def test_fools_a_linear_model_if_and_only_if_the_budget_suffices(pattern: sp.Pattern, early_stop: bool) -> None:
    budget = sp.Budget(k=2, pattern=pattern)
    weight, x, best = linear.planted(budget)
    for slack, expected in ((1e-2, True), (-1e-2, False)):
        model = linear.with_slack(weight, x[:1], best[0], slack)
        result = sp.SparseAnneal(budget, 63, early_stop=early_stop)(model, x[:1], torch.tensor([0]))
        assert bool(result.fooled) is expected


def test_a_budget_of_one_patch_of_one_pixel_is_a_budget_of_one_pixel() -> None:
    model, x = SmallConvNet(), images(4)
    y = labelled(model, x)
    pixels = sp.SparseAnneal(sp.Budget(k=2), 70)(model, x, y)
    patches = sp.SparseAnneal(sp.Budget(k=2, pattern=sp.Patches(1)), 70)(model, x, y)
    assert torch.equal(pixels.x_adv, patches.x_adv)


# Random numbers, batches and the number of steps.


@pytest.mark.parametrize(
    ("pattern", "early_stop", "batch_size"),
    [(sp.Pixels(), False, 3), (sp.Patches(2), True, 1)],
)
def test_batch_size_order_and_the_other_images_do_not_change_the_result(
    pattern: sp.Pattern, early_stop: bool, batch_size: int
) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(5, dtype=torch.float64)
    y = labelled(model, x)
    attack = sp.SparseAnneal(sp.Budget(k=1, pattern=pattern), 45, early_stop=early_stop)
    whole = attack(model, x, y, seed=3, batch_size=5)
    pick = torch.tensor([4, 0, 3, 1])
    parts = attack(model, x[pick], y[pick], seed=3, batch_size=batch_size, index=pick)
    assert torch.equal(parts.fooled, whole.fooled[pick])
    assert torch.equal(parts.steps, whole.steps[pick])
    torch.testing.assert_close(parts.x_adv, whole.x_adv[pick], rtol=0, atol=1e-4)


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(3)], ids=repr)
def test_seeds_differ_and_repeat(pattern: sp.Pattern) -> None:
    model, x = SmallConvNet(), images(4)
    y = labelled(model, x)
    attack = sp.SparseAnneal(sp.Budget(k=4, pattern=pattern, eps=0.1), 40)
    first, again, other = (attack(model, x, y, seed=seed) for seed in (1, 1, 2))
    assert not bool(first.fooled.all())
    assert torch.equal(first.x_adv, again.x_adv)
    assert torch.equal(first.steps, again.steps)
    assert not torch.equal(first.x_adv, other.x_adv)


@pytest.mark.parametrize(
    ("pattern", "k", "steps"), [(sp.Pixels(), 3, 11), (sp.Pixels(), 3, 45), (sp.Patches(2), 1, 45)]
)
def test_a_run_is_the_beginning_of_every_longer_run(pattern: sp.Pattern, k: int, steps: int) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(24, dtype=torch.float64)
    y = labelled(model, x)
    attack = sp.SparseAnneal(sp.Budget(k=k, pattern=pattern), steps)
    short, long = attack(model, x, y), dataclasses.replace(attack, steps=90)(model, x, y)
    done = short.fooled
    assert 0 < int(done.sum()) < len(x)
    assert bool(long.fooled[done].all())
    assert torch.equal(long.steps[done], short.steps[done])
    torch.testing.assert_close(long.x_adv[done], short.x_adv[done], rtol=0, atol=1e-4)
    later = long.fooled & ~done
    assert bool((long.steps[later] >= steps).all())  # what the short run did not see


def test_a_longer_search_for_the_fewest_groups_finds_no_more_of_them() -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(8, dtype=torch.float64)
    y = labelled(model, x)
    found = [sp.SparseAnneal(sp.Budget(k=20), steps, early_stop=False)(model, x, y) for steps in (40, 120)]
    assert bool((found[1].fooled | ~found[0].fooled).all())
    assert bool((found[1].groups <= found[0].groups)[found[0].fooled].all())
    assert int(found[1].groups.sum()) < int(found[0].groups.sum())


# Evaluations.


@pytest.mark.parametrize("steps", [2, 3, 11, 40])
def test_every_step_is_one_forward_and_one_backward_pass(steps: int) -> None:
    model, x = Counting(SmallConvNet().eval()), images(8)
    y = labelled(model.model, x)
    result = sp.SparseAnneal(sp.Budget(k=2), steps)(model, x, y)
    assert torch.equal(result.forwards, result.backwards)
    assert torch.equal(result.forwards[result.fooled], result.steps[result.fooled] + 1)
    assert bool((result.forwards[~result.fooled] == steps).all())
    assert bool((result.forwards <= steps).all())
    assert model.flowed == int(result.backwards.sum())
    told = int(result.fooled.sum())  # every success is confirmed once
    assert model.asked == int(result.forwards.sum()) + told + 2 * len(x)  # and all are asked before and after


def test_a_search_for_the_fewest_groups_takes_all_steps() -> None:
    model, x = Counting(SmallConvNet().eval()), images(4)
    result = sp.SparseAnneal(sp.Budget(k=20), 30, early_stop=False)(model, x, labelled(model.model, x))
    assert bool(result.fooled.any())
    assert result.forwards.tolist() == result.backwards.tolist() == [30] * 4
    assert model.flowed == 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 1}, "steps=1; the first is taken at the clean image: use at least 2"),
        ({"steps": 0}, "steps=0; expected a number larger than 0"),
        ({"steps": 2.5}, "steps=2.5; expected an integer"),
        ({"loss": "hinge"}, "loss='hinge'; use one of 'ce', 'margin', 'dlr'"),
    ],
)
def test_unusable_hyper_parameters_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        sp.SparseAnneal(sp.Budget(k=1), **arguments)


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Rows(), sp.Patches(3), OVERLAPPING], ids=repr)
@pytest.mark.parametrize("early_stop", [True, False])
def test_steps_do_not_synchronise_with_the_device(pattern: sp.Pattern, early_stop: bool) -> None:
    net, x = SmallConvNet(), images(3)
    attack = sp.SparseAnneal(sp.Budget(k=2, pattern=pattern), 13, early_stop=early_stop)
    threat, y = attack.budget.resolve((3, 12, 12)), labelled(net, x)
    with borrowed(net, x.device):
        oracle = Oracle(net, sp.Untargeted(), attack.loss)
        waiting = queue(threat, oracle, x, y, oracle.answers(x, 3), None)
        here = loop.Images.entering(waiting, threat, quantize=False)
        with NoLook():
            best = loop.run_whole_batch(attack, oracle, threat, here, Noise(0))
    swept = attack.perturb(net, x, y)
    torch.testing.assert_close(best.x_adv, swept)
    torch.testing.assert_close(swept, attack(net, x, y).x_adv, rtol=0, atol=1e-4)


def test_cycles_ascend_the_margin_the_dlr_and_the_cross_entropy_in_turn() -> None:
    along: list[str] = []

    class Led(sp.SparseAnneal):
        def aim(self, state: Any) -> loop.Aim:
            aim = super().aim(state)
            assert aim.along is not None
            along.append(list(LOSSES)[int(aim.along)])
            return aim

    weight, x, best = linear.planted(sp.Budget(k=1))
    Led(sp.Budget(k=1), 4 * 11)(linear.just_out_of_reach(weight, x[:1], best[:1]), x[:1], torch.tensor([0]))
    assert along == ["margin"] * 11 + ["dlr"] * 11 + ["ce"] * 11 + ["margin"] * 11


# Points beyond the budget are not a result.


class Watched(Linear):
    """A linear model that counts the successes it has shown to the search."""

    successes = 0

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        self.successes += int((logits[:, 1] > logits[:, 0]).sum()) * torch.is_grad_enabled()
        return logits


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Rows(), sp.Groups([[2 * i, 2 * i + 1] for i in range(32)])])
def test_a_model_that_only_more_groups_fool_is_not_fooled(pattern: sp.Pattern, early_stop: bool) -> None:
    """A warning of the verifier would be an error here."""
    x, weight = torch.full((3, 1, 8, 8), 0.5), torch.ones(1, 8, 8)
    size = int(sp.Budget(k=1, pattern=pattern).resolve((1, 8, 8)).gather(weight[None]).max())
    model = Watched(weight, -32.0 - 0.5 * size * 2 - 0.1)  # two groups at their best do not do, three do
    result = sp.SparseAnneal(sp.Budget(k=2, pattern=pattern), 60, early_stop=early_stop)(
        model, x, torch.zeros(3, dtype=torch.int64)
    )
    assert model.successes > 0
    assert not bool(result.fooled.any())
    assert bool((result.groups <= 2).all())
    more = sp.SparseAnneal(sp.Budget(k=3, pattern=pattern), 60, early_stop=early_stop)
    assert bool(more(model, x, torch.zeros(3, dtype=torch.int64)).fooled.all())


# The fewest groups.


@pytest.mark.parametrize("k", [20, 64])
def test_the_fewest_pixels_of_a_linear_model_are_found_within_one(k: int) -> None:
    """Five pixels matter, each adds 1.5, and 3.3 are needed, so three pixels. The image has 64."""
    weight, _, _ = linear.planted(sp.Budget(k=5))
    x = torch.full((4, 3, 8, 8), 0.5)
    model = Linear(weight, -0.5 * float(weight.sum()) - 2.2 * 1.5)
    result = sp.SparseAnneal(sp.Budget(k), 120, early_stop=False)(model, x, torch.zeros(4, dtype=torch.int64))
    assert bool(result.fooled.all())
    assert set(result.groups.tolist()) <= {3, 4}
    assert torch.equal(result.groups, result.l0)


class Noted(sp.SparseAnneal):
    """Keeps the first state of each cycle, of one image."""

    def update(self, threat: Any, images: Any, state: Any, *others: Any) -> Any:
        new = super().update(threat, images, state, *others)
        if int(new.cycle.number) > int(state.cycle.number):
            self.begun.append(clone(new))
        return new

    @cached_property
    def begun(self) -> list[Any]:
        return []


@pytest.mark.parametrize(("clean", "larger_is_better"), [(0.0, True), (0.5, False)])
def test_starts_and_the_length_of_later_cycles_follow_from_which_first_step_is_best(
    clean: float, larger_is_better: bool
) -> None:
    """A linear model that is never fooled: the smallest steps take a grey pixel to white, but not a black one."""
    attack, x = Noted(sp.Budget(k=2), 160), torch.full((1, 1, 8, 8), clean)
    assert not bool(attack(Linear(torch.ones(1, 8, 8), -65.0), x, torch.tensor([0])).fooled)
    cycles = [state.cycle for state in attack.begun]
    assert [bool(one.start) for one in cycles[:3]] == [True, larger_is_better, False]
    starts = [float(one.size) for one in cycles if bool(one.start)]
    assert starts == pytest.approx([0.25, 0.625][: len(starts)])
    assert [int(one.length) for one in cycles[:8]] == [10] * 5 + [10 if larger_is_better else 15] * 3


@pytest.mark.parametrize(("k", "expected"), [(1024, [32, 128, 512, 1024, 1024]), (100, [32, 100, 100, 100, 100])])
def test_cycles_come_down_to_four_times_as_many_groups_until_there_is_a_success(k: int, expected: list[int]) -> None:
    """The first cycle ends with 8 of 1,024 pixels. Not even all of them together are a success."""
    x = torch.full((1, 1, 32, 32), 0.5)
    attack = Noted(sp.Budget(k), 70, early_stop=False)
    assert not bool(attack(Linear(torch.ones(1, 32, 32), -1025.0), x, torch.tensor([0])).fooled)
    assert [int(state.cycle.k) for state in attack.begun] == expected


@pytest.mark.parametrize(("needed", "again"), [(20, False), (60, True)])
def test_three_cycles_begin_at_the_clean_image_where_a_success_has_many_groups(needed: int, again: bool) -> None:
    """The weights differ, so that the first cycle succeeds on its way down."""
    weight, x = torch.linspace(1.0, 1.1, 1024).view(1, 32, 32), torch.full((1, 1, 32, 32), 0.5)
    attack = Noted(sp.Budget(1024), 60, early_stop=False)
    attack(Linear(weight, -0.5 * float(weight.sum()) - 0.55 * (needed - 0.5)), x, torch.tensor([0]))
    assert all(needed <= int(state.limit) + 1 < 1024 for state in attack.begun)
    assert [bool((state.cycle.now.delta == 0).all()) for state in attack.begun[:3]] == [again, again, False]


def test_only_the_first_cycle_of_a_search_for_the_fewest_groups_has_twenty_steps() -> None:
    x, lengths = torch.full((1, 1, 32, 32), 0.5), []

    class Timed(sp.SparseAnneal):
        def aim(self, state: Any) -> loop.Aim:
            lengths.append(int(state.cycle.length))
            return super().aim(state)

    for early_stop, first in ((False, 20), (True, 10)):
        lengths.clear()
        Timed(sp.Budget(1024), 50, early_stop=early_stop)(Linear(torch.ones(1, 32, 32), -1025.0), x, torch.tensor([0]))
        assert lengths == [first] * (first + 1) + [10] * (49 - first)


def test_after_a_success_the_next_cycle_begins_there_with_one_group_fewer() -> None:
    model, x = SmallConvNet(), images(1)
    attack = Noted(sp.Budget(144), 200, early_stop=False)
    attack(model, x, labelled(model, x))
    onward = [state for state in attack.begun if int(state.limit) < 144 and bool(state.margin.isinf())]
    assert onward
    for state in onward:
        assert int(state.cycle.now.count) == int(state.limit)
        change = (x + state.best.delta).clamp(0, 1) - x
        torch.testing.assert_close(state.cycle.now.delta, change * state.cycle.now.v)


def test_a_search_for_the_fewest_groups_replaces_single_points_only_where_they_are_few() -> None:
    weight, x = torch.ones(1, 32, 32), torch.full((1, 1, 32, 32), 0.5)
    for needed, expected in ((20, True), (100, False)):
        attack = Noted(sp.Budget(1024), 400, early_stop=False)
        attack(Linear(weight, -512 - 0.5 * (needed - 0.5)), x, torch.tensor([0]))
        assert any(bool(state.cycle.local) for state in attack.begun) is expected


def test_only_after_a_move_does_a_cycle_continue_without_one() -> None:
    """A cycle that moves a patch to its best place does not bring all values of image 0 of the linear model to their
    bounds. The margin of the network rises until the end of the first cycle, which places groups and moves none."""
    weight, x, best = linear.planted(sp.Budget(k=2, pattern=sp.Patches(2)))
    net, others = SmallConvNet().eval(), images(4)
    attack, small = (Noted(sp.Budget(k=2, pattern=sp.Patches(2), eps=eps), 130) for eps in (1.0, 0.1))
    attack(linear.just_out_of_reach(weight, x, best), x[:1], torch.tensor([0]))
    small(net, others[1:2], labelled(net, others)[1:2])
    for one in (attack, small):
        moves = [bool(state.cycle.moves) for state in one.begun]
        assert moves[0]
        assert all(pair != (False, False) for pair in pairwise(moves))
    still = [state for state in attack.begun if not bool(state.cycle.moves)]
    assert still
    assert all(torch.equal(state.cycle.now.v, state.best.v) for state in still)


def test_the_search_for_the_fewest_groups_has_a_revision_of_its_own() -> None:
    attack = sp.SparseAnneal(sp.Budget(k=1))
    assert dataclasses.replace(attack, early_stop=False).revision > attack.revision == 8


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features(), sp.Rows(), sp.Patches(2)], ids=repr)
def test_no_more_groups_than_a_search_that_stops_at_the_first_success(pattern: sp.Pattern) -> None:
    model, x = SmallConvNet(), images(4)
    y = labelled(model, x)
    attack = sp.SparseAnneal(sp.Budget(k=12, pattern=pattern), 60)
    early, full = attack(model, x, y), dataclasses.replace(attack, early_stop=False)(model, x, y)
    assert bool((full.fooled | ~early.fooled).all())
    assert bool((full.groups <= early.groups)[early.fooled].all())
    assert int(full.groups[early.fooled].sum()) < int(early.groups[early.fooled].sum())


def test_patches_become_fewer_where_one_suffices() -> None:
    weight, x, best = linear.planted(sp.Budget(k=1, pattern=sp.Patches(3)))
    model = Linear(weight, -float(((x * weight).flatten(1).sum(1) + best).min()) + 0.5)
    attack = sp.SparseAnneal(sp.Budget(k=3, pattern=sp.Patches(3)), 240, early_stop=False)
    result = attack(model, x, torch.zeros(4, dtype=torch.int64))
    assert bool(result.fooled.all())
    assert result.groups.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("quantize", [False, True])
def test_of_all_successes_that_count_the_one_with_the_fewest_groups_is_kept(quantize: bool) -> None:
    """Also on the 8-bit grid, where small changes are rounded to none."""
    points: list[tuple[Tensor, Tensor]] = []

    class Noting(sp.SparseAnneal):
        def propose(self, threat: Any, images: Any, state: Any) -> Tensor:
            x_adv = super().propose(threat, images, state)
            points.append((x_adv, self._within(state)))
            return x_adv

    model, x = SmallConvNet().eval(), images(6)
    y = labelled(model, x)
    budget = sp.Budget(k=40, eps=16 / 255)
    result = Noting(budget, 120, early_stop=False, quantize=quantize)(model, x, y)
    with torch.no_grad():
        counted = [
            torch.where(within & (model(x_adv).argmax(1) != y), (x_adv != x).any(1).flatten(1).sum(1), 999)
            for x_adv, within in points
            if len(x_adv) == len(x)
        ]
    assert len(counted) >= 120
    assert bool(result.fooled.any())
    assert torch.equal(result.groups[result.fooled], torch.stack(counted).amin(0)[result.fooled])


class Credulous(Linear):
    """Is fooled more easily while gradients are taken, as a model in low precision may be."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + torch.tensor([0.0, 0.55]) if torch.is_grad_enabled() else logits


@pytest.mark.parametrize("apart", [False, True])
def test_the_last_success_that_full_precision_confirms_is_kept(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the search two pixels suffice, in full precision three: successes with two are denied."""
    monkeypatch.setattr("sparsepgd.search.table.waits_for_host", lambda device: apart)
    monkeypatch.setattr("sparsepgd.search.table.LONGEST", 1)
    x, weight = torch.full((3, 1, 8, 8), 0.5), torch.ones(1, 8, 8)
    model = Credulous(weight, -32.0 - 0.5 * 2 - 0.1)
    with metered() as meter:
        result = sp.SparseAnneal(sp.Budget(20), 90, early_stop=False)(model, x, torch.zeros(3, dtype=torch.int64))
    assert meter.denied > 0
    assert bool(result.fooled.all())
    assert result.groups.tolist() == [3, 3, 3]


@pytest.mark.parametrize("k", [19, 20, 21])
def test_after_a_denied_success_as_many_groups_are_tried_as_before_it(k: int) -> None:
    """In the search sixteen pixels suffice, in full precision eighteen: successes with fewer are denied."""
    x, weight = torch.full((3, 1, 8, 8), 0.5), torch.ones(1, 8, 8)
    model = Credulous(weight, -32.0 - 0.5 * 17 - 0.02)
    with metered() as meter:
        result = sp.SparseAnneal(sp.Budget(k), 300, early_stop=False)(model, x, torch.zeros(3, dtype=torch.int64))
    assert meter.denied > 0
    assert result.groups.tolist() == [18, 18, 18]


def test_the_fewest_groups_found_in_low_precision_hold_in_full_precision() -> None:
    model, x = SmallConvNet().eval(), images(12)
    with torch.no_grad():
        model.net[-1].bias.add_(70.0)  # the logits of bf16 are half a unit apart
    y = labelled(model, x)
    attack = sp.SparseAnneal(sp.Budget(k=12), 80, early_stop=False)
    with metered() as meter:
        result = attack(model, x, y, engine=sp.Engine("bf16"))
    assert meter.denied > 0  # or the case is none
    assert broken(attack, result, model, x, y) == []
    exact = attack(model, x, y)
    assert int(result.fooled.sum()) >= int(exact.fooled.sum()) - 2
    assert float(result.groups[result.fooled].float().mean()) <= 1.5 * float(exact.groups[exact.fooled].float().mean())


# Unusual models and inputs.


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(3)], ids=repr)
def test_models_with_few_classes_are_fooled(classes: int, pattern: sp.Pattern) -> None:
    model, x = SmallConvNet(classes=classes, seed=1), images(6)
    attack = sp.SparseAnneal(sp.Budget(k=20, pattern=pattern), 60)
    result = attack(model, x, labelled(model, x))
    assert int(result.fooled.sum()) >= 4


class Flat(nn.Module):
    """The same logits everywhere, with a gradient that is zero; with `ties` all equal."""

    def __init__(self, ties: bool) -> None:
        super().__init__()
        self.answer = torch.zeros(5) if ties else torch.tensor([2.0, 1.0, 0.0, 0.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.answer + 0 * x.flatten(1).sum(1)[:, None]


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Rows(), sp.Patches(3), OVERLAPPING], ids=repr)
@pytest.mark.parametrize(("early_stop", "ties"), [(True, True), (False, False)])
def test_a_model_with_zero_gradients_is_attacked_to_the_end_and_not_fooled(
    pattern: sp.Pattern, early_stop: bool, ties: bool
) -> None:
    x, y = images(2), torch.zeros(2, dtype=torch.int64)
    attack = sp.SparseAnneal(sp.Budget(k=2, pattern=pattern), 45, early_stop=early_stop)
    result = attack(Flat(ties), x, y)
    assert not bool(result.fooled.any())
    assert torch.equal(result.x_adv, x)
    assert result.forwards.tolist() == [45, 45]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(3)], ids=repr)
def test_points_with_non_finite_logits_are_neither_a_success_nor_progress(value: float, pattern: sp.Pattern) -> None:
    """Logits are not finite where the first pixel of the image is changed."""
    net, x = SmallConvNet().eval(), images(3)
    y = labelled(net, x)
    first = x[:, :, 0, 0]

    def model(z: Tensor) -> Tensor:
        known = (z[:, None, :, 0, 0] == first[None]).all(2).any(1)
        return torch.where(known[:, None], net(z), value)

    attack = sp.SparseAnneal(sp.Budget(k=6, pattern=pattern), 180)
    result = attack(model, x, y)
    assert torch.equal(result.x_adv[:, :, 0, 0], first)
    assert int(result.fooled.sum()) >= 2

    def nowhere(z: Tensor) -> Tensor:
        known = (z[:, None] == x[None]).flatten(2).all(2).any(1)
        return torch.where(known[:, None], net(z), value)

    assert torch.equal(attack(nowhere, x, y).x_adv, x)


@pytest.mark.parametrize(
    ("budget", "early_stop"),
    [
        (sp.Budget(k=16), True),
        (sp.Budget(k=48, pattern=sp.Features()), False),
        (sp.Budget(k=4, pattern=sp.Rows()), False),
        (sp.Budget(k=9, pattern=sp.Patches(2)), True),
        (sp.Budget(k=9, pattern=sp.Patches(2)), False),
        (sp.Budget(k=1, pattern=sp.Frame(1)), True),
        (sp.Budget(k=2, pattern=sp.Groups([[0, 1, 2], [2, 5]])), False),
    ],
)
def test_all_groups_of_one_image_in_double_precision(budget: sp.Budget, early_stop: bool) -> None:
    weight, x, _ = linear.problem(dataclasses.replace(budget, k=1), size=4)
    weight, x = weight.double(), x[:1].double()
    all_of_it = torch.maximum(weight * (1 - x), -weight * x)
    cover = budget.resolve((3, 4, 4)).expand(torch.ones(1, *budget.resolve((3, 4, 4)).grid))
    score, gain = float((x * weight).sum()), float((all_of_it * cover).sum())
    model, y = Linear(weight, -score - 0.8 * gain), torch.tensor([0])
    result = sp.SparseAnneal(budget, 130, early_stop=early_stop)(model, x, y)
    assert result.x_adv.dtype == torch.float64
    assert bool(result.fooled)
    never = sp.SparseAnneal(budget, 30, early_stop=early_stop)(Linear(weight, -score - gain - 0.01), x, y)
    assert not bool(never.fooled)


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [
        ((20,), sp.Features()),
        ((20,), sp.Groups([[i, i + 1] for i in range(0, 20, 2)])),
        ((20,), sp.Groups.windows(20, 3)),
        ((2, 10), sp.Features()),
        ((2, 10), sp.Groups.windows(10, 3)),
        ((4, 5), sp.Groups.sensors(4, 5)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("early_stop", [True, False])
def test_signals_and_tables_keep_their_shape_and_the_budget(
    shape: tuple[int, ...], pattern: sp.Pattern, early_stop: bool
) -> None:
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(3, 20, generator=generator))
    x = torch.rand(5, *shape, generator=generator)
    y = labelled(model, x)
    result = sp.SparseAnneal(sp.Budget(k=2, pattern=pattern), 40, early_stop=early_stop)(model, x, y)
    assert result.x_adv.shape == x.shape
    assert bool(result.fooled.any())
    assert torch.equal(result.fooled, model(result.x_adv).argmax(1) != y)
    assert bool((result.groups <= 2).all())
    assert bool(((result.x_adv >= 0) & (result.x_adv <= 1)).all())


class Misleading(torch.autograd.Function):
    """The image itself, with a gradient of the wrong sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features()], ids=repr)
def test_local_search_fools_a_model_whose_gradients_mislead(pattern: sp.Pattern, monkeypatch: Any) -> None:
    net, x = SmallConvNet().eval(), images(8)
    y = labelled(net, x)

    def model(z: Tensor) -> Tensor:
        answer: Tensor = net(Misleading.apply(z))
        return answer

    attack = sp.SparseAnneal(sp.Budget(k=12, pattern=pattern), 1600)
    with_it = attack(model, x, y)
    monkeypatch.setattr(anneal, "ANNEALED", dataclasses.replace(anneal.ANNEALED, local=0.0))
    without = attack(model, x, y)
    assert int(with_it.fooled.sum()) > int(without.fooled.sum())


def test_the_first_twenty_cycles_ascend_and_many_of_the_others_search_locally() -> None:
    varied: list[bool] = []

    class Watched(sp.SparseAnneal):
        def aim(self, state: Any) -> loop.Aim:
            varied.append(bool(state.cycle.local.any()))
            return super().aim(state)

    net, x = SmallConvNet().eval(), images(4)
    Watched(sp.Budget(k=1, eps=0.01), 370)(net, x, labelled(net, x))
    assert not any(varied[:220])
    assert sum(varied[220:]) / len(varied[220:]) > 0.3


def test_a_step_on_a_gpu_takes_few_operations_besides_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Including the beginning of a cycle and the local search, which a GPU computes for all images in each step. All
    operations take about equally long, however small."""
    operations.as_on_a_gpu(monkeypatch)
    net, x, attack = SmallConvNet().eval(), images(3), sp.SparseAnneal(sp.Budget(k=2), 300)
    threat, y = attack.budget.resolve((3, 12, 12)), labelled(net, x)
    with borrowed(net, x.device):
        oracle = Oracle(net, sp.Untargeted(), attack.loss)
        waiting = queue(threat, oracle, x, y, oracle.answers(x, 3), None)
        here = loop.Images.entering(waiting, threat, quantize=False)
        step = loop.Step(attack, oracle, threat, Noise(0), attack.keeps)
        slots = loop.start(attack, threat, here, Noise(0))
        of_model = operations.counted(lambda: oracle.evaluate(x, y, y, gradient=True))
        assert operations.counted(lambda: step(slots)) - of_model <= 140
