"""Sparse-RS: the rules of Croce et al. beside plain implementations, exact query counts, every pattern."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsepgd as sp
from conftest import Linear, NoLook, SmallConvNet, images, labelled
from sparsepgd import zoo
from sparsepgd.errors import BudgetError, PatternError, UnsupportedError
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.rs_moves import Candidate, render
from sparsepgd.search.rs_schedule import Schedule
from sparsepgd.search.sparse_rs import SparseRS, State
from sparsepgd.threat import Frame
from sparsepgd.threat.norms import group_l0

CROSS = sp.Shape([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
BUDGETS = [
    sp.Budget(k=1),
    sp.Budget(k=9),
    sp.Budget(k=144),
    sp.Budget(k=3, eps=0.1),
    sp.Budget(k=5, pattern=sp.Features()),
    sp.Budget(k=1, pattern=sp.Rows()),
    sp.Budget(k=12, pattern=sp.Rows()),
    sp.Budget(k=7, pattern=sp.Columns()),
    sp.Budget(k=6, pattern=sp.Patches(3)),
    sp.Budget(k=1, pattern=sp.Patches(2, 5)),
    sp.Budget(k=2, pattern=sp.Shape.heart(5)),
    sp.Budget(k=1, pattern=sp.Shape.circle(6), eps=16 / 255),
    sp.Budget(k=1, pattern=Frame(2)),
    sp.Budget(k=3, allowed=torch.arange(144).view(12, 12) % 3 == 0),
    sp.Budget(k=48, allowed=torch.arange(144).view(12, 12) % 3 == 0),
    sp.Budget(k=2, pattern=sp.Patches(4), allowed=torch.arange(144).view(12, 12) < 40),
]


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_every_proposal_is_within_the_budget_and_shows_only_the_ends_of_the_box(
    budget: sp.Budget, quantize: bool
) -> None:
    model, x = SmallConvNet().eval(), images(3)
    asked: list[Tensor] = []

    def spy(points: Tensor) -> Tensor:
        asked.append(points.clone())
        return model(points)

    result = SparseRS(budget, 80, early_stop=False, quantize=quantize)(spy, x, labelled(model, x), seed=2)
    low, high = budget.resolve((3, 12, 12)).box(x, None, quantize)
    for points in asked[1:81]:
        changed = points != x
        assert bool((group_l0(changed, budget.pattern) <= budget.k).all())
        assert bool(((points == low) | (points == high) | ~changed).all())
        assert budget.allowed is None or not bool((changed.any(1) & ~budget.allowed).any())
    assert result.forwards.tolist() == [80] * 3
    assert len({points.numpy().tobytes() for points in asked[1:81]}) > 40


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_groups_stay_different_and_usable_and_the_host_never_looks(budget: sp.Budget) -> None:
    attack, threat, x = SparseRS(budget, 40), budget.resolve((3, 12, 12)), images(4)
    allowed, usable = threat.masks(4) or (None, None)
    y, (low, high) = torch.arange(4), threat.box(x, allowed, quantize=False)
    rows = Images(x, y, y, torch.zeros(4), y, y, low, high, usable)
    attack.moves_of(threat)  # the tables are made once
    noise, step, seen = Noise(0), torch.zeros_like(y), []
    with NoLook():
        state = attack.start(threat, rows, noise)
        for i in range(40):
            attack.propose(threat, rows, state)
            loss = noise.uniform(Stream.COIN, y, i, (1,))[:, 0] + i / 20
            state = attack.update(threat, rows, state, Evaluation(loss, y > 4, None), step + i, noise)
            seen.append(state.tried.groups)
    for groups in seen:
        assert all(len(set(row)) == budget.k for row in groups.tolist())
        assert usable is None or bool(usable.flatten(1).gather(1, groups).all())
    full = budget.k == (math.prod(threat.grid) if usable is None else int(usable[0].sum()))
    assert len({str(groups.tolist()) for groups in seen}) > 3 or full


@pytest.mark.parametrize(("channels", "eps"), [(1, 1.0), (1, 0.1), (3, 1.0), (3, 0.1)])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_finds_the_best_pixels_of_a_linear_model(k: int, channels: int, eps: float) -> None:
    """At the end no swap improves. With one channel that is the optimum; with more, a pixel can be left with
    its second-best colour, because a swap never changes the colour of a pixel that stays."""
    generator = torch.Generator().manual_seed(k)
    weight, x = torch.randn(channels, 4, 4, generator=generator), torch.rand(8, channels, 4, 4, generator=generator)
    ends = [weight * ((x + sign * eps).clamp(0, 1) - x) for sign in (-1, 1)]
    gain = torch.maximum(*ends).sum(1).flatten(1)
    attack = SparseRS(sp.Budget(k=k, eps=eps), 1500 if channels > 1 else 500, loss="margin", early_stop=False)
    result = attack(Linear(weight, -1000.0), x, torch.zeros(8, dtype=torch.int64))
    got = ((result.x_adv - x) * weight).sum(1).flatten(1)
    chosen = (result.x_adv != x).any(1).flatten(1)
    worst_chosen = got.masked_fill(~chosen, torch.inf).amin(1)
    assert bool((worst_chosen >= gain.masked_fill(chosen, -torch.inf).amax(1) - 1e-5).all())
    reached, best = got.sum(1), gain.topk(k).values.sum(1)
    assert bool((reached > 0.75 * best).all())
    assert bool((reached > best - 1e-4).all()) or channels > 1


@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Columns(), sp.Patches(3), CROSS, Frame(1)], ids=repr)
def test_finds_the_best_group_of_a_linear_model(pattern: sp.Pattern) -> None:
    """One content is the best everywhere and one place is the best for it, so there is nothing to be trapped in.

    Where each place wants its own content, Sparse-RS may stay at a good place: see the test after this one.
    """
    i, j = torch.arange(8.0)[:, None], torch.arange(8.0)
    hill = 1 / (1 + (i - 5) ** 2 + (j - 2) ** 2)
    weight = torch.tensor([1.0, -1.0, 1.0])[:, None, None] * hill
    x = torch.full((2, 3, 8, 8), 0.5)
    budget = sp.Budget(k=1, pattern=pattern)
    best = budget.resolve((3, 8, 8)).gather(weight.abs()[None] / 2).max()
    attack = SparseRS(budget, 1500, loss="margin", early_stop=False)
    result = attack(Linear(weight, -1000.0), x, torch.zeros(2, dtype=torch.int64))
    reached = ((result.x_adv - x) * weight).flatten(1).sum(1)
    torch.testing.assert_close(reached, best.expand(2))


@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(3)], ids=repr)
def test_is_optimal_for_its_place_where_each_place_wants_its_own_content(pattern: sp.Pattern) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(3, 8, 8, generator=generator), torch.rand(4, 3, 8, 8, generator=generator)
    budget = sp.Budget(k=1, pattern=pattern)
    attack = SparseRS(budget, 1500, loss="margin", early_stop=False)
    result = attack(Linear(weight, -1000.0), x, torch.zeros(4, dtype=torch.int64))
    gain = torch.maximum(weight * (1 - x), -weight * x)
    here = (gain * (result.x_adv != x).any(1, keepdim=True)).flatten(1).sum(1)
    torch.testing.assert_close(((result.x_adv - x) * weight).flatten(1).sum(1), here)


@pytest.mark.parametrize("fools", [False, True])
def test_queries_are_counted_exactly(fools: bool) -> None:
    calls: list[int] = []

    def model(x: Tensor) -> Tensor:
        calls.append(len(x))
        success = fools and len(calls) > 8  # the clean pass, then seven proposals in vain
        return torch.tensor([[0.0, 3.0]] if success else [[3.0, 0.0]]).expand(len(x), 2)

    result = SparseRS(sp.Budget(k=3), 20)(model, images(1), torch.tensor([0]), batch_size=1)
    confirmed = 2 if fools else 1  # a success is confirmed when it is found, all are verified at the end
    assert int(result.forwards) == (8 if fools else 20)
    assert sum(calls) == 1 + int(result.forwards) + confirmed
    assert int(result.backwards) == 0
    assert bool(result.fooled) is fools


def test_queries_of_many_images_are_counted_exactly() -> None:
    model, x = SmallConvNet().eval(), images(9)
    y, calls = labelled(model, x), 0

    def counting(points: Tensor) -> Tensor:
        nonlocal calls
        calls += len(points)
        return model(points)

    result = SparseRS(sp.Budget(k=9), 40)(counting, x, y, batch_size=1)
    assert 0 < int(result.fooled.sum()) < 9
    assert calls == 9 + int(result.forwards.sum()) + int(result.fooled.sum()) + 9
    assert bool((result.forwards[~result.fooled] == 40).all())
    assert torch.equal(result.forwards, result.steps + 1)


def test_schedule_of_points() -> None:
    plan = Schedule(10_000, 0.8, constant=False, rescale=True, period=4)
    ends = [0, 50, 200, 500, 1000, 2000, 4000, 6000, 8000, 9999]
    divisors = [1, 2, 4, 5, 6, 8, 10, 12, 15, 20]
    assert [0.8 / plan.points(it) for it in ends] == pytest.approx(divisors)
    assert [0.8 / plan.points(it + 1) for it in ends[:-1]] == pytest.approx(divisors[1:])
    short = dataclasses.replace(plan, queries=300)
    assert [short.tau(it) for it in (0, 1, 2, 150, 299)] == [0, 33, 66, 5000, 9966]
    assert dataclasses.replace(short, rescale=False).points(200) == 0.8 / 4
    assert dataclasses.replace(short, constant=True).points(1) == 0.4


def test_schedule_of_patches_and_frames() -> None:
    plan = Schedule(10_000, 0.4, constant=False, rescale=True, period=4)
    ends = [0, 10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000, 9999]
    assert [0.4 / plan.patches(it) for it in ends] == pytest.approx([1, *(2**i for i in range(10))])
    assert [0.4 / plan.patches(it + 1) for it in ends[1:-1]] == pytest.approx([2**i for i in range(1, 10)])
    assert [plan.sides(it, sp.Patches(20), 20, 20)[0] for it in ends] == [12, 12, 8, 6, 4, 3, 2, 1, 1, 1, 1]
    assert plan.sides(1, sp.Rows(), 1, 32) == (1, 12)
    assert plan.sides(1, sp.Patches(4, 9), 4, 9) == (2, 5)
    assert [plan.reach(it, 32) for it in (0, 1, 5000, 9583, 9584, 9999)] == [24, 23, 12, 1, 0, 0]
    frame = dataclasses.replace(plan, p_init=0.5)
    assert [frame.frame_side(it, 3) for it in (0, 555, 556, 4999, 5000, 9999)] == [9, 9, 6, 3, 1, 1]
    assert dataclasses.replace(frame, constant=True).frame_side(9999, 3) == 9


def test_single_channels_begin_half_way_after_the_first_single_cell() -> None:
    attack = SparseRS(sp.Budget(k=1, pattern=sp.Patches(5)), 1000)
    moves: Any = attack.moves_of(attack.budget.resolve((3, 32, 32)))
    first = moves.sides.tolist().index([1, 1])
    assert first == 6  # tau = 60: sqrt(0.4 / 4) * 5 < 2
    assert moves.channel.tolist().index(True) == first + (1000 - first) // 2
    assert moves.relocate.tolist()[:9] == [True, False, False, False] * 2 + [True]
    assert not bool(moves.relocate[960:].any())  # nowhere to go any more


def play(attack: SparseRS, losses: list[float], fooled: list[bool]) -> list[State]:
    """The states of one image while the model gives these answers."""
    threat, x = attack.budget.resolve((3, 6, 6)), images(1, size=6)
    y, (low, high) = torch.zeros(1, dtype=torch.int64), threat.box(x, None, quantize=False)
    rows = Images(x, y, y, torch.zeros(1), y, y, low, high, None)
    states = [attack.start(threat, rows, Noise(0))]
    for step, (loss, success) in enumerate(zip(losses, fooled, strict=True)):
        seen = Evaluation(torch.tensor([loss]), torch.tensor([success]), None)
        states.append(attack.update(threat, rows, states[-1], seen, y + step, Noise(0)))
    return states


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(2)], ids=repr)
def test_only_strict_improvement_or_success_is_accepted(pattern: sp.Pattern) -> None:
    losses = [1.0, 1.0, math.nan, 0.5, 1.5, 1.2, 2.0]
    fooled = [False] * 5 + [True, False]
    states = play(SparseRS(sp.Budget(k=2, pattern=pattern), 50), losses, fooled)
    accepted = [
        torch.equal(after.kept.groups, before.tried.groups) and torch.equal(after.kept.bits, before.tried.bits)
        for before, after in pairwise(states)
    ]
    assert accepted == [True, False, False, False, True, True, False]
    assert [float(state.loss) for state in states[1:]] == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.5, 1.2, 1.2])


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Features(), sp.Rows(), sp.Patches(2)], ids=repr)
def test_a_model_that_never_improves_keeps_the_random_start(pattern: sp.Pattern) -> None:
    states = play(SparseRS(sp.Budget(k=2, pattern=pattern), 30), [0.0] * 30, [False] * 30)
    assert all(torch.equal(state.kept.groups, states[0].tried.groups) for state in states)
    assert all(torch.equal(state.kept.bits, states[0].tried.bits) for state in states)


def test_overlapping_groups_show_the_later_one_and_holes_show_the_image() -> None:
    threat, x = sp.Budget(k=2, pattern=CROSS).resolve((1, 4, 4)), torch.full((1, 1, 4, 4), 0.5)
    y = torch.zeros(1, dtype=torch.int64)
    rows = Images(x, y, y, torch.zeros(1), y, y, torch.zeros_like(x), torch.ones_like(x), None)
    bits = torch.stack([torch.ones(9), torch.zeros(9)]).bool()[None, None]
    shown = render(threat, rows, Candidate(torch.tensor([[0, 1]]), bits))
    expected = [[0.5, 1, 0, 0.5], [1, 0, 0, 0], [0.5, 1, 0, 0.5], [0.5, 0.5, 0.5, 0.5]]
    assert shown[0, 0].tolist() == expected


# Plain implementations for one image, fed with the same random numbers.


class Reference:
    """What they have in common: the schedule of queries, the acceptance rule, the random numbers."""

    def __init__(self, attack: SparseRS, model: SmallConvNet, x: Tensor, y: int, seed: int, index: int) -> None:
        self.attack, self.model, self.x, self.y = attack, model, x, y
        self.noise, self.index = Noise(seed), torch.tensor([index])
        assert attack.p_init is not None
        self.schedule = Schedule(attack.queries, attack.p_init, False, True, 4)
        self.kernel = attack.budget.pattern.kernel(*x.shape[1:]) > 0

    def draw(self, it: int, *sizes: int) -> list[list[float]]:
        numbers = self.noise.uniform(Stream.PROPOSAL, self.index, it, (sum(sizes),))[0]
        return [part.tolist() for part in numbers.split(sizes)]

    def ask(self, image: Tensor) -> tuple[float, float]:
        """(margin, objective), both to be made small."""
        logits = self.model(image[None])[0]
        others = torch.cat([logits[: self.y], logits[self.y + 1 :]])
        margin = float(logits[self.y] - others.max())
        return margin, margin if self.attack.loss == "margin" else float(logits.log_softmax(0)[self.y])

    def run(self) -> tuple[Tensor, int, bool]:
        """(best image, queries, fooled)."""
        best = self.start()
        margin, objective = self.ask(self.show(best))
        if margin < 0:
            return self.show(best), 1, True
        for it in range(1, self.attack.queries):
            new = self.change(best, it)
            margin, value = self.ask(self.show(new))
            if margin < 0:
                return self.show(new), it + 1, True
            if value < objective:
                best, objective = new, value
        return (self.show(best) if objective < self.ask(self.x)[1] else self.x), self.attack.queries, False

    def start(self) -> Any: ...
    def change(self, now: Any, it: int) -> Any: ...
    def show(self, now: Any) -> Tensor: ...


def corner(numbers: list[float]) -> Tensor:
    return torch.tensor([float(u > 0.5) for u in numbers], dtype=torch.float64)


def other_corner(tries: list[float], old: Tensor) -> Tensor:
    """The first of four draws that is not the old colour."""
    for t in range(4):
        if not torch.equal(corner(tries[t::4]), old):
            return corner(tries[t::4])
    return 1 - old


class PlainL0(Reference):
    """State: a list of (pixel, colour)."""

    def start(self) -> Any:
        (c, h, w), k = self.x.shape, self.attack.budget.k
        place, colour = self.draw(0, h * w, c * k)
        chosen = sorted(range(h * w), key=lambda i: -place[i])[:k]
        return [(pixel, corner(colour[j::k])) for j, pixel in enumerate(chosen)]

    def change(self, now: Any, it: int) -> Any:
        (c, h, w), k = self.x.shape, self.attack.budget.k
        slot, place, colour, tries = self.draw(it, k, h * w, c * k, 4 * c)
        count = max(int(self.schedule.points(it) * k), 1)
        members = {pixel for pixel, _ in now}
        outside = sorted(set(range(h * w)) - members, key=lambda i: -place[i])
        new = list(now)
        for nth, j in enumerate(sorted(range(k), key=lambda j: slot[j])[:count]):
            pixel = outside[nth]
            clean = self.x[:, pixel // w, pixel % w]
            new[j] = (pixel, corner(colour[j::k]) if count > 1 else other_corner(tries, clean))
        return new

    def show(self, now: Any) -> Tensor:
        image = self.x.clone()
        for pixel, colour in now:
            image[:, pixel // image.shape[2], pixel % image.shape[2]] = colour
        return image


class PlainPatch(Reference):
    """State: (row, column, patch)."""

    def start(self) -> Any:
        (c, h, w), s = self.x.shape, len(self.kernel)
        n, most = min(20 * s * s, 1000), max(math.ceil(s**0.5), 2)
        place, size, top, left, colour = self.draw(0, (h - s + 1) * (w - s + 1), n, n, n, c * n)
        patch = torch.zeros(c, s, s, dtype=torch.float64)
        for b in range(n):
            side = 1 + int(size[b] * (most - 1))
            i, j = int(top[b] * (s - side + 1)), int(left[b] * (s - side + 1))
            patch[:, i : i + side, j : j + side] = corner(colour[b::n])[:, None, None]
        group = max(range(len(place)), key=lambda g: place[g])
        return group // (w - s + 1), group % (w - s + 1), patch

    def change(self, now: Any, it: int) -> Any:
        (c, h, w), s, (row, column, patch) = self.x.shape, len(self.kernel), now
        _, shift, box, tries = self.draw(it, 1, 2, 4, 4 * c)
        sides = [max(int(self.schedule.patches(i) ** 0.5 * s), 1) for i in range(self.attack.queries)]
        side, first = sides[it], sides.index(1)
        reach = math.floor(0.75 * (1 - it / self.attack.queries) * h)
        if it % 4 == 0 and reach > 0:
            by = [int(u * (2 * reach + 1)) - reach for u in shift]
            return min(max(row + by[0], 0), h - s), min(max(column + by[1], 0), w - s), patch
        patch, corners = patch.clone(), s - side + 1
        i, j = divmod(int(box[0] * corners * corners), corners)
        if it >= first + (self.attack.queries - first) // 2:
            patch[int(box[3] * c), i, j] = 1 - patch[int(box[3] * c), i, j]
        elif side == 1:
            patch[:, i, j] = other_corner(tries, patch[:, i, j])
        else:
            patch[:, i : i + side, j : j + side] = corner(tries[::4])[:, None, None]
        return row, column, patch

    def show(self, now: Any) -> Tensor:
        (row, column, patch), s, image = now, len(self.kernel), self.x.clone()
        image[:, row : row + s, column : column + s] = patch
        return image


class PlainFrame(Reference):
    """State: an image, of which the border counts."""

    def start(self) -> Any:
        c, h, w = self.x.shape
        *_, colour = self.draw(0, 1, c * h * w)
        return corner(colour).view(c, h, w)

    def change(self, now: Any, it: int) -> Any:
        (c, h, w), width = self.x.shape, self.attack.budget.pattern.width  # type: ignore[attr-defined]
        _, _, box, tries = self.draw(it, 1, 2, 4, 4 * c)
        sides = [self.schedule.frame_side(i, width) for i in range(self.attack.queries)]
        side, first, border, new = sides[it], sides.index(1), self.kernel.nonzero().tolist(), now.clone()
        i, j = border[int(box[0] * len(border))]
        if it >= first + (self.attack.queries - first) // 2:
            new[int(box[3] * c), i, j] = 1 - new[int(box[3] * c), i, j]
        elif side == 1:
            new[:, i, j] = other_corner(tries, now[:, i, j])
        else:
            down, right = (-1 if u < 0.5 else 1 for u in box[1:3])
            for a in range(side):
                for b in range(side):
                    new[:, min(max(i + down * a, 0), h - 1), min(max(j + right * b, 0), w - 1)] = corner(tries[::4])
        return new

    def show(self, now: Any) -> Tensor:
        return torch.where(self.kernel, now, self.x)


@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize(
    ("plain", "budget", "queries"),
    [
        (PlainL0, sp.Budget(k=1), 60),
        (PlainL0, sp.Budget(k=6), 120),
        (PlainPatch, sp.Budget(k=1, pattern=sp.Patches(2)), 60),
        (PlainPatch, sp.Budget(k=1, pattern=sp.Patches(5)), 200),
        (PlainFrame, sp.Budget(k=1, pattern=Frame(1)), 60),
        (PlainFrame, sp.Budget(k=1, pattern=Frame(3)), 60),
    ],
    ids=str,
)
def test_agrees_with_a_plain_implementation_given_the_same_random_numbers(
    plain: type[Reference], budget: sp.Budget, queries: int, loss: Any
) -> None:
    model, x = SmallConvNet(dtype=torch.float64).eval(), images(5, dtype=torch.float64)
    x[:, :, ::2] = x[:, :, ::2].round()  # half the pixels are corners already
    with torch.no_grad():
        model.net[-1].bias *= 4  # type: ignore[operator]
    y = labelled(model, x)
    attack = SparseRS(budget, queries, loss=loss)
    result = attack(model, x, y, seed=7, batch_size=1)
    for i in range(5):
        with torch.no_grad():
            image, used, fooled = plain(attack, model, x[i], int(y[i]), 7, i).run()
        assert (int(result.forwards[i]), bool(result.fooled[i])) == (used, fooled)
        assert torch.equal(result.x_adv[i], image)


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(7)), st.sampled_from([1, 2, 3, 7]), st.sampled_from(BUDGETS[:-1]))
def test_batch_size_and_order_do_not_change_the_result(order: list[int], size: int, budget: sp.Budget) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(7, dtype=torch.float64)
    y = labelled(model, x)
    attack = SparseRS(budget, 30)
    whole, pick = attack(model, x, y, seed=3, batch_size=7), torch.tensor(order)
    parts = attack(model, x[pick], y[pick], seed=3, batch_size=size, index=pick)
    assert torch.equal(parts.fooled, whole.fooled[pick])
    assert torch.equal(parts.forwards, whole.forwards[pick])
    assert torch.equal(parts.x_adv, whole.x_adv[pick])


def test_a_kernel_of_one_cell_is_the_attack_on_pixels() -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    pixels = SparseRS(sp.Budget(k=3), 40, p_init=0.5)(model, x, y)
    cells = SparseRS(sp.Budget(k=3, pattern=sp.Patches(1)), 40, p_init=0.5)(model, x, y)
    assert torch.equal(pixels.x_adv, cells.x_adv)


def test_black_boxes_without_gradients_will_do() -> None:
    model, x = SmallConvNet().eval(), images(4)
    y = labelled(model, x)

    def black_box(points: Tensor) -> Tensor:
        return torch.from_numpy(model(points).detach().numpy())

    attack = SparseRS(sp.Budget(k=9), 40)
    assert torch.equal(attack(black_box, x, y).x_adv, attack(model, x, y).x_adv)


@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(5)], ids=repr)
def test_targeted_goals_are_reached(pattern: sp.Pattern, loss: Any) -> None:
    model, x = SmallConvNet().eval(), images(6)
    y = labelled(model, x)
    target = (y + 1) % 5
    attack = SparseRS(sp.Budget(k=30 if pattern == sp.Pixels() else 3, pattern=pattern), 150, loss=loss)
    result = attack(model, x, y, goal=sp.Targeted(target))
    assert torch.equal(result.fooled, result.prediction == target)
    assert int(result.fooled.sum()) >= 2


def test_more_queries_go_on_from_fewer_where_the_schedule_is_not_rescaled() -> None:
    """For points without rescaling a run is the beginning of a longer one; a rescaled schedule is another search."""
    model, x = SmallConvNet(dtype=torch.float64), images(8, dtype=torch.float64)
    y = labelled(model, x)
    short, long = (SparseRS(sp.Budget(k=5), n, rescale=False)(model, x, y) for n in (20, 120))
    assert bool((long.fooled | ~short.fooled).all())
    assert torch.equal(long.x_adv[short.fooled], short.x_adv[short.fooled])
    assert int(long.fooled.sum()) > int(short.fooled.sum())
    assert bool((long.loss >= short.loss)[~short.fooled & ~long.fooled].all())


def test_lowers_the_robust_accuracy_of_a_robust_model_the_more_the_longer() -> None:
    model, (x, y) = zoo.load("small-strades"), zoo.bundled_images(100)
    with torch.no_grad():
        probabilities = model.eval()(x).softmax(1)
    sure = probabilities.gather(1, y[:, None])[:, 0].masked_fill(probabilities.argmax(1) != y, torch.inf)
    pick = sure.topk(16, largest=False).indices  # right, but the least sure of all
    short, long = (SparseRS(sp.Budget(k=20), n, rescale=False)(model, x[pick], y[pick]) for n in (20, 200))
    assert 1 == long.clean_accuracy > short.robust_accuracy > long.robust_accuracy


def test_defaults_are_the_papers_and_the_originals_have_a_name() -> None:
    attack = SparseRS(sp.Budget(k=20))
    assert (attack.queries, attack.p_init, attack.loss, attack.rescale) == (10_000, 0.8, "ce", True)
    assert (attack.name, attack.evaluations, attack.needs_gradient) == ("sparse-rs", 10_000, False)
    assert SparseRS(sp.Budget(k=1, pattern=sp.Patches(5))).p_init == 0.4
    assert SparseRS(sp.Budget(k=1, pattern=Frame(2))).p_init == 0.5
    original = SparseRS.original(sp.Budget(k=20), 500)
    assert (original.queries, original.p_init, original.loss) == (500, 0.3, "margin")
    patch = SparseRS.original(sp.Budget(k=1, pattern=sp.Patches(5)))
    assert (patch.p_init, patch.loss) == (0.4, "margin")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": 0}, "queries=0; expected a number larger than 0"),
        ({"p_init": 0.0}, "p_init=0.0"),
        ({"p_init": 1.5}, "p_init=1.5; it is a share of the budget: use 0 < p_init <= 1"),
        ({"location_period": 0}, "location_period=0"),
        ({"loss": "dlr"}, "loss='dlr'; use one of 'ce', 'margin'"),
    ],
)
def test_unusable_hyper_parameters_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        SparseRS(sp.Budget(k=1), **arguments)


def test_frames_are_borders_and_there_is_one() -> None:
    assert int(Frame(2).kernel(12, 10).sum()) == 120 - 8 * 6
    assert bool(Frame(6).kernel(12, 12).all())
    with pytest.raises(PatternError, match="a frame of width 0; use at least 1"):
        Frame(0)
    with pytest.raises(BudgetError, match="k=2 frames, but a 12x12 image has 1"):
        sp.Budget(k=2, pattern=Frame(1)).resolve((3, 12, 12))
