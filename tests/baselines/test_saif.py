"""SAIF: both forms by their names, the Frank-Wolfe steps beside the paper, the trap of the binary one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import SAIF
from sparsepgd.baselines.saif import State
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Threat
from support.linear import problem, reached, with_slack
from support.models import SmallConvNet, images, labelled

BUDGETS = [sp.Budget(k=1), sp.Budget(k=4), sp.Budget(k=3, pattern=sp.Features()), sp.Budget(k=3, eps=0.1)]


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_published_form_finds_the_best_groups_of_a_linear_model(budget: sp.Budget) -> None:
    weight, x, best = problem(budget)
    attack = SAIF(budget, steps=20, targets=0, early_stop=False, loss="margin")
    torch.testing.assert_close(reached(attack, weight, x), best, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_binary_form_comes_to_the_best_magnitudes_on_the_mask_it_is_trapped_in(budget: sp.Budget) -> None:
    """Its mask is settled after a few steps; within it the magnitudes are the best ones."""
    weight, x, best = problem(budget)
    attack = SAIF(budget, steps=100, form="binary", targets=0, early_stop=False, loss="margin")
    found = reached(attack, weight, x)
    assert bool((found > 0).all())
    assert bool((found <= best * (1 + 1e-5)).all())


def test_fools_a_linear_model_if_and_only_if_the_budget_suffices() -> None:
    budget = sp.Budget(k=3)
    weight, x, best = problem(budget)
    for i in range(4):
        for slack, expected in ((1e-2, True), (-1e-2, False)):
            model = with_slack(weight, x[i : i + 1], best[i], slack)
            assert bool(SAIF(budget, 20, targets=1)(model, x[i : i + 1], torch.tensor([0])).fooled) is expected


def rows() -> tuple[Threat, Images]:
    threat = sp.Budget(k=3).resolve((3, 6, 6))
    x, y = images(2, size=6), torch.zeros(2, dtype=torch.int64)
    low, high = threat.box(x, None, quantize=False)
    return threat, Images(x, y, y, torch.zeros(2), torch.arange(2), torch.arange(2), None, low, high)


def seen(loss: float, g: Tensor) -> Evaluation:
    return Evaluation(torch.full((2,), loss), torch.zeros(2, dtype=torch.bool), g)


G = torch.randn(3, 2, 3, 6, 6, generator=torch.Generator().manual_seed(4))


def after(losses: list[float], form: Any = "published") -> tuple[State, Images, Threat]:
    """The state after updates with these losses and the gradients G."""
    threat, some = rows()
    attack = SAIF(sp.Budget(k=3), form=form)
    state = attack.start(threat, some, Noise(0))
    for step, loss in enumerate(losses):
        state = attack.update(threat, some, state, seen(loss, G[step]), step)
    return state, some, threat


def test_published_form_starts_at_the_sign_of_the_gradient_and_its_k_largest_groups() -> None:
    state, some, threat = after([0.0])
    p = G[0].sign().clamp(-some.x, 1 - some.x)
    torch.testing.assert_close(state.p, p)
    gain = (G[0] * p).sum(1, keepdim=True)
    torch.testing.assert_close(state.s, threat.top_k(gain, None))


def test_published_step_is_half_then_halved_again_after_a_loss_that_falls() -> None:
    start, some, threat = after([0.0])
    taken, _, _ = after([0.0, 1.0])
    g_s = (G[1] * start.p).sum(1, keepdim=True)
    z = threat.top_k(g_s.clamp(min=0), None) * (g_s > 0)
    torch.testing.assert_close(taken.s, start.s + 0.5 * (z - start.s))
    v = (G[1] * start.s).sign().clamp(-some.x, 1 - some.x)
    torch.testing.assert_close(taken.p, start.p + 0.5 * (v - start.p))
    again, _, _ = after([0.0, 1.0, 0.5])  # the trial was worse: half of the step, from the same place
    torch.testing.assert_close(again.s, start.s + 0.25 * (z - start.s))
    further, _, _ = after([0.0, 1.0, 1.5])  # it was better: on from there
    assert torch.equal(further.p_0, taken.p)
    assert float(taken.s.flatten(1).sum(1).max()) <= 3 + 1e-5


def test_published_verdict_is_on_the_k_largest_entries_of_the_mask_with_whole_magnitudes() -> None:
    state, some, threat = after([0.0, 1.0, 1.5])
    attack = SAIF(sp.Budget(k=3))
    changed = attack.project(threat, some, state) != some.x
    dense = attack.point(threat, some, state) != some.x
    assert bool((changed.any(1).flatten(1).sum(1) <= 3).all())
    assert bool((dense.any(1).flatten(1).sum(1) > 3).any())


def test_binary_mask_never_changes_once_the_step_is_below_one_half() -> None:
    masks: list[Tensor] = []
    x0 = images(1)

    class Watched(SmallConvNet):
        def forward(self, x: Tensor) -> Tensor:
            masks.append((x.detach() != x0).any(1))
            return super().forward(x)

    model = Watched()
    y = labelled(model, x0)
    masks.clear()
    SAIF(sp.Budget(k=4), 20, form="binary", targets=0, early_stop=False)(model, x0, y)
    tried = masks[1:21]
    late = torch.stack(tried[6:])
    assert bool((late <= tried[5]).all())  # magnitudes may vanish, no pixel comes in
    assert not torch.equal(tried[0], tried[1])


def test_both_forms_go_by_their_names_and_the_defaults_are_the_papers() -> None:
    published, binary = SAIF(sp.Budget(k=20)), SAIF(sp.Budget(k=20), form="binary")
    assert (published.name, binary.name) == ("saif-published", "saif-binary")
    assert (published.steps, published.targets, published.restarts) == (300, 9, 1)
    assert (published.evaluations, binary.evaluations) == (6000, 3000)
    with pytest.raises(UnsupportedError, match="form='authors'; use one of 'published', 'binary'"):
        SAIF(sp.Budget(k=20), form="authors")  # type: ignore[arg-type]
