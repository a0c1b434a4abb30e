"""Student's t and Wilson's interval against tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.intervals import student_95, wilson


@pytest.mark.parametrize(
    ("freedom", "known"),
    [(1, 12.706), (2, 4.3027), (3, 3.1824), (5, 2.5706), (10, 2.2281), (30, 2.0423), (100, 1.984)],
)
def test_student_is_that_of_the_tables(freedom: float, known: float) -> None:
    assert student_95(freedom) == pytest.approx(known, abs=1e-3)


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e3))
def test_student_falls_with_the_degrees_of_freedom(freedom: float, more: float) -> None:
    assert 1.95996 < student_95(freedom * more) <= student_95(freedom) + 1e-9


def test_wilsons_interval() -> None:
    assert wilson(0.1, 100) == pytest.approx((0.0552, 0.1744), abs=1e-3)
    assert wilson(0.0, 50)[0] == 0.0
    assert wilson(1.0, 50)[1] == pytest.approx(1.0)
