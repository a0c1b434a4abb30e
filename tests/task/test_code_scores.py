"""Only what goes beyond the best constant answer counts; whatever is shown is short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.task.code import best_constant, beyond_chance, shorten, show_call, show_value

COUNTS = st.integers(0, 20)


@pytest.mark.parametrize(
    ("passed", "total", "chance", "worth"),
    [
        (10, 10, 4, 1.0),
        (7, 10, 4, 0.5),
        (4, 10, 4, 0.0),
        (0, 10, 4, 0.0),
        (3, 3, 3, 1.0),
        (2, 3, 3, 0.0),
        (0, 0, 0, 0.0),
    ],
)
def test_tests_count_beyond_chance(passed: int, total: int, chance: int, worth: float) -> None:
    assert beyond_chance(passed, total, chance) == worth


@given(COUNTS, COUNTS, COUNTS)
def test_more_tests_are_never_worth_less(passed: int, total: int, chance: int) -> None:
    if passed < total:
        worth = [beyond_chance(count, total, chance) for count in (passed, passed + 1)]
        assert 0.0 <= worth[0] <= worth[1] <= 1.0


def test_the_best_constant_is_the_commonest_value() -> None:
    assert best_constant([1, 2, 2.0, [2], 2]) == 3  # 2, also where 2.0 is expected
    assert best_constant([2.0, True, 2.5]) == 1
    assert best_constant([True, 1, True]) == 2
    assert best_constant([]) == 0


@given(st.lists(st.integers()), st.integers(1, 200))
def test_what_is_shown_is_short(value: list[int], most: int) -> None:
    text = show_value(value, most)
    assert text == repr(value) or text == f"{repr(value)[:most]}..."
    assert shorten(text, most + 3) == text


def test_a_call_is_shown_as_it_is_written() -> None:
    assert show_call("f", [[1], "a", None]) == "f([1], 'a', None)"
    assert show_call("f", ["x" * 200, 1]) == f"f('{'x' * 119}..., 1)"
    assert "too long to print" in show_call("f", [[10**5000]])
