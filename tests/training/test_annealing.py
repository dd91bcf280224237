"""SparseAnneal in training: its budget, what is kept from epoch to epoch, and how that moves with the augmentation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import pad

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.threat.norms import group_l0
from sparsepgd.training.adversaries import adversary
from sparsepgd.training.annealing import Changes
from sparsepgd.training.data import Batch, augmented, border, window
from sparsepgd.training.loop import watch
from sparsepgd.training.settings import make_settings
from sparsepgd.training.team import Team
from support.models import SmallConvNet, images, labelled
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
    from sparsepgd.training.data import resident

    made = watch(wanted, resident(*data, torch.device("cpu")), 16, Team())
    assert [attack.name for attack in made.attacks] == ["spgd-unprojected", "anneal"]


@pytest.mark.parametrize(("name", "value"), [("keep", True), ("mixed", 0.5)])
def test_what_only_sparse_anneal_has_is_refused_elsewhere(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} with 'sat'; only anneal-at and anneal-trades support it"):
        make_settings("sat", sp.Budget(k=1), {name: value})


def test_changes_of_groups_that_overlap_are_not_kept() -> None:
    with pytest.raises(UnsupportedError, match=r"keep=True with .*Patches"):
        sp.train(network(), quadrants(), "anneal-at", sp.Budget(k=1, pattern=sp.Patches(2)), epochs=1, keep=True)
