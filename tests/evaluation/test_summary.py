"""Intervals and summaries."""

from __future__ import annotations

import math

import pytest

import sparsepgd as sp
from conftest import SmallConvNet, images, labelled
from sparsepgd.evaluation.summary import summarise, wilson


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


def test_summary_counts_what_the_result_holds() -> None:
    model, x = SmallConvNet(), images(8)
    result = sp.SparsePGD(sp.Budget(k=20), steps=30)(model, x, labelled(model, x))
    row = summarise(result, 1.5)
    assert (row.images, row.seconds) == (8, 1.5)
    assert row.robust_accuracy == result.robust_accuracy
    assert row.forwards == int(result.forwards.sum())
    assert row.median_l0 == float(result.l0[result.fooled].float().median())


def test_summary_of_an_attack_that_fools_nobody_has_no_medians() -> None:
    model, x = SmallConvNet(), images(2)
    result = sp.SparsePGD(sp.Budget(k=1, eps=1e-6), steps=1)(model, x, labelled(model, x))
    assert math.isnan(summarise(result, 0.0).median_l0)
