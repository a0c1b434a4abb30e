"""Means, paired differences and intervals over problems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.stats import bounds, columns, crossed, difference, interval, mean, ranged, share

ROWS = st.dictionaries(
    st.sampled_from("abcd"),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
    min_size=1,
)


@given(ROWS)
def test_an_arm_does_not_differ_from_itself(rows: dict[str, list[float]]) -> None:
    apart = difference(rows, rows)
    assert mean(apart) == 0.0
    assert {figure for row in apart.values() for figure in row} == {0.0}


def test_problems_count_alike_however_many_seeds_they_have() -> None:
    assert mean({"a": [1.0, 0.0], "b": [1.0]}) == pytest.approx(0.75)


def test_the_interval_covers_the_mean_and_narrows_with_problems() -> None:
    few = {str(i): [float(i % 2)] for i in range(10)}
    many = {str(i): [float(i % 2)] for i in range(200)}
    low, high = bounds(few)
    assert low < 0.5 < high
    assert bounds(many)[1] - bounds(many)[0] < (high - low) / 3
    assert interval({"a": [0.25], "b": [0.25]}) == "0.250 [0.250, 0.250]"


def test_a_crossed_interval_also_has_the_spread_of_seeds() -> None:
    seeds = {str(i): [0.2, 0.8] for i in range(10)}
    assert bounds(seeds) == (0.5, 0.5)
    assert (crossed(seeds).low, crossed(seeds).high) == pytest.approx((0.2, 0.8))
    problems = {str(i): [float(i % 2)] * 3 for i in range(40)}
    assert crossed(problems).mean == 0.5
    found = crossed(problems).low, crossed(problems).high
    assert found == pytest.approx(bounds(problems), abs=0.02)


def test_figures_as_text() -> None:
    assert ranged([3.0, 1.0, 8.0], ".1f") == "**3.0** (1.0 to 8.0)"
    assert share(5, 10) == "50.0% (23.7% to 76.3%)"


def test_a_table_has_the_headings_that_its_rows_name() -> None:
    rows = [{"way": "ours", "s": "1"}, {"way": "theirs", "s": "2"}]
    assert columns(rows).splitlines() == [
        "| way | s |",
        "| --- | ---: |",
        "| ours | 1 |",
        "| theirs | 2 |",
    ]
    assert columns([]) == "No rows."
