"""Drawn instances are valid for the schemas that pydantic makes, whatever the types."""

from __future__ import annotations

import json
import random
from itertools import count
from types import GenericAlias
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, create_model

from orchestry.core.errors import ProviderError
from orchestry.models.fake import instance
from tests.models.conftest import SCHEMA, Verdict

_numbers = count()


def bounded(kind: type, low: int, more: int, *, lower: bool, upper: bool) -> Any:
    """An annotation of a number or a length with any of its bounds."""
    names = ("ge", "le") if kind in (int, float) else ("min_length", "max_length")
    low = low if names[0] == "ge" else abs(low)
    bounds: dict[str, Any] = {names[0]: low} if lower else {}
    bounds |= {names[1]: low + more} if upper else {}
    return Annotated[kind, Field(**bounds)]


def many(item: Any, low: int, more: int) -> Any:
    return Annotated[GenericAlias(list, (item,)), Field(min_length=low, max_length=low + more)]


def model(parts: list[Any]) -> Any:
    fields: dict[str, Any] = {f"part_{i}": (part, ...) for i, part in enumerate(parts)}
    return create_model(f"Model{next(_numbers)}", **fields)


def plain() -> st.SearchStrategy[Any]:
    whole = st.integers(-(1 << 63), (1 << 63) - 1)  # pydantic compares no longer ones
    choices = st.lists(st.one_of(whole, st.text(), st.booleans()), min_size=1, max_size=4)
    return st.one_of(
        st.sampled_from([bool, None]),
        choices.map(lambda values: Literal[tuple(values)]),
        st.builds(
            bounded,
            st.sampled_from([int, float, str]),
            st.integers(-40, 40),
            st.integers(0, 40),
            lower=st.booleans(),
            upper=st.booleans(),
        ),
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.builds(many, inner, st.integers(0, 3), st.integers(0, 3))
    either = st.tuples(inner, inner).map(lambda it: it[0] | it[1] if None not in it else it[0])
    return st.one_of(lists, either, st.lists(inner, min_size=1, max_size=4).map(model))


@given(kind=st.recursive(plain(), nested, max_leaves=8), seed=st.integers(0, 1 << 32))
def test_every_instance_is_valid(kind: Any, seed: int) -> None:
    adapter = TypeAdapter[Any](kind)
    drawn = instance(adapter.json_schema(), random.Random(seed))
    adapter.validate_json(json.dumps(drawn), strict=True)


def test_all_values_of_an_enum_are_drawn_and_a_seed_repeats() -> None:
    first = [instance(SCHEMA, random.Random(seed)) for seed in range(60)]
    assert first == [instance(SCHEMA, random.Random(seed)) for seed in range(60)]
    assert {drawn["grade"] for drawn in first} == {1, 2, 3}
    assert all(Verdict.model_validate(drawn) for drawn in first)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "a+"}, "keyword 'pattern'"),
        ({"type": "tuple"}, "type 'tuple'"),
        ({"$ref": "#/$defs/Gone"}, "reference '#/\\$defs/Gone'"),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"items": {"$ref": "#/$defs/A"}, "type": "array", "minItems": 1}},
            },
            "RecursionError",
        ),
        ({"type": "object", "properties": 5}, "AttributeError"),
        ({"type": "array", "items": False, "minItems": 1}, "TypeError"),
    ],
)
def test_what_it_leaves_out_is_named(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ProviderError, match=rf"{says}.*provider\.fake\.script") as info:
        instance(schema, random.Random(0))
    assert (info.value.transient, info.value.refused) == (False, True)


def test_parts_may_be_anything_or_of_several_types() -> None:
    schema = {"properties": {"any": True, "none": {}, "two": {"type": ["integer", "null"]}}}
    drawn = [instance(schema, random.Random(seed)) for seed in range(20)]
    assert all(isinstance(one["any"], str) and isinstance(one["none"], str) for one in drawn)
    assert {type(one["two"]) for one in drawn} == {int, type(None)}
