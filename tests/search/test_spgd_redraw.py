"""When Sparse-PGD draws a mask afresh, and how it goes on from there: the two rules, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.spgd import State
from support.models import SmallConvNet, images, labelled

SHAPE = (1, 1, 4)  # four pixels in a row, of which one may change
STAY, FIRST, SECOND, BACK = (torch.tensor(g) for g in ([0.0, 0, 0, 0], [1.0, 0, 0, 0], [0.0, 1, 0, 0], [0.0, -1, 0, 0]))


def followed(redraw: Any, *scripts: list[Tensor]) -> list[State]:
    """All states of images that are given these gradients, one list for each image; tolerance 3.

    p = 0.5 and w = (0.2, 0, -9, -9) at the start. A gradient along one axis moves w by exactly
    beta * sqrt(4) = 0.5 along it: the second pixel takes over at 0.5 and hands back at 0.
    """
    attack = sp.SparsePGD(sp.Budget(k=1), beta=0.25, alpha=1e-6, tolerance=3, redraw=redraw)
    threat = attack.budget.resolve(SHAPE)
    count = len(scripts)
    zero = torch.zeros(count, dtype=torch.int64)
    x = torch.zeros(count, *SHAPE)
    rows = Images(x, zero, zero, torch.zeros(count), torch.arange(count), torch.arange(count), None, x, x + 1)
    w = torch.tensor([0.2, 0, -9, -9]).expand(count, *SHAPE)
    states = [State(torch.full_like(x, 0.5), w, threat.top_k(w.sigmoid(), None), zero)]
    for step, gradients in enumerate(zip(*scripts, strict=True)):
        seen = Evaluation(torch.zeros(count), zero.bool(), torch.stack(gradients).view(count, *SHAPE))
        states.append(attack.update(threat, rows, states[-1], seen, zero + step, Noise(0)))
    return states


def drawn(image: int, step: int) -> Tensor:
    return Noise(0).normal(Stream.MASK, torch.tensor([image]), torch.tensor([step + 1]), SHAPE).flatten()


CHANGES_BACK = [SECOND, SECOND, BACK, BACK, STAY, SECOND, SECOND, STAY]


@pytest.mark.parametrize(
    ("redraw", "changing"),
    [  # w[1]: 0.5 (changed), 1, 0.5, 0 (changed), 0, then
        ("official", [0, 1, 2, 2, 3, 0]),  # a redraw
        ("paper", [0, 1, 2, 0, 1, 0, 1, 2]),  # 0.5 (changed), 1, 1
    ],
)
def test_a_change_of_the_mask_sets_the_counter_back_by_the_rule_of_the_paper_alone(
    redraw: Any, changing: list[int]
) -> None:
    states = followed(redraw, CHANGES_BACK, [STAY] * 8)
    assert [int(state.n[0]) for state in states[1:]][: len(changing)] == changing
    assert [int(state.n[1]) for state in states[1:]] == [1, 2, 3, 0, 1, 2, 3, 0]  # whatever the other image does


@pytest.mark.parametrize("redraw", ["official", "paper"])
def test_a_new_mask_is_moved_by_the_old_gradient_or_evaluated_as_it_was_drawn(redraw: Any) -> None:
    """Three evaluations find the mask unchanged; the gradient of the fourth, FIRST, is that of the old mask."""
    states = followed(redraw, [STAY, STAY, STAY, FIRST, SECOND], [STAY, STAY, SECOND, FIRST, FIRST])
    step = torch.tensor([0.5, 0, 0, 0]) if redraw == "official" else torch.zeros(4)
    torch.testing.assert_close(states[4].w[0].flatten(), drawn(0, 3) + step)
    assert int(states[4].v[0].flatten().argmax()) == int(states[4].w[0].argmax())
    own = states[4].w[0].flatten() + torch.tensor([0, 0.5, 0, 0])  # from here on both go by the new mask's gradient
    torch.testing.assert_close(states[5].w[0].flatten(), own)
    assert torch.equal(states[4].p[0] > states[3].p[0], FIRST.view(SHAPE) > 0)  # the magnitudes take every step
    torch.testing.assert_close(states[4].w[1].flatten(), torch.tensor([0.7, 0.5, -9, -9]))  # no redraw: not stuck


def test_the_rules_are_the_same_while_there_is_nothing_to_set_back_or_to_draw() -> None:
    script = [SECOND, SECOND, SECOND, STAY]
    official, paper = (followed(redraw, script) for redraw in ("official", "paper"))
    for a, b in zip(official, paper, strict=True):
        assert torch.equal(a.w, b.w)
        assert torch.equal(a.v, b.v)
        assert torch.equal(a.n, b.n)


def test_the_rule_is_chosen_by_name_and_is_no_part_of_the_name_of_the_attack() -> None:
    default, paper = sp.SparsePGD(sp.Budget(k=3)), sp.SparsePGD(sp.Budget(k=3), redraw="paper")
    assert (default.redraw, default.name) == (None, paper.name)  # so that the record of an older run is the same
    with pytest.raises(UnsupportedError, match="redraw='never'; use one of 'official', 'paper'"):
        sp.SparsePGD(sp.Budget(k=3), redraw="never")  # type: ignore[arg-type]


def test_the_rule_reaches_the_search_and_the_result_is_the_same_in_every_batch() -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(6, dtype=torch.float64)
    y = labelled(model, x)
    official, paper = (
        sp.SparsePGD(sp.Budget(k=2), 25, redraw=redraw, early_stop=False) for redraw in ("official", "paper")
    )
    whole = paper(model, x, y, seed=3)
    torch.testing.assert_close(paper(model, x, y, seed=3, batch_size=2).x_adv, whole.x_adv, rtol=0, atol=1e-9)
    assert not torch.equal(whole.x_adv, official(model, x, y, seed=3).x_adv)
