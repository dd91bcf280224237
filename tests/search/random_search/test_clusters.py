"""Random changes of points that lie together: never more points than allowed, squares of one colour, colours that are
taken over."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search import clusters
from sparsepgd.search.random_search.clusters import Change, longest_side, numbers, varied
from support.models import images

BUDGET = sp.Budget(k=20)


def setting(budget: sp.Budget, count: int = 6, x: Tensor | None = None) -> tuple[Images, Change]:
    """Clean images, as the loop hands them over, and no change yet."""
    x = images(count) if x is None else x
    threat = budget.resolve((3, 12, 12))
    allowed, usable = threat.masks(count) or (None, None)
    y, (low, high) = torch.arange(count), threat.box(x, allowed, quantize=False)
    here = Images(x, y, y, torch.zeros(count), y, y, usable, low, high)
    return here, Change(torch.zeros(count, *threat.grid, dtype=torch.bool), torch.zeros_like(x))


def after(budget: sp.Budget, here: Images, kept: Change, step: int, side: int, k: Tensor | None = None) -> Change:
    sizes = numbers(here, kept.mask)
    draws = torch.split(Noise(3).uniform(Stream.VARIATION, here.index, step, (sum(sizes),)), list(sizes), 1)
    sides = torch.full_like(here.y, side)
    return varied(budget, here, kept, draws, sides, sides == 1, k)


@pytest.mark.parametrize("budget", [BUDGET, sp.Budget(k=30, pattern=sp.Features()), sp.Budget(k=4, eps=0.1)], ids=repr)
def test_an_image_never_has_more_points_than_it_may_and_stays_in_its_box(budget: sp.Budget) -> None:
    here, kept = setting(budget)
    k = torch.arange(budget.k - 5, budget.k + 1).clamp(min=1)
    side = int(longest_side(k).min())
    for step in range(60):
        kept = after(budget, here, kept, step, side if step % 2 else 1, k)
        assert bool((kept.mask.flatten(1).sum(1) <= k).all())
        assert not bool((kept.value * ~kept.mask).any())
        assert bool((here.x + kept.value >= here.low - 1e-6).all())
        assert bool((here.x + kept.value <= here.high + 1e-6).all())
    assert kept.mask.flatten(1).sum(1).tolist() == k.tolist()


def test_a_square_has_one_colour_as_far_as_the_box_allows() -> None:
    here, kept = setting(BUDGET)
    new = after(BUDGET, here, kept, 0, 2)
    for mask, value, x in zip(new.mask[:, 0], new.value, here.x, strict=True):
        inside = value[:, mask]  # (C, points)
        free = ((x + value)[:, mask] > 0) & ((x + value)[:, mask] < 1)
        assert mask.sum() in (1, 2, 4)  # cut at the border
        for channel, open_ in zip(inside, free, strict=True):
            assert len(set(channel[open_].tolist())) <= 1


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_new_colour_changes_black_and_white_points_too(level: float) -> None:
    here, kept = setting(BUDGET, 100, torch.full((100, 3, 12, 12), level))
    new = after(BUDGET, here, kept, 0, 1)
    assert bool((new.value != 0).flatten(1).any(1).all())


def test_colours_where_both_ends_are_far_have_both_signs() -> None:
    here, kept = setting(BUDGET, 100, torch.full((100, 3, 12, 12), 0.4))
    new = after(BUDGET, here, kept, 0, 1)
    darker = (new.value < 0).flatten(1).sum(1)  # of three channels
    assert all(int((darker == count).sum()) > 3 for count in range(4))


def test_single_points_often_come_beside_changed_ones() -> None:
    here, kept = setting(BUDGET, 200)
    kept.mask[:, :, 5, 5] = True
    kept.value[:, :, 5, 5] = 0.01
    new = after(BUDGET, here, kept, 1, 1)
    added = new.mask & ~kept.mask
    beside = added[:, 0, 4:7, 4:7].flatten(1).any(1)
    assert 60 < int(beside.sum()) < 140
    assert int((~added.flatten(1).any(1)).sum()) > 20  # of the others a colour is altered


def test_only_points_that_may_change_do() -> None:
    budget = sp.Budget(k=20, allowed=torch.arange(144).view(12, 12) % 3 == 0)
    here, kept = setting(budget)
    for step in range(30):
        kept = after(budget, here, kept, step, 1 + step % 2)
    assert here.usable is not None
    assert not bool((kept.mask & ~here.usable).any())


@pytest.mark.parametrize(("channels", "by_kernel"), [(16, True), (17, False)])
def test_the_kernel_of_a_gpu_is_not_used_for_channels_of_which_its_compilation_would_take_minutes(
    channels: int, by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unrolled over the channels, and the search waits for it."""
    asked = []

    def by_gpu(mask: Tensor, value: Tensor, *how: object) -> tuple[Tensor, Tensor]:
        asked.append(value.shape)
        return mask, value

    found = SimpleNamespace(POINTS=4096, UNROLLED=16, varied=by_gpu)
    monkeypatch.setattr(clusters, "kernels", lambda device: found)
    x, y = torch.full((2, channels, 1, 9), 0.5), torch.arange(2)
    here = Images(x, y, y, torch.zeros(2), y, y, None, torch.zeros_like(x), torch.ones_like(x))
    after(sp.Budget(k=4), here, Change(torch.zeros(2, 1, 1, 9, dtype=torch.bool), torch.zeros_like(x)), 0, 1)
    assert bool(asked) == by_kernel
