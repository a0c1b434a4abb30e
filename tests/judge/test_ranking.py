"""The ranking model: planted worths and place effects, with and without noise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.judge.orders import balanced
from orchestry.judge.ranking import RIDGE, fit

share = st.floats(0.0, 1.0)


def rated(
    worths: list[float], effects: list[float], orders: list[tuple[int, ...]]
) -> list[list[float]]:
    """Ratings by call and item, as worth plus the effect of the place."""
    place = [{item: p for p, item in enumerate(order)} for order in orders]
    return [[w + effects[at[i]] for i, w in enumerate(worths)] for at in place]


@given(st.lists(share, min_size=1, max_size=8), st.integers(0, 999))
def test_one_call_is_taken_as_it_is(ratings: list[float], seed: int) -> None:
    assert fit([ratings], balanced(len(ratings), 1, seed)) == pytest.approx(ratings)


@given(
    st.lists(st.floats(0.3, 0.7), min_size=2, max_size=8),
    st.lists(st.floats(-0.1, 0.1), min_size=8, max_size=8),
    st.integers(0, 999),
)
def test_a_whole_design_gives_the_planted_order_back(
    worths: list[float], effects: list[float], seed: int
) -> None:
    size = len(worths)
    orders = list(balanced(size, 2 * size, seed))
    effects = effects[:size]
    middle = sum(effects) / size
    found = fit(rated(worths, effects, orders), orders)
    assert found == pytest.approx([worth + middle for worth in worths])


@given(st.lists(st.floats(0.3, 0.7), min_size=2, max_size=8), st.floats(-0.05, 0.05), st.integers())
def test_a_pair_of_orders_cancels_a_bias_that_grows_with_the_place(
    worths: list[float], slope: float, seed: int
) -> None:
    size = len(worths)
    orders = list(balanced(size, 2, seed))
    effects = [slope * (place - (size - 1) / 2) for place in range(size)]
    assert fit(rated(worths, effects, orders), orders) == pytest.approx(worths)


@given(st.lists(st.lists(share, min_size=4, max_size=4), min_size=1, max_size=6), st.integers())
def test_it_solves_the_normal_equations(ratings: list[list[float]], seed: int) -> None:
    """Where nothing is clipped, residuals sum to zero by item, and to the ridge by place."""
    squeezed = [[0.4 + 0.2 * one for one in row] for row in ratings]
    orders = balanced(4, len(ratings), seed)
    worths = fit(squeezed, orders)
    left = [[squeezed[r][item] - worths[item] for item in order] for r, order in enumerate(orders)]
    effects = [sum(column) / (len(orders) + RIDGE) for column in zip(*left, strict=True)]
    for item, worth in enumerate(worths):
        seen = [
            row[item] - effects[order.index(item)]
            for row, order in zip(squeezed, orders, strict=True)
        ]
        assert worth == pytest.approx(sum(seen) / len(seen), abs=1e-6)


def test_with_an_odd_number_of_calls_it_beats_the_mean() -> None:
    rng = random.Random(3)
    fitted, plain = 0.0, 0.0
    for seed in range(200):
        worths = [rng.uniform(0.3, 0.7) for _ in range(4)]
        orders = list(balanced(4, 3, seed))
        ratings = [
            [one + rng.gauss(0.0, 0.03) for one in row]
            for row in rated(worths, [0.2, 0.1, 0.05, 0.0], orders)
        ]
        means = [sum(column) / 3 for column in zip(*ratings, strict=True)]
        fitted += spread(fit(ratings, orders), worths)
        plain += spread(means, worths)
    assert fitted < 0.5 * plain


def spread(found: list[float], worths: list[float]) -> float:
    """The variance of the errors, whatever they have in common."""
    errors = [a - b for a, b in zip(found, worths, strict=True)]
    middle = sum(errors) / len(errors)
    return sum((error - middle) ** 2 for error in errors)


def test_worths_stay_in_the_range_of_ratings() -> None:
    orders = balanced(2, 3, 0)
    found = fit([[1.0, 0.0], [1.0, 0.9], [0.0, 0.0]], orders)
    assert all(0.0 <= worth <= 1.0 for worth in found)
