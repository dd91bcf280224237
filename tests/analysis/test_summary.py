"""Intervals, counts and budgets in words."""

from __future__ import annotations

import pytest

import sparsepgd as sp
from sparsepgd.analysis.summary import describe_budget, wilson
from sparsepgd.runs.identity import plain


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


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (sp.Budget(20), "k = 20 pixels"),
        (sp.Budget(1, sp.Rows()), "k = 1 row"),
        (sp.Budget(1, sp.Patches(3, 5)), "k = 1 patch 3x5"),
        (sp.Budget(2, sp.Patches(3, 3), 8 / 255), "k = 2 patches 3x3, eps = 8/255"),
        (sp.Budget(2, sp.Groups([[0, 1, 2], [3, 4], [5]])), "k = 2 groups (3 of 1 to 3 places)"),
        (sp.Budget(1, sp.Groups.windows(100, 5)), "k = 1 group (96 of 5 places)"),
        (sp.Budget(1, sp.Groups.sensors(3, 4), 8 / 255), "k = 1 group (3 of 4 entries), eps = 8/255"),
        (sp.Budget(1, sp.Shape.heart(9), 0.1), "k = 1 shape (heart:9), eps = 0.1"),
    ],
)
def test_budgets_are_described_in_words(budget: sp.Budget, words: str) -> None:
    assert describe_budget(plain(budget)) == words
