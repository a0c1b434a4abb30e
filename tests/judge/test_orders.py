"""Orders of presentation: no place and no neighbour is an item's own."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orchestry.judge.orders import balanced

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
