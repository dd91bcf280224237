"""Intervals and counts."""

from __future__ import annotations

import pytest

from sparsepgd.analysis.summary import counted, wilson


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 10, 0.0, 0.277533), (5, 10, 0.236593, 0.763407), (10, 10, 0.722467, 1.0), (617, 1000, 0.586495, 0.646609)],
)
def test_wilson_agrees_with_published_values(hits: int, n: int, low: float, high: float) -> None:
    from scipy.stats import binomtest

    assert wilson(hits, n) == pytest.approx((low, high), abs=5e-4)
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_no_images_leave_everything_open() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("things", ["images", "steps", "patches", "queries"])
def test_one_of_them_is_counted_without_an_s(things: str) -> None:
    one = {"images": "image", "steps": "step", "patches": "patch", "queries": "query"}[things]
    assert [counted(count, things) for count in (0, 1, 1000)] == [f"0 {things}", f"1 {one}", f"1,000 {things}"]
