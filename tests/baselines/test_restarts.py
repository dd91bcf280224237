"""Restarts and targets: each attempt on the survivors, with draws of its own; the work adds up."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.baselines import PGD0
from sparsepgd.baselines.restarts import Repeated
from sparsepgd.errors import UnsupportedError
from sparsepgd.search.attack import SearchResult, Task
from sparsepgd.search.noise import Noise, Stream
from support.models import Dial, SmallConvNet, images, labelled

BUDGET = sp.Budget(k=2)


def single(steps: int = 3) -> PGD0:
    return PGD0(BUDGET, steps, restarts=1, targets=0)


def test_every_further_attempt_fools_at_least_as_many_and_only_survivors_pay() -> None:
    model, x = SmallConvNet(), images(24)
    y = labelled(model, x)
    one = single()(model, x, y)
    more = dataclasses.replace(single(), restarts=4, targets=2)(model, x, y)
    assert bool((more.fooled | ~one.fooled).all())
    assert int(more.fooled.sum()) > int(one.fooled.sum())
    assert torch.equal(more.forwards[one.fooled], one.forwards[one.fooled])
    assert torch.equal(more.x_adv[one.fooled], one.x_adv[one.fooled])
    assert set(more.forwards[~more.fooled].tolist()) == {12 * 4}  # 4 x (1 + 2) attempts of 4 points
    assert set(more.broken_by) == {"pgd0", None}


def test_targets_are_the_likeliest_wrong_classes_and_every_wrong_answer_counts() -> None:
    model, x = SmallConvNet().eval(), images(24)
    y = labelled(model, x)
    result = PGD0(BUDGET, 5, restarts=1, targets=3)(model, x, y)
    first = single(5)(model, x, y)
    rows = (~first.fooled).nonzero()[:, 0]
    with torch.no_grad():
        target = model(x).scatter(1, y[:, None], -torch.inf).topk(3).indices
    for rank in range(3):
        if len(rows):
            seed = Noise(0).again(rank + 1).seed
            goal = sp.Targeted(target[rows, rank], accept="any")
            part = single(5)(model, x[rows], y[rows], seed=seed, index=rows, goal=goal)
            assert torch.equal(result.x_adv[rows[part.fooled]], part.x_adv[part.fooled])
            rows = rows[~part.fooled]
    assert torch.equal((~result.fooled).nonzero()[:, 0], rows)


def test_a_failure_keeps_the_point_with_the_largest_loss_of_all_attempts() -> None:
    model, x = SmallConvNet(), images(24)
    y = labelled(model, x)
    one = single(1)(model, x, y)
    more = dataclasses.replace(single(1), restarts=5)(model, x, y)
    both = ~one.fooled & ~more.fooled
    assert bool(both.any())
    assert bool((more.loss >= one.loss - 1e-6)[both].all())
    assert bool((more.loss > one.loss + 1e-4)[both].any())


def test_a_goal_of_the_callers_is_kept_in_every_attempt() -> None:
    model, x = SmallConvNet().eval(), images(12)
    y = labelled(model, x)
    target = (y + 1) % 5
    attack = PGD0(sp.Budget(k=30), 10, restarts=3, targets=4)
    result = attack(model, x, y, goal=sp.Targeted(target))
    with torch.no_grad():
        assert torch.equal(result.fooled, model(result.x_adv).argmax(1) == target)
    assert set(result.forwards[~result.fooled].tolist()) <= {33}  # restarts alone, no targets of its own
    assert bool(result.fooled.any())


def test_without_early_stop_every_attempt_sees_every_image() -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    result = PGD0(sp.Budget(k=30), 3, restarts=3, targets=1, early_stop=False)(model, x, y)
    assert result.forwards.tolist() == [6 * 4] * 6


@dataclass(frozen=True, eq=False)
class Once(sp.Attack):
    """Turns the dial of `conftest.Dial` once, each attempt as it is told."""

    tenths: tuple[int, ...] = ()
    name = "turning"
    evaluations = 1

    def search(self, task: Task) -> SearchResult:
        attempt = [task.noise.again(-i).seed for i in range(len(self.tenths))].index(0)
        x, one = task.waiting.x.clone(), torch.ones_like(task.waiting.y)
        x[:, 0, 0, 0] = 0.1 * self.tenths[attempt]
        return SearchResult(x, task.waiting.clean_loss, one.bool(), one, one, one)

    def perturb_batch(self, *args: Any) -> Tensor:
        raise AssertionError


@dataclass(frozen=True, eq=False)
class Turning(Repeated, Once):
    pass


@pytest.mark.parametrize(
    ("tenths", "kept"), [((1, 2), 1), ((2, 1), 1), ((1, 3), 3), ((3, 1), 3), ((1, 2, 3, 2), 3), ((0, 2), 2)]
)
def test_a_failing_attempt_never_takes_the_place_of_a_success(tenths: tuple[int, ...], kept: int) -> None:
    """Also if its loss is larger; among equals the larger loss wins."""
    attack = Turning(sp.Budget(k=1), tenths=tenths, restarts=len(tenths), early_stop=False)
    result = attack(Dial(), torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64))
    assert (10 * result.x_adv[:, 0, 0, 0]).round().tolist() == [kept, kept]
    assert result.fooled.tolist() == [kept != 2] * 2
    assert result.forwards.tolist() == [len(tenths)] * 2


@pytest.mark.parametrize("options", [{"restarts": 0}, {"restarts": 1.5}, {"targets": -1}, {"targets": 2.5}], ids=str)
def test_restarts_and_targets_are_counts(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=f"{next(iter(options))}="):
        PGD0(BUDGET, 3, **options)


def test_attempts_draw_independent_numbers_and_the_first_those_of_the_call() -> None:
    index = torch.arange(3)

    def draws(seed: int, attempt: int) -> Tensor:
        noise = Noise(seed).again(attempt)
        return torch.stack([noise.uniform(stream, index, 0, (50,)) for stream in Stream])

    assert torch.equal(draws(7, 0), torch.stack([Noise(7).uniform(stream, index, 0, (50,)) for stream in Stream]))
    every = torch.cat([draws(seed, attempt).flatten() for seed in range(4) for attempt in range(4)])
    assert len(every.unique()) > 0.999 * len(every)  # 23 bits: a few may meet by chance


def test_progress_goes_up_to_the_end_over_all_attempts() -> None:
    model, x = SmallConvNet(), images(5)
    y = labelled(model, x)
    told: list[tuple[int, int, int]] = []
    attack = PGD0(BUDGET, 3, restarts=2, targets=1)
    result = attack(model, x, y, progress=lambda *now: told.append(now))
    done = [one[0] for one in told]
    assert done == sorted(done)
    assert {one[1] for one in told} == {attack.evaluations * 5}
    assert told[-1][2] == int(result.fooled.sum())
