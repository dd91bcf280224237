"""SparseAnneal in training: its budget, what is kept from epoch to epoch, and how that moves with the augmentation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

import sparsepgd as sp
from sparsepgd.errors import SparsePGDError, UnsupportedError
from sparsepgd.threat.norms import group_l0
from sparsepgd.training.adversaries import SparseAdversary, adversary, entered
from sparsepgd.training.annealing import Changes, covering
from sparsepgd.training.data import Batch, augmented, border, resident, window
from sparsepgd.training.loop import watch
from sparsepgd.training.settings import make_settings
from sparsepgd.training.team import Team
from support.models import NoLook, SmallConvNet, images, labelled
from support.quadrants import QUICK, network, quadrants

SHAPE = (3, 12, 12)


def batch(count: int = 24, **more: Any) -> tuple[SmallConvNet, Batch]:
    model, x = SmallConvNet(), images(count)
    return model, Batch(torch.arange(count), x, labelled(model, x), **more)


@pytest.mark.parametrize("steps", [1, 2, 5, 10])
@pytest.mark.parametrize(
    "budget",
    [
        sp.Budget(k=2),
        sp.Budget(k=2, pattern=sp.Features()),
        sp.Budget(k=1, pattern=sp.Rows(), eps=0.1),
        sp.Budget(k=1, pattern=sp.Patches(3)),
    ],
    ids=repr,
)
def test_an_image_gets_one_to_several_times_the_groups_and_the_loss_rises(budget: sp.Budget, steps: int) -> None:
    model, given = batch()
    x_adv = adversary(make_settings("anneal-at", budget, {"steps": steps}), SHAPE)(model, given, 0)
    groups = group_l0(x_adv - given.x, budget.pattern)
    assert set(groups.tolist()) <= set(range(1, 3 * budget.k + 1))
    if not isinstance(budget.pattern, sp.Patches):  # those may lie on each other
        assert set(groups.tolist()) >= {budget.k, 3 * budget.k}
    assert 0 <= float(x_adv.min()) <= float(x_adv.max()) <= 1
    assert float((x_adv - given.x).abs().max()) <= budget.eps + 1e-6
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        assert loss(model.eval()(x_adv), given.y) > loss(model(given.x), given.y)


def test_more_steps_late_in_training() -> None:
    made: Any = adversary(make_settings("anneal-at", sp.Budget(k=1), {"steps": 2, "steps_last": 6}), SHAPE)
    assert [made.steps(done) for done in (0.0, 0.25, 0.5, 1.0)] == [2, 3, 4, 6]


def test_a_share_of_the_batches_is_attacked_by_spgd_with_the_groups_of_the_paper() -> None:
    made: Any = adversary(make_settings("anneal-at", sp.Budget(k=2), {"mixed": 0.3}), SHAPE)
    attacks = [made.attack(i) for i in range(300)]
    spgd = [attack for attack in attacks if isinstance(attack, sp.SparsePGD)]
    assert 60 <= len(spgd) <= 120
    assert {attack.budget.k for attack in spgd} == {12}


def test_the_adversary_goes_on_from_what_was_kept() -> None:
    kept = torch.zeros(24, *SHAPE)
    kept[:, :, 3, 4] = 0.9
    model, given = batch(kept=kept)
    with torch.no_grad():  # nothing to climb: the change stays where it was
        for parameter in model.parameters():
            parameter.zero_()
    x_adv = adversary(make_settings("anneal-at", sp.Budget(k=1), {"steps": 4}), SHAPE)(model, given, 0)
    changed = (x_adv != given.x).any(1)
    assert set(map(tuple, changed.nonzero()[:, 1:].tolist())) == {(3, 4)}
    assert 12 <= int(changed.flatten(1).any(1).sum()) <= 23  # some begin again at the clean image


@pytest.mark.parametrize("how", ["crop+flip", "crop", "none"])
def test_kept_changes_move_with_the_augmentation(how: Any) -> None:
    """A change that is kept is at the same thing of the picture in every later crop."""
    x = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    given, edge = Batch(torch.arange(16), x, torch.zeros(16, dtype=torch.int64)), border(x.shape, how)
    changes = Changes(16, 5, (3, 16, 16), edge, x.device)
    first = window(given, how, seed=1)
    crop = torch.zeros(16, 3, 16, 16)
    crop[:, :, 8, 6], crop[:, 0, 9, 9] = 0.5, -0.25
    changes.put(given.rows, first.back(crop))
    assert torch.equal(first.of(changes.of(given.rows)), crop)
    again = window(given, how, seed=2)
    assert torch.equal(augmented(given, how, 2), again.of(pad(x, (edge,) * 4)))
    marked = Batch(given.rows, (first.back(crop) != 0).float()[:, :, edge : 16 + edge, edge : 16 + edge], given.y)
    assert torch.equal(augmented(marked, how, 2) > 0, again.of(changes.of(given.rows)) != 0)


def test_the_strong_attack_watches() -> None:
    data = quadrants()
    wanted = make_settings("anneal-trades", sp.Budget(k=1), {**QUICK})
    made = watch(wanted, resident(*data, torch.device("cpu")), 16, Team())
    assert [attack.name for attack in made.attacks] == ["spgd-unprojected", "anneal"]


@pytest.mark.parametrize(("name", "value"), [("keep", True), ("mixed", 0.5), ("searched", 0.5)])
def test_what_only_sparse_anneal_has_is_refused_elsewhere(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} with 'sat'; only anneal-at and anneal-trades support it"):
        make_settings("sat", sp.Budget(k=1), {name: value})


@pytest.mark.parametrize("pattern", [sp.Patches(3), sp.Patches(2, 3)], ids=repr)
def test_kept_patches_stay_where_they_are_and_rise_from_what_they_hold(pattern: sp.Patches) -> None:
    kept = torch.zeros(24, *SHAPE)
    kept[:, :, 4 : 4 + pattern.height, 6 : 6 + pattern.width] = 0.3
    model, given = batch(kept=kept)
    model.eval()
    made = adversary(make_settings("anneal-at", sp.Budget(k=1, pattern=pattern), {"steps": 4, "multi_eps": 1}), SHAPE)
    changed = (made(model, given, 0) != given.x).any(1)
    inside = torch.zeros(12, 12, dtype=torch.bool)
    inside[4 : 4 + pattern.height, 6 : 6 + pattern.width] = True
    there = ~(changed & ~inside).flatten(1).any(1)
    assert 12 <= int(there.sum()) <= 23  # the others begin again, elsewhere
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        x, y = given.x[there], given.y[there]
        before = loss(model((x + kept[there]).clamp(0, 1)), y)
        assert loss(model(made(model, given, 0)[there]), y) > before


def test_a_kept_change_is_covered_by_its_groups_also_where_the_crop_cuts_it() -> None:
    budget = sp.Budget(k=3, pattern=sp.Patches(3))
    delta = torch.zeros(3, *SHAPE)
    delta[0, :, 2:5, 2:5], delta[0, :, 7:10, 1:4] = 0.5, -0.2  # two patches
    delta[1, :, 0:2, 10:12] = 0.1  # the rest of one that lies beyond the corner
    x = torch.full((3, *SHAPE), 0.5)
    threat, entering = entered(sp.SparseAnneal(budget), x, torch.zeros(3, dtype=torch.int64), torch.arange(3))
    v = covering(threat, entering, delta, torch.tensor([3, 1, 2]))
    assert v.flatten(1).sum(1).tolist() == [2, 1, 0]
    assert bool(((threat.expand(v) > 0) | (delta == 0)).all())
    assert covering(threat, entering, delta, torch.tensor([1, 1, 1]))[0, 0, 2, 2] == 1  # the larger of two comes first


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Rows(), sp.Patches(3)], ids=repr)
def test_going_on_from_what_was_kept_never_looks_at_the_device(pattern: sp.Pattern) -> None:
    model, given = batch(kept=torch.zeros(24, *SHAPE))
    made = adversary(make_settings("anneal-at", sp.Budget(k=1, pattern=pattern), {"steps": 2}), SHAPE)
    with NoLook():  # which refuses whatever waits for the device
        x_adv = made(model, given, 0)
    assert not torch.equal(x_adv, given.x)


OTHERS = (sp.Budget(k=1, pattern=sp.Rows()), sp.Budget(k=1, pattern=sp.Patches(3)))


def test_every_budget_has_its_turn_and_the_same_one_again() -> None:
    wanted = make_settings("anneal-trades", sp.Budget(k=2), {"others": OTHERS, "multi_eps": 3, "multi_eps_others": 1})
    made: Any = adversary(wanted, SHAPE)
    drawn = Counter((a.budget.pattern, a.budget.k) for a in map(made.attack, range(300)))
    assert set(drawn) == {(sp.Pixels(), 6), (sp.Rows(), 1), (sp.Patches(3), 1)}
    assert min(drawn.values()) > 70
    again: Any = adversary(wanted, SHAPE)
    assert [again.attack(i).budget.pattern for i in range(50)] == [made.attack(i).budget.pattern for i in range(50)]


def test_a_batch_keeps_to_the_budget_of_its_turn() -> None:
    model, given = batch()
    wanted = make_settings("anneal-at", sp.Budget(k=2), {"others": OTHERS, "steps": 2, "multi_eps_others": 2})
    made, seen = adversary(wanted, SHAPE), set()
    for iteration in range(8):
        tested = wanted.attacked[wanted.turn(iteration)]
        groups = group_l0(made(model, given, iteration) - given.x, tested.pattern)
        assert int(groups.min()) >= 1
        assert int(groups.max()) <= wanted.multiple(wanted.turn(iteration)) * tested.k
        seen.add(tested.pattern)
    assert len(seen) == 3


def test_sizes_of_patches_and_other_budgets_go_together() -> None:
    options = {"multi_size": (2, 4), "others": (sp.Budget(k=3),), "multi_eps": 2, "multi_eps_others": 5}
    made: Any = adversary(make_settings("anneal-at", sp.Budget(k=1, pattern=sp.Patches(3)), options), SHAPE)
    drawn = {(a.budget.pattern, a.budget.k) for a in map(made.attack, range(60))}
    assert drawn == {(sp.Patches(2), 2), (sp.Patches(4), 2), (sp.Pixels(), 15)}


def test_kept_changes_are_those_of_the_budget_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an image keeps lies within the budget it was made for: one patch, or one row, or one pixel."""
    budget, others = sp.Budget(k=1, pattern=sp.Patches(3)), (sp.Budget(k=1, pattern=sp.Rows()), sp.Budget(k=1))
    options = {"batch": 16, "steps": 2, "multi_eps": 1, "watch_steps": 0, "augment": "none", "keep": True}
    seen = []

    def spy(self: SparseAdversary, model: Any, given: Batch, iteration: int, done: float = 0.0) -> Any:
        assert given.kept is not None
        tested = self.settings.attacked[self.settings.turn(iteration)]
        found = group_l0(given.kept, tested.pattern)
        assert int(found.max()) <= 1
        seen.append((tested.pattern, bool(found.any())))
        return called(self, model, given, iteration, done)

    called = SparseAdversary.__call__
    monkeypatch.setattr(SparseAdversary, "__call__", spy)
    sp.train(network(), quadrants(96), "anneal-at", budget, epochs=5, others=others, **options)
    assert {pattern for pattern, kept in seen if kept} == {sp.Pixels(), sp.Rows(), sp.Patches(3)}


def test_watched_and_measured_is_every_budget() -> None:
    budgets = (sp.Budget(k=1), *OTHERS)
    wanted = make_settings("anneal-trades", budgets[0], {**QUICK, "others": OTHERS})
    made = watch(wanted, resident(*quadrants(), torch.device("cpu")), 16, Team())
    assert [(a.name, a.budget) for a in made.attacks] == [
        (name, budget) for budget in budgets for name in ("spgd-unprojected", "anneal")
    ]
    trained = sp.train(
        network(), quadrants(), "anneal-at", budgets[0], epochs=1, others=OTHERS, test=quadrants(8, seed=1),
        batch=16, steps=2, watch_steps=0,
    )  # fmt: skip
    assert trained.figures is not None
    kinds = [(one.attack, one.k, (one.pattern or {})["kind"]) for one in trained.figures.robust]
    patterns = ("Pixels", "Rows", "Patches")
    assert kinds == [(attack, 1, pattern) for pattern in patterns for attack in ("saa+", "saa")]


def test_other_budgets_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"others\.0='1 row'; expected a Budget"):
        make_settings("anneal-at", sp.Budget(k=1), {"others": "1 row"})
    with pytest.raises(UnsupportedError, match="others with 'linf', which is not sparse; use "):
        make_settings("linf", sp.Budget(k=1), {"others": OTHERS})
    with pytest.raises(UnsupportedError, match="multi_eps_others=2 without others; omit it"):
        make_settings("anneal-at", sp.Budget(k=1), {"multi_eps_others": 2})
    with pytest.raises(UnsupportedError, match=r"'loap-at' with Budget\(k=3, Pixels\(\)\); LOAP places patches"):
        make_settings("loap-at", OTHERS[1], {"others": sp.Budget(k=3)})
    rows, patch = sp.Budget(k=9, pattern=sp.Rows()), sp.Budget(k=1, pattern=sp.Patches(9))
    messages = {rows: "k=9 rows, but a 8x8 image has 8; use k <= 8", patch: "a pattern of 9x9 does not fit an image of"}
    for large, message in messages.items():
        with pytest.raises(SparsePGDError, match=message):
            sp.train(network(), quadrants(), "anneal-at", sp.Budget(k=1), epochs=1, others=large, **QUICK)
