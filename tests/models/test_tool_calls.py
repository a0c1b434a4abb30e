"""Tools at both vendors: how they are offered, how calls are read, and how results are shown."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from orchestry.core.config import FakeConfig
from orchestry.core.tools import ANY, ToolCall, ToolSpec, tool
from orchestry.core.types import Completion, Step
from orchestry.models.fake import FakeProvider
from orchestry.models.request_key import request_digest
from tests.models.conftest import ANTHROPIC_ANSWER, OPENAI_ANSWER, at, request
from tests.models.loopback import events, reply, serving
from tests.models.test_anthropic import END, START, STOP

ADD = ToolSpec(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}}},
)
MUL = ADD.model_copy(update={"name": "mul"})
CALL = ToolCall(id="call_1", name="add", arguments='{"a": 1}')
ODD = ToolCall(id="call_2", name="add", arguments="{no JSON")
STEP = Step(said=Completion(text="", model="m", calls=(CALL, ODD)), results=("3", "error: odd"))
BLOCK: dict[str, Any] = {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}
SAID: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'},
}


def after(*steps: Step, **fields: Any) -> Any:
    """A request that shows these steps."""
    first = request(tools=(ADD,))
    shown = (one for step in steps for one in step.messages)
    return request(tools=(ADD,), messages=(*first.messages, *shown), **fields)


async def test_claude_is_offered_tools_and_its_call_is_read() -> None:
    text = {"type": "text", "text": "I add."}
    raw = reply({**ANTHROPIC_ANSWER, "content": [text, BLOCK], "stop_reason": "tool_use"})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(after())
    assert (answer.text, answer.stop, answer.calls) == ("I add.", "calls", (CALL,))
    body = server.bodies[0]
    assert body["tools"] == [
        {"name": "add", "description": "Adds.", "input_schema": ADD.parameters},
    ]
    assert "tool_choice" not in body


async def test_openai_is_offered_tools_and_its_call_is_read() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [SAID]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    raw = reply({**OPENAI_ANSWER, "choices": [choice]})
    async with serving(raw) as server, at("openai", server.url) as provider:
        answer = await provider.complete(after())
    assert (answer.text, answer.stop, answer.calls) == ("", "calls", (CALL,))
    body = server.bodies[0]
    assert body["tools"] == [{"type": "function", "function": ADD.model_dump()}]
    assert "tool_choice" not in body


async def test_claude_sees_calls_and_results() -> None:
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        await provider.complete(after(STEP, must_answer=True))
    said, told = server.bodies[0]["messages"][1:]
    assert said == {"role": "assistant", "content": [BLOCK, {**BLOCK, "id": "call_2", "input": {}}]}
    assert told == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "3"},
            {"type": "tool_result", "tool_use_id": "call_2", "content": "error: odd"},
        ],
    }
    assert server.bodies[0]["tool_choice"] == {"type": "none"}


async def test_openai_sees_calls_and_results() -> None:
    async with serving(reply(OPENAI_ANSWER)) as server, at("openai", server.url) as provider:
        await provider.complete(after(STEP, must_answer=True))
    said, *told = server.bodies[0]["messages"][2:]
    odd = {**SAID, "id": "call_2", "function": {"name": "add", "arguments": "{}"}}
    assert said == {"role": "assistant", "content": "", "tool_calls": [SAID, odd]}
    assert told == [
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
        {"role": "tool", "content": "error: odd", "tool_call_id": "call_2"},
    ]
    assert server.bodies[0]["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("must_call", "openai", "claude"),
    [
        (ANY, "required", {"type": "any"}),
        (
            "add",
            {"type": "function", "function": {"name": "add"}},
            {"type": "tool", "name": "add"},
        ),
    ],
)
async def test_a_call_that_must_be_made_is_asked_for_in_each_vendors_form(
    must_call: str, openai: Any, claude: Any
) -> None:
    asked = request(tools=(ADD, MUL), must_call=must_call)
    alone = 2 if must_call == ANY else 1  # some servers of OpenAI's API ignore tool_choice
    for name, raw, choice, offered in (
        ("openai", OPENAI_ANSWER, openai, alone),
        ("anthropic", ANTHROPIC_ANSWER, claude, 2),
    ):
        async with serving(reply(raw)) as server, at(name, server.url) as provider:
            await provider.complete(asked)
        assert server.bodies[0]["tool_choice"] == choice
        assert len(server.bodies[0]["tools"]) == offered


@pytest.mark.parametrize(
    "words",
    [
        "deepseek-reasoner does not support this tool_choice",
        "The tool_choice parameter does not support being set to required or object in thinking",
        "Invalid tool_choice",
        "Tool choice must be auto",
    ],
)
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"must_call": ANY}, ["add", "mul"]),
        ({"must_call": "mul"}, ["mul"]),
        ({"must_answer": True}, None),
    ],
)
async def test_a_server_that_knows_no_choice_is_offered_what_may_be_called(
    words: str, fields: dict[str, Any], names: list[str] | None
) -> None:
    def answer(number: int) -> bytes:
        if "tool_choice" in server.bodies[number]:
            return reply({"error": {"message": words}}, 400)
        return reply(OPENAI_ANSWER)

    said = list[str]()
    async with serving(answer) as server, at("openai", server.url) as provider:
        provider.warn = said.append  # type: ignore[attr-defined]
        for _ in range(2):
            await provider.complete(request(tools=(ADD, MUL), **fields))
    offered = [body.get("tools") for body in server.bodies[1:]]
    found = [one and [tool["function"]["name"] for tool in one] for one in offered]
    assert found == [names, names]
    assert len(said) == 1
    assert "provider.extra_body.tool_choice=null" in said[0]


async def test_no_choice_is_sent_without_tools() -> None:
    """OpenAI refuses one."""
    async with serving(reply(OPENAI_ANSWER)) as server, at("openai", server.url) as provider:
        await provider.complete(request(must_answer=True))
    assert "tool_choice" not in server.bodies[0]


async def test_the_fake_provider_calls_what_it_must() -> None:
    provider = FakeProvider(FakeConfig(), seed=0)
    for place in range(20):
        asked = request(tools=(ADD, MUL), must_call="mul", sample_index=place)
        assert [one.name for one in (await provider.complete(asked)).calls] == ["mul"]


async def test_each_call_of_claude_continues_the_prompt_before_it() -> None:
    """So the vendor's cache is read, whichever sample's angle is in it."""
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        for steps in ((), (STEP,), (STEP, STEP)):
            await provider.complete(after(*steps, sample_index=3))
    sent = [body["messages"] for body in server.bodies]
    assert sent[1][: len(sent[0])] == sent[0]
    assert sent[2][: len(sent[1])] == sent[1]
    assert [len(one) for one in sent] == [1, 3, 5]
    assert "attempt 4" in sent[0][0]["content"][1]["text"]


async def test_a_streamed_call_is_put_together() -> None:
    def piece(text: str) -> dict[str, Any]:
        delta = {"type": "input_json_delta", "partial_json": text}
        return {"type": "content_block_delta", "index": 1, "delta": delta}

    begun = {"type": "content_block_start", "index": 1, "content_block": {**BLOCK, "input": {}}}
    raw = events(START, begun, piece('{"a"'), piece(": 1}"), END, STOP)
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(after(), started=lambda: None)
    assert answer.calls == (CALL,)


@pytest.mark.parametrize("calls", ["odd", [3], [{}], [{"function": {"name": 3}}]])
async def test_calls_that_are_none_are_read_as_text(calls: Any) -> None:
    message = {"role": "assistant", "content": "Hello", "tool_calls": calls}
    raw = reply({**OPENAI_ANSWER, "choices": [{"index": 0, "message": message}]})
    async with serving(raw) as server, at("openai", server.url) as provider:
        answer = await provider.complete(after())
    assert all((one.name, one.arguments) == ("", "") for one in answer.calls)


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_the_bound_covers_tools_calls_and_results(vendor: Any) -> None:
    provider = at(vendor, "http://127.0.0.1:1")
    plain, offered = provider.input_bound(request()), provider.input_bound(after())
    assert offered >= plain + len(json.dumps(ADD.model_dump()))
    long = "x" * 1000
    call = CALL.model_copy(update={"arguments": long})
    step = Step(said=Completion(text=long, model="m", calls=(call,)), results=(long,))
    assert provider.input_bound(after(step)) >= offered + 3000


def test_requests_without_tools_have_the_digests_they_had() -> None:
    """Else journals and caches of earlier versions would be useless."""
    assert request_digest(request()) == "3119575a6f2983c81d25e64a35e1d2d7"
    assert request_digest(after()) != request_digest(request())
    assert request_digest(after(must_answer=True)) != request_digest(after())
    assert request_digest(after()) == "9e394e11601913e335a931750a8f392f"
    assert request_digest(after(must_call=ANY)) != request_digest(after())


async def test_the_loop_reads_and_writes_claudes_cache() -> None:
    long = request("word " * 5000, model="claude-sonnet-5", tools=(ADD,))
    chat = (*long.messages, *STEP.messages)
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        for messages in (long.messages, chat):
            asked = long.model_copy(update={"messages": messages, "sample_index": 1})
            await provider.complete(asked, shared=True)
    sent = [body["messages"] for body in server.bodies]
    marked = [[["cache_control" in b for b in m["content"]] for m in one] for one in sent]
    assert marked[0] == [[True, False]]
    assert marked[1] == [[True, False], [False, False], [False, True]]


async def test_the_fake_model_calls_tools_of_any_type() -> None:
    def book(day: date, notes: dict[str, int], more: tuple[int, ...] = ()) -> str:
        """Books."""
        return ""

    provider = FakeProvider(FakeConfig(), 0)
    asked = [request(tools=(tool(book).spec,), sample_index=n) for n in range(20)]
    answers = [await provider.complete(one) for one in asked]
    assert any(one.calls for one in answers)
    assert any(one.text for one in answers)
