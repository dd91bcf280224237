"""The schedules of Sparse-RS: how much of a candidate changes at which query."""

from __future__ import annotations

import dataclasses

import pytest

import sparsepgd as sp
from sparsepgd.search.random_search.schedule import Schedule


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
