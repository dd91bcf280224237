"""Moves of overlapping groups: one at a time, with its content, to a free and usable position."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.search.loop import Images
from sparsepgd.search.moves import REACH, attraction, moved, placed, rolled, shift
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Threat
from support.models import images as pictures

COUNT = 200
BUDGETS = [
    sp.Budget(k=1, pattern=sp.Patches(3)),
    sp.Budget(k=3, pattern=sp.Patches(2, 4)),
    sp.Budget(k=2, pattern=sp.Shape([[0, 1, 0], [1, 1, 1], [0, 1, 0]])),
    sp.Budget(k=2, pattern=sp.Patches(3), eps=0.1),
    sp.Budget(k=2, pattern=sp.Patches(3), allowed=torch.arange(100).view(10, 10) % 10 < 5),
]


def rows(budget: sp.Budget, size: int = 10, count: int = COUNT) -> tuple[Threat, Images, Tensor]:
    """The threat, as many random images, and random gradients of them."""
    threat = budget.resolve((3, size, size))
    x, y = pictures(count, size=size), torch.zeros(count, dtype=torch.int64)
    pixels, usable = threat.masks(count) or (None, None)
    low, high = threat.box(x, pixels, quantize=False)
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    return threat, Images(x, y, y, torch.zeros(count), torch.arange(count), torch.arange(count), usable, low, high), g


def begun(budget: sp.Budget, size: int = 10) -> tuple[Threat, Images, Tensor, Tensor, Tensor]:
    """With a first change and its groups."""
    threat, images, g = rows(budget, size)
    k, zero = torch.full((COUNT,), budget.k), torch.zeros(COUNT, dtype=torch.int64)
    return threat, images, g, *placed(threat, images, g, k, zero, Noise(0))


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_the_first_positions_are_k_usable_ones_and_their_values_at_the_ends_of_the_box(budget: sp.Budget) -> None:
    threat, images, g, delta, v = begun(budget)
    assert v.flatten(1).sum(1).tolist() == [budget.k] * COUNT
    assert v.unique().tolist() == [0, 1]
    assert images.usable is None or not bool((v > 0)[~images.usable].any())
    covered = (threat.expand(v) > 0).expand_as(delta)
    assert not bool(delta[~covered].any())
    edge = torch.where(g > 0, images.high, images.low)
    torch.testing.assert_close((images.x + delta)[covered], edge[covered])


def test_the_number_of_first_positions_may_differ_between_images() -> None:
    threat, images, g = rows(sp.Budget(k=4, pattern=sp.Patches(2)), count=5)
    k = torch.tensor([4, 1, 3, 2, 4])
    _, v = placed(threat, images, g, k, torch.zeros(5, dtype=torch.int64), Noise(0))
    assert torch.equal(v.flatten(1).sum(1).long(), k)


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_one_group_moves_to_a_free_and_usable_place_and_the_others_stay(budget: sp.Budget) -> None:
    threat, images, g, delta, v = begun(budget)
    for draw in range(1, 8):
        before = v
        delta, v = moved(threat, images, delta, v, g, torch.full((COUNT,), draw), Noise(0))
        assert v.unique().tolist() == [0, 1]  # no two in one place
        assert v.flatten(1).sum(1).tolist() == [budget.k] * COUNT
        assert (before * v).flatten(1).sum(1).tolist() == [budget.k - 1] * COUNT
        assert images.usable is None or not bool((v > 0)[~images.usable].any())
        assert not bool(delta[(threat.expand(v) == 0).expand_as(delta)].any())


@pytest.mark.parametrize("budget", BUDGETS[:3], ids=repr)
def test_the_content_of_a_group_moves_with_it_and_covers_the_others(budget: sp.Budget) -> None:
    """Pixel by pixel: the new position of the group has the content of the old one, other pixels keep theirs."""
    threat, images, g, delta, v = begun(budget)
    delta = torch.rand(delta.shape, generator=torch.Generator().manual_seed(3)) * threat.expand(v)
    after, where = moved(threat, images, delta, v, g, torch.ones(COUNT, dtype=torch.int64), Noise(0))
    solid = threat.kernel[0, 0] > 0
    for row in range(COUNT):
        old, new = ((one[row, 0] > 0).nonzero() for one in (v * (1 - where), where * (1 - v)))
        (top, left), (down, right) = old[0].tolist(), new[0].tolist()
        stays = threat.expand((v * where)[row : row + 1])[0]
        expected = images.x[row] + delta[row] * stays
        (kh, kw), was = solid.shape, images.x[row] + delta[row]
        window = expected[:, down : down + kh, right : right + kw]
        window[:, solid] = was[:, top : top + kh, left : left + kw][:, solid]
        torch.testing.assert_close(images.x[row] + after[row], expected)


def test_half_of_the_moves_stay_within_reach() -> None:
    budget = sp.Budget(k=1, pattern=sp.Patches(2))
    threat, images, g, delta, v = begun(budget, size=40)
    _, where = moved(threat, images, delta, v, g, torch.ones(COUNT, dtype=torch.int64), Noise(0))
    columns = threat.grid[2]
    old, new = v.flatten(1).argmax(1), where.flatten(1).argmax(1)
    far = torch.maximum((old // columns - new // columns).abs(), (old % columns - new % columns).abs())
    assert 0.35 < float((far <= REACH * 40).float().mean()) < 0.65
    assert float((far > 2 * REACH * 40).float().mean()) > 0.25  # the others go where they like


@pytest.mark.parametrize(("side", "reach"), [(8, 3), (32, 3), (224, 22)])
def test_a_move_nearby_is_uniform_within_reach_and_ends_at_the_edge(side: int, reach: int) -> None:
    draw = (torch.arange(10_000) + 0.5) / 10_000
    steps = shift(torch.full((10_000,), 100), draw, 201, side) - 100
    assert (int(steps.min()), int(steps.max())) == (-reach, reach)
    counts = (steps + reach).bincount()
    assert int(counts.max()) - int(counts.min()) <= 1
    assert int(shift(torch.zeros(10_000, dtype=torch.int64), draw, 201, side).min()) == 0
    assert int(shift(torch.full((10_000,), 200), draw, 201, side).max()) == 200


def test_positions_are_drawn_by_their_first_order_gain() -> None:
    """Only one patch has a gain, so most draws choose it, but not all."""
    budget = sp.Budget(k=1, pattern=sp.Patches(2))
    threat, images, _ = rows(budget, size=6)
    g = torch.zeros_like(images.x)
    g[:, :, 2:4, 3:5] = 1.0
    images = dataclasses.replace(images, x=torch.full_like(images.x, 0.5))
    zero = torch.zeros(COUNT, dtype=torch.int64)
    place = attraction(threat, images, g, zero, Noise(0)).flatten(1).argmax(1)
    best = 2 * threat.grid[2] + 3
    assert 0.9 < float((place == best).float().mean()) < 1
    flat = attraction(threat, images, torch.zeros_like(g), zero, Noise(0)).flatten(1).argmax(1)
    assert len(flat.unique()) > 20  # nothing is promised anywhere: all 25 places are alike


def test_a_position_at_the_end_of_the_box_has_no_gain() -> None:
    budget = sp.Budget(k=1, pattern=sp.Patches(2))
    threat, images, _ = rows(budget, size=6)
    x = torch.full_like(images.x, 0.5)
    x[:, :, :, :4] = 1.0
    g = torch.ones_like(x)
    drawn = attraction(threat, dataclasses.replace(images, x=x), g, images.y, Noise(0)).flatten(1).argmax(1)
    assert float((drawn % threat.grid[2] == 4).float().mean()) > 0.9


def test_groups_stay_if_every_position_is_taken() -> None:
    threat, images, g, delta, v = begun(sp.Budget(k=4, pattern=sp.Patches(3)), size=4)
    assert bool((v == 1).all())  # 2 x 2 places
    for draw in range(1, 4):
        delta, v = moved(threat, images, delta, v, g, torch.full((COUNT,), draw), Noise(0))
        assert bool((v == 1).all())


def test_no_group_moves_from_a_usable_to_an_unusable_position() -> None:
    allowed = torch.zeros(6, 6, dtype=torch.bool)
    allowed[5, 5] = True
    budget = sp.Budget(k=1, pattern=sp.Patches(2), allowed=allowed)  # one place of 25
    threat, images, g, delta, v = begun(budget, size=6)
    after, where = moved(threat, images, delta, v, g, torch.ones(COUNT, dtype=torch.int64), Noise(0))
    assert torch.equal(where, v)
    torch.testing.assert_close(after, delta)


def test_an_image_without_groups_gets_one() -> None:
    budget = sp.Budget(k=2, pattern=sp.Patches(2))
    threat, images, g = rows(budget)
    nothing = torch.zeros(COUNT, *threat.grid)
    _, v = moved(threat, images, torch.zeros_like(g), nothing, g, torch.ones(COUNT, dtype=torch.int64), Noise(0))
    assert v.flatten(1).sum(1).tolist() == [1] * COUNT


def test_an_image_is_rolled_by_its_own_offsets() -> None:
    values = torch.rand(4, 2, 5, 6, generator=torch.Generator().manual_seed(0))
    down, right = torch.tensor([0, 2, -1, 4]), torch.tensor([0, -3, 5, 1])
    for row, one in enumerate(rolled(values, down, right)):
        assert torch.equal(one, values[row].roll((int(down[row]), int(right[row])), (1, 2)))
