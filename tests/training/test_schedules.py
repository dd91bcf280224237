"""Learning rates: the paper's steps and the one-cycle."""

from __future__ import annotations

import pytest

from sparsepgd.training.schedules import rate


def test_the_paper_divides_by_ten_at_a_quarter_and_at_three_quarters() -> None:
    rates = [rate("paper", 0.05, i, 100) for i in range(100)]
    assert rates[:25] == [0.05] * 25
    assert rates[25:75] == pytest.approx([0.005] * 50)
    assert rates[75:] == pytest.approx([0.0005] * 25)


def test_one_cycle_rises_to_the_peak_and_falls_to_nothing() -> None:
    rates = [rate("one-cycle", 0.06, i, 1000) for i in range(1001)]
    assert rates.index(max(rates)) == 250
    assert max(rates) == pytest.approx(0.06)
    assert rates[0] == pytest.approx(0.06 / 25)
    assert rates[1000] == pytest.approx(0, abs=1e-9)
    assert rates[:251] == sorted(rates[:251])
    assert rates[250:] == sorted(rates[250:], reverse=True)
