"""Intervals, pass@k and best-of-k, beside what enumeration gives."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.report.stats import DRAWS, apart, difference, expected_best, interval, pass_at

rewards = st.lists(st.floats(0, 1), min_size=1, max_size=7)


@given(rewards, st.integers(1, 8))
def test_the_best_of_k_is_the_mean_over_all_sets_of_k(row: list[float], k: int) -> None:
    found = expected_best(k, row)
    if k > len(row):
        assert found is None
    else:
        assert found == pytest.approx(fmean(map(max, combinations(row, k))))


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_sets_with_a_solution(n: int, data: st.DataObject) -> None:
    solved, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n + 1))
    found = pass_at(k, n, solved)
    if k > n:
        assert found is None
    else:
        row = [1.0] * solved + [0.0] * (n - solved)
        assert found == pytest.approx(fmean(map(max, combinations(row, k))))


@given(rewards)
def test_an_interval_holds_its_mean_within_the_figures(row: list[float]) -> None:
    found = interval(row)
    assert min(row) - 1e-9 <= found.low <= found.high <= max(row) + 1e-9
    assert found.mean == pytest.approx(fmean(row))
    assert found == interval(row)


@settings(max_examples=20, deadline=None)
@given(rewards)
def test_its_ends_are_those_of_means_drawn_one_by_one(row: list[float]) -> None:
    rng = random.Random(0)
    means = sorted(fmean(rng.choices(row, k=len(row))) for _ in range(DRAWS))
    found = interval(row)
    assert (found.low, found.high) == pytest.approx((means[50], means[-51]))


def test_an_interval_is_about_that_of_the_normal_distribution() -> None:
    row = [0.0, 1.0] * 50
    found = interval(row)
    assert found.low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.011)
    assert found.high == pytest.approx(0.5 + 1.96 * 0.05, abs=0.011)


def test_differences_are_paired_by_problem() -> None:
    first = {"a": 0.9, "b": 0.2, "only": 1.0}
    found = difference(first, {"a": 0.8, "b": 0.1, "other": 0.0})
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9)
    assert difference(first, {"other": 0.0}) is None


def test_no_figures_are_no_interval() -> None:
    with pytest.raises(ValueError, match="one problem at least"):
        interval([])


def test_a_difference_of_other_episodes_covers_the_truth_as_often_as_it_says() -> None:
    draws, hits = random.Random(3), 0
    for _ in range(300):
        first, last = ([draws.gauss(mean, 0.2) for _ in range(25)] for mean in (0.3, 0.45))
        found = apart(first, last)
        assert found.mean == pytest.approx(fmean(last) - fmean(first))
        hits += found.low <= 0.15 <= found.high
    assert 0.9 < hits / 300 < 0.98
    assert apart([0.5], [0.7, 0.7]).low == pytest.approx(0.2)
    with pytest.raises(ValueError, match="one on each side"):
        apart([], [1.0])
