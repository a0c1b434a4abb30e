"""Arguments made of a schema: pydantic takes them back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from orchestry.core.errors import TaskError
from orchestry.task.toolcheck import example


class Node(BaseModel):
    name: str
    children: list[Node]
    next: Node | None


class Shape(BaseModel):
    corners: Annotated[list[Annotated[int, Field(gt=4, lt=9)]], Field(min_length=2)]
    kind: Literal["square", "circle"]
    owner: Node | None


@pytest.mark.parametrize(
    "kind",
    [
        str,
        Annotated[str, Field(min_length=5)],
        int,
        Annotated[int, Field(ge=7)],
        Annotated[int, Field(le=-2)],
        Annotated[float, Field(gt=0, lt=1)],
        bool,
        None,
        Literal["only"],
        int | str,
        list[str],
        dict[str, int],
        tuple[int, str],
        Node,
        Shape,
        Any,
    ],
)
def test_an_example_is_of_its_type(kind: Any) -> None:
    adapter = TypeAdapter[Any](kind)
    schema = adapter.json_schema()
    adapter.validate_python(example(schema, schema))


A: dict[str, Any] = {"type": "string"}


@pytest.mark.parametrize(
    ("part", "more", "found"),
    [
        ({"$ref": "#/definitions/A"}, {"definitions": {"A": A}}, "1"),
        ({"$ref": "#/properties/other"}, {}, 1),
        ({"$ref": "#/definitions/a~1b%20~0"}, {"definitions": {"a/b ~": A}}, "1"),
        ({"$ref": "#/definitions/A/anyOf/1"}, {"definitions": {"A": {"anyOf": [{}, A]}}}, "1"),
        ({"type": ["integer", "null"]}, {}, 1),
        (True, {}, "1"),
    ],
)
def test_schemas_of_others_have_examples(part: Any, more: dict[str, Any], found: Any) -> None:
    """As MCP servers write them."""
    properties = {"given": part, "other": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["given"], **more}
    assert example(schema, schema) == {"given": found}


@pytest.mark.parametrize(
    "pointer", ["#/definitions/A", "#/type/0/x", "http://127.0.0.1/a", "A", "#place", "#a/type"]
)
def test_a_reference_that_leads_nowhere_is_named(pointer: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": pointer}}, "required": ["a"]}
    with pytest.raises(TaskError, match=f"refers to '{pointer}'"):
        example(schema, schema)


@pytest.mark.parametrize("pointer", ["#", "#/properties/a"])
def test_a_reference_into_itself_is_named(pointer: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": pointer}}, "required": ["a"]}
    with pytest.raises(TaskError, match=f"needs '{pointer}' within itself"):
        example(schema, schema)
