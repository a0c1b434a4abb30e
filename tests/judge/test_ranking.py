"""Orders of presentation, the ranking model on planted worths, and rank correlation."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.judge.ranking import RIDGE, balanced, fit, sign, spearman

sizes, seeds = st.integers(1, 12), st.integers(0, 2**63 - 1)


@given(sizes, st.integers(1, 30), seeds)
def test_every_order_is_a_permutation_and_follows_from_the_seed(
    size: int, repeats: int, seed: int
) -> None:
    orders = balanced(size, repeats, seed)
    assert len(orders) == repeats
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert orders == balanced(size, repeats, seed)
    assert orders == balanced(size, repeats + 3, seed)[:repeats]


@given(sizes, st.integers(1, 10), seeds)
def test_after_each_pair_all_mean_places_are_equal(size: int, pairs: int, seed: int) -> None:
    orders = balanced(size, 2 * pairs, seed)
    places = [sum(order.index(item) for order in orders) for item in range(size)]
    assert places == [pairs * (size - 1)] * size


def design(size: int) -> int:
    """How many orders make a whole Williams design."""
    return size if size % 2 == 0 else 2 * size


@given(sizes, st.integers(1, 3), seeds)
def test_whole_designs_balance_places_and_neighbours(size: int, times: int, seed: int) -> None:
    orders = balanced(size, times * design(size), seed)
    places = Counter((place, item) for order in orders for place, item in enumerate(order))
    assert set(places.values()) == {len(orders) // size}
    assert len(places) == size * size
    neighbours = Counter(pair for order in orders for pair in pairwise(order))
    assert len(neighbours) == size * (size - 1)
    assert len(set(neighbours.values())) <= 1


@given(st.integers(2, 12), st.integers(1, 40), seeds)
def test_at_any_number_no_place_is_an_items_own(size: int, repeats: int, seed: int) -> None:
    orders = balanced(size, repeats, seed)
    places = Counter((place, item) for order in orders for place, item in enumerate(order))
    assert max(places.values()) <= 2 * (repeats // design(size)) + 2


def test_first_orders_are_spread_over_all_permutations() -> None:
    first = Counter(balanced(3, 1, seed)[0] for seed in range(600))
    assert len(first) == 6
    assert min(first.values()) > 60


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


@given(st.lists(st.integers(0, 10), min_size=2, max_size=8), st.integers(0, 999))
def test_equal_ratings_are_equal_worths(points: list[int], seed: int) -> None:
    """To the last bit: what prunes by worth must not see a rounding error."""
    ratings = [point / 10 for point in points]
    assert fit([ratings, ratings], balanced(len(ratings), 2, seed)) == ratings


def test_worths_stay_in_the_range_of_ratings() -> None:
    orders = balanced(2, 3, 0)
    found = fit([[1.0, 0.0], [1.0, 0.9], [0.0, 0.0]], orders)
    assert all(0.0 <= worth <= 1.0 for worth in found)


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
