"""Tagged JSON keeps exact types, and refuses what is no plain data."""

from __future__ import annotations

import collections
import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.sandbox.inside import tagged
from orchestry.task.code import compare

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    st.binary(),
)
KEYS = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner), max_leaves=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.sets(KEYS),
        st.frozensets(KEYS),
        st.dictionaries(KEYS, inner),
    ),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_survives_with_its_types(value: Any) -> None:
    assert compare(value, tagged.loads(tagged.dumps(value)), tolerance=0.0)


@given(st.binary() | st.text().map(str.encode))
def test_hostile_bytes_are_refused_or_decoded(data: bytes) -> None:
    with contextlib.suppress(tagged.Untaggable):
        tagged.loads(data)


def test_huge_integers_pass() -> None:
    assert tagged.loads(tagged.dumps(10**6000)) == 10**6000


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[[]]", b"{}", b'["s",[["l",[]]]]', b'["?",0]'])
def test_text_that_is_no_tagged_json(data: bytes) -> None:
    with pytest.raises(tagged.Untaggable):
        tagged.loads(data)


@pytest.mark.parametrize("value", [object(), collections.Counter(), range(3), 1j, bytearray()])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(tagged.Untaggable, match=type(value).__name__):
        tagged.dumps(value)


def test_a_list_inside_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(tagged.Untaggable, match="nested deeper"):
        tagged.dumps(ring)


@pytest.mark.parametrize(
    ("expected", "value", "equal"),
    [
        (1, True, False),
        (True, 1, False),
        (1, 1.0, False),
        (1.0, 1, True),
        (0.3, 0.1 + 0.2, True),
        (1e20, 1e20 * (1 + 1e-12), True),
        (0.3, 0.31, False),
        (math.nan, math.nan, True),
        (math.inf, -math.inf, False),
        (1.0, 10**400, False),
        ([1, 2], (1, 2), False),
        ([1, 2], [1, 2, 3], False),
        ([[0.3]], [[0.1 + 0.2]], True),
        ({1}, {True}, False),
        ({1, 2}, {2, 1}, True),
        ({1}, frozenset({1}), False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({1: "x"}, {True: "x"}, False),
        ({"a": 1}, {"b": 1}, False),
        ("a", b"a", False),
        (None, 0, False),
    ],
)
def test_compare(expected: Any, value: Any, equal: bool) -> None:
    assert compare(expected, value) is equal
