"""Rank correlation, against values worked out by hand and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.judge.ranks import sign, spearman


def test_spearman() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 31]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=9, unique=True))
def test_spearman_is_one_for_equal_orders_and_minus_one_for_reverse(values: list[int]) -> None:
    cubes = [float(value**3) for value in values]
    assert spearman(cubes, values) == pytest.approx(1.0)
    assert spearman([-cube for cube in cubes], values) == pytest.approx(-1.0)
    assert spearman([0.5] * len(values), values) == 0.0


def test_spearman_puts_ties_at_their_mean_rank() -> None:
    # ranks 1.5, 1.5, 3, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
    assert spearman([1.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.9486833)


def test_what_a_rounding_error_parts_is_tied() -> None:
    assert sign(0.1 + 0.2, 0.3) == sign(0.0, 1e-168) == 0
    assert (sign(0.2, 0.1), sign(0.1, 0.2)) == (1, -1)
    assert spearman([0.3, 0.1 + 0.2, 0.3], [1.0, 2.0, 3.0]) == 0.0
