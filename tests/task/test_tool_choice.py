"""`tool_choice` and token limits, as a program's address reads them in each vendor's format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.tools import ANY
from orchestry.core.types import Request
from orchestry.task.programs import wire
from orchestry.task.programs.agent_task import Ask
from orchestry.task.programs.host import KINDS

CHAT, MESSAGES, RESPONSES = (
    next(kind for kind in KINDS if kind.path == path)
    for path in ("/chat/completions", "/messages", "/responses")
)
FORMS: dict[wire.Kind, Callable[[str], dict[str, Any]]] = {
    CHAT: lambda name: {"type": "function", "function": {"name": name}},
    MESSAGES: lambda name: {"name": name, "input_schema": {"type": "object"}},
    RESPONSES: lambda name: {"type": "function", "name": name},
}
"""A tool as each format tells it."""
NAMES = ("price", "final_answer", "required")


def read(kind: wire.Kind, **body: Any) -> Ask:
    told = {"messages": [{"role": "user", "content": "a"}], "input": "a"}
    return kind.read("writer", {**told, "tools": [*map(FORMS[kind], NAMES)], **body})


def few(kind: wire.Kind, mode: str) -> dict[str, Any]:
    """Some of the tools, as OpenAI's two formats tell them."""
    found = {"mode": mode, "tools": [*map(FORMS[kind], NAMES[:2])]}
    return {"type": "allowed_tools", **({"allowed_tools": found} if kind is CHAT else found)}


@pytest.mark.parametrize(
    ("kind", "choice", "must_call"),
    [
        *((kind, word, "") for kind in (CHAT, RESPONSES) for word in (None, "auto", "none")),
        *((kind, word, ANY) for kind in (CHAT, RESPONSES) for word in ("required", "any")),
        *((MESSAGES, {"type": word}, "") for word in ("auto", "none")),
        (MESSAGES, {"type": "any", "disable_parallel_tool_use": True}, ANY),
        (MESSAGES, {"type": "tool", "name": "required"}, "required"),
        (CHAT, FORMS[CHAT]("price"), "price"),
        (RESPONSES, FORMS[RESPONSES]("price"), "price"),
    ],
)
def test_a_choice_is_read_in_each_vendors_form(
    kind: wire.Kind, choice: Any, must_call: str
) -> None:
    ask = read(kind, tool_choice=choice)
    assert ask.must_call == must_call
    assert [one.name for one in ask.tools] == [*NAMES]
    assert ask.must_answer == ("none" in str(choice) and choice is not None)


@pytest.mark.parametrize("kind", [CHAT, RESPONSES])
@pytest.mark.parametrize(("mode", "must_call"), [("auto", ""), ("required", ANY)])
def test_of_some_allowed_tools_no_other_is_offered(
    kind: wire.Kind, mode: str, must_call: str
) -> None:
    ask = read(kind, tool_choice=few(kind, mode))
    assert [one.name for one in ask.tools] == ["price", "final_answer"]
    assert ask.must_call == must_call


@pytest.mark.parametrize("kind", [*FORMS])
@pytest.mark.parametrize(
    "choice",
    [5, [], True, "price", {}, {"type": []}, {"type": "function"}, {"type": "tool"},
     {"type": "function", "function": {"name": "other"}}, {"type": "tool", "name": ["price"]},
     {"type": "web_search"}, {"type": "allowed_tools"}, {"type": "allowed_tools", "mode": "auto",
     "tools": [{"type": "mcp"}]}, {"type": {"type": "auto"}}, "x" * 10_000],
)  # fmt: skip
def test_a_choice_that_is_none_is_refused_in_one_line(kind: wire.Kind, choice: Any) -> None:
    with pytest.raises(wire.Unreadable, match="tool") as info:
        read(kind, tool_choice=choice)
    assert len(str(info.value)) < 400
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("kind", [*FORMS])
def test_no_call_can_be_forced_without_tools(kind: wire.Kind) -> None:
    for choice in ("required", {"type": "any"}):
        with pytest.raises(wire.Unreadable, match="required"):
            read(kind, tool_choice=choice, tools=[])


JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.sampled_from(["auto", "any", "required", "function", "tool", "allowed_tools", *NAMES]),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "function", "mode", "tools", "allowed_tools"]), part
        )
    ),
    max_leaves=8,
)


@given(kind=st.sampled_from([*FORMS]), choice=JSON, tools=st.none() | JSON, limit=JSON)
def test_whatever_a_program_sends_is_read_or_refused(
    kind: wire.Kind, choice: Any, tools: Any, limit: Any
) -> None:
    """What is read fits the tools; what isn't costs one line, and no field of the call changes."""
    name = "max_output_tokens" if kind is RESPONSES else "max_tokens"
    body = {"tool_choice": choice, name: limit, **({} if tools is None else {"tools": tools})}
    before, why, ask = json.dumps(body), "", None
    try:
        ask = read(kind, **body)
    except wire.Unreadable as error:
        why = str(error)
    assert json.dumps(body) == before
    assert (ask is None) == (len(why.splitlines()) == 1)
    assert len(why) < 400
    if ask is None:
        return
    names = [one.name for one in ask.tools]
    assert ask.must_call in ("", *([ANY] if names else []), *names)
    assert not (ask.must_call and ask.must_answer)
    assert ask.max_tokens is None or ask.max_tokens > 0
    told = {"messages": ask.messages, "tools": ask.tools, "must_call": ask.must_call}
    request = Request.model_validate({"agent": "writer", "model": "m", "max_tokens": 9, **told})
    some = ask.must_call not in ("", ANY)
    assert {one.name for one in request.offered} == ({ask.must_call} if some else {*names})


@pytest.mark.parametrize("limit", [-1, 0, None])
def test_limits_that_mean_none_are_no_limits(limit: int | None) -> None:
    assert read(CHAT, max_tokens=limit, max_completion_tokens=limit).max_tokens is None
    assert read(CHAT, max_tokens=7, max_completion_tokens=limit).max_tokens == 7
    assert read(MESSAGES, max_tokens=limit).max_tokens is None
    assert read(RESPONSES, max_output_tokens=limit).max_tokens is None
