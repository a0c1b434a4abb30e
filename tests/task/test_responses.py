"""OpenAI's Responses API as a program's address reads and writes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.extras import packed
from orchestry.core.tools import ToolCall
from orchestry.core.types import Completion, Message
from orchestry.task.programs.responses import RESPONSES

CALLS = tuple(ToolCall(id=f"c{n}", name="look", arguments="{}") for n in range(2))


def read(*items: Any, **body: Any) -> list[tuple[str, str, int]]:
    """Role, text and number of calls of each message."""
    ask = RESPONSES.read("writer", {"input": [*items], **body})
    return [(one.role, one.content, len(one.calls)) for one in ask.messages]


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


def called(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def test_calls_and_the_text_beside_them_are_one_message() -> None:
    result = {"type": "function_call_output", "call_id": "c0", "output": "three"}
    found = read(said("a", "user"), said("b"), called("c0"), called("c1"), result, said("c"))
    assert found[:2] == [("user", "a", 0), ("assistant", "b", 2)]
    assert found[2:] == [("tool", "three", 0), ("assistant", "c", 0)]


def test_texts_of_several_agents_stay_apart() -> None:
    found = read(said("a", "user"), said("mine"), said("another's"), instructions="Be brief.")
    assert [text for _, text, _ in found] == ["Be brief.", "a", "mine", "another's"]


def test_thoughts_are_left_out_and_a_refusal_is_text() -> None:
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    found = read(said("a", "user"), {"type": "reasoning", "summary": []}, refused)
    assert found[1:] == [("assistant", "No.", 0)]


added = st.dictionaries(
    st.sampled_from(["reasoning_content", "thinking_blocks", "extra_content", "x"]),
    st.text(min_size=1) | st.lists(st.dictionaries(st.just("signature"), st.text()), min_size=1),
).map(packed)


@settings(max_examples=40)
@given(st.text(), added, st.lists(added, max_size=3), st.booleans())
def test_what_a_server_added_comes_back_with_its_message(
    text: str, extra: str, signed: list[str], streamed: bool
) -> None:
    calls = [
        ToolCall(id=f"c{n}", name="look", arguments="{}", extra=one) for n, one in enumerate(signed)
    ]
    answer = Completion(text=text, model="m", calls=tuple(calls), extra=extra)
    if streamed:
        events = [json.loads(one.partition("data: ")[2]) for one in RESPONSES.stream(answer, {})]
        output = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    else:
        output = RESPONSES.answer(answer, {})["output"]
    before, after = said("a", "user"), said("b", "user")
    ask = RESPONSES.read("writer", {"input": [before, *output, after]})
    assert [one.role for one in ask.messages] == ["user", "assistant", "user"]
    assert ask.messages[1] == Message(
        role="assistant", content=text, calls=tuple(calls), extra=extra
    )
    assert not ask.messages[2].extra


def test_thoughts_of_others_are_left_out() -> None:
    theirs = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    ask = RESPONSES.read("writer", {"input": [said("a", "user"), theirs, said("b")]})
    assert [one.extra for one in ask.messages] == ["", ""]


@pytest.mark.parametrize(("limit", "status"), [(None, "completed"), (5, "incomplete")])
def test_an_answer_is_incomplete_only_by_the_programs_own_limit(
    limit: int | None, status: str
) -> None:
    cut = Completion(text="so it", model="m", stop="length")
    body = {"max_output_tokens": limit}
    assert RESPONSES.answer(cut, body)["status"] == status
    last = [*RESPONSES.stream(cut, body)][-1]
    assert last.startswith(f"event: response.{status}\n")


def test_an_answer_has_one_id_of_its_own() -> None:
    answer = Completion(text="yes", model="m", calls=CALLS)
    whole = [RESPONSES.answer(answer, {}) for _ in range(2)]
    assert whole[0]["id"] != whole[1]["id"]
    assert whole[0]["output"][0]["id"] != whole[1]["output"][0]["id"]
    events = [json.loads(one.partition("data: ")[2]) for one in RESPONSES.stream(answer, {})]
    assert len({one["response"]["id"] for one in events if "response" in one}) == 1
    assert [one["sequence_number"] for one in events] == [*range(len(events))]
