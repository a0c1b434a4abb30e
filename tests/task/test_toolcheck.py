"""Arguments made of a schema: pydantic takes them back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

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
