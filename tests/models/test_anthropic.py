"""What is sent to the Messages API, what is read from it, and when its cache is marked."""

from __future__ import annotations

from typing import Any

import pytest

from orchestry.core.tools import ToolCall
from orchestry.core.types import Message
from tests.models.conftest import ANTHROPIC_ANSWER, KEY, at, failure, request
from tests.models.loopback import events, reply, serving

LONG = "word " * 5000
START: dict[str, Any] = {
    "type": "message_start",
    "message": {**ANTHROPIC_ANSWER, "content": [], "usage": {"input_tokens": 7}},
}
BLOCK: dict[str, Any] = {
    "type": "content_block_start",
    "index": 0,
    "content_block": {"type": "text", "text": ""},
}
END: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "max_tokens"},
    "usage": {"output_tokens": 3},
}
STOP: dict[str, Any] = {"type": "message_stop"}


def delta(text: str) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }


@pytest.mark.slow
async def test_an_answer_with_its_usage() -> None:
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(request(stop=("END",)))
    assert (answer.text, answer.stop, answer.model, answer.usd) == ("Hello", "end", "m", 0.0)
    assert (answer.input_tokens, answer.output_tokens) == (130, 5)
    assert (answer.cached_tokens, answer.cache_write_tokens) == (100, 20)
    assert server.paths == ["/v1/messages"]
    assert KEY in server.heads[0]
    assert server.bodies == [
        {
            "model": "m",
            "max_tokens": 16,
            "system": "Be brief",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Say hi"}]}],
            "stop_sequences": ["END"],
        }
    ]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("max_tokens", "length"),
        ("stop_sequence", "stop"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
    ],
)
async def test_stop_reasons(reason: str, stop: str) -> None:
    raw = reply({**ANTHROPIC_ANSWER, "stop_reason": reason})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        assert (await provider.complete(request())).stop == stop


async def test_samples_differ_after_the_shared_prefix_only() -> None:
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        for index in range(20):
            await provider.complete(
                request(LONG, sample_index=index, model="claude-sonnet-5"), shared=True
            )
    blocks = [body["messages"][0]["content"] for body in server.bodies]
    shared = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}
    assert all(content[0] == shared for content in blocks)
    angles = [content[1]["text"] for content in blocks[1:]]
    assert len(blocks[0]) == 1
    assert len(set(angles)) == 19


async def test_a_system_prompt_long_enough_has_a_mark_of_its_own() -> None:
    """So other states of the same agent read what this one wrote, at no charge to this one."""
    mark = {"cache_control": {"type": "ephemeral"}}
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        for system in (LONG, "Be brief"):
            messages = (Message(role="system", content=system), Message(role="user", content=LONG))
            asked = request(model="claude-sonnet-5", messages=messages)
            await provider.complete(asked, shared=True)
            await provider.complete(asked)
    long, alone, short, _ = server.bodies
    assert long["system"] == [{"type": "text", "text": LONG, **mark}]
    assert (alone["system"], short["system"]) == (LONG, "Be brief")
    assert [str(b["messages"]).count("cache_control") for b in server.bodies] == [1, 0, 1, 0]


async def test_a_prompt_too_short_for_the_cache_is_not_marked() -> None:
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        await provider.complete(request(model="claude-sonnet-5"), shared=True)
    assert "cache_control" not in str(server.bodies)


@pytest.mark.parametrize(
    ("model", "size", "leads"),
    [
        ("claude-sonnet-5", 1024 * 5, True),
        ("claude-sonnet-4-5-20250929", 1024 * 5, True),
        ("claude-sonnet-5", 1000 * 5, False),
        ("claude-haiku-5-5", 4000 * 5, False),
        ("claude-haiku-5-5", 4096 * 5, True),
        ("some-other", 4096 * 5, True),
    ],
)
def test_it_leads_only_where_the_minimum_is_surely_reached(
    model: str, size: int, leads: bool
) -> None:
    asked = request(model=model, messages=(Message(role="user", content="x" * size),))
    assert at("anthropic", "http://127.0.0.1:1").leads(asked) is leads


def test_the_bound_covers_every_byte_and_the_angle() -> None:
    provider = at("anthropic", "http://127.0.0.1:1")
    plain = provider.input_bound(request("ż" * 100))
    assert plain >= 200 + len("Be brief")
    assert provider.input_bound(request("ż" * 100, sample_index=3)) > plain


async def test_an_answer_without_usage_counts_its_worst_case() -> None:
    raw = reply({"content": [{"type": "text", "text": "Hello"}]})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(request())
    assert answer.input_tokens == provider.input_bound(request())
    assert answer.output_tokens == 16


@pytest.mark.parametrize(
    ("usage", "read", "output"),
    [
        ({"input_tokens": 0, "output_tokens": 0}, "bound", 16),
        ({"input_tokens": 5, "output_tokens": 0}, 5, 16),
        ({"input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 2}, 9, 2),
    ],
)
async def test_a_usage_of_nothing_counts_its_worst_case(
    usage: dict[str, int], read: int | str, output: int
) -> None:
    raw = reply({"content": [{"type": "text", "text": "Hello"}], "usage": usage})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(request())
    assert answer.input_tokens == (provider.input_bound(request()) if read == "bound" else read)
    assert answer.output_tokens == output


async def test_an_answer_without_text_may_have_no_output() -> None:
    raw = reply({"content": [], "usage": {"input_tokens": 5, "output_tokens": 0}})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        assert (await provider.complete(request())).output_tokens == 0


async def test_a_stream_without_its_first_event_starts_with_the_next() -> None:
    """Followers wait for the start: a server that leaves the event out must not hold them."""
    started: list[str] = []
    raw = events(BLOCK, delta("Hello"), END, STOP)
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(request(), started=lambda: started.append("now"))
    assert started == ["now"]
    assert answer.text == "Hello"
    assert answer.input_tokens == provider.input_bound(request())


async def test_a_stream_says_when_it_starts_and_gives_the_same_answer() -> None:
    started: list[str] = []
    raw = events(START, BLOCK, delta("Hel"), delta("lo"), END, STOP)
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(request(), started=lambda: started.append("now"))
    assert started == ["now"]
    assert server.bodies[0]["stream"] is True
    assert (answer.text, answer.stop) == ("Hello", "length")
    assert (answer.input_tokens, answer.output_tokens) == (7, 3)


@pytest.mark.parametrize(
    "raw",
    [
        events(START, BLOCK, delta("Hel")),
        events(START, {"type": "error", "error": {"type": "overloaded_error", "message": KEY}}),
        events(START)[:-40],
        reply(b"data: {nonsense\n\n", content_type="text/event-stream"),
        reply(b"\xff\xfe\x00", content_type="text/event-stream"),
        reply({}, 529),
        reply({}, 401),
        b"",
    ],
    ids=["ended early", "error event", "cut", "no json", "no utf-8", "529", "401", "dropped"],
)
async def test_a_stream_that_fails_gives_one_clear_error(raw: bytes) -> None:
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        error = await failure(provider, started=lambda: None)
    assert error.billed == (b"401" not in raw)  # this host is no vendor's own


async def test_a_chat_of_openais_form_is_one_that_claude_takes() -> None:
    """A later word of the system, and a result of no call before it, are said by the user; messages
    without a text are left out."""
    call = ToolCall(id="c", name="f", arguments="{}")
    told = [
        Message(role="system", content="One"),
        Message(role="system", content="Two"),
        Message(role="tool", content="early", call="c"),
        Message(role="user", content=" "),
        Message(role="user", content="Hi"),
        Message(role="assistant", content="", calls=(call,)),
        Message(role="tool", content="", call="c"),
        Message(role="assistant", content=""),
        Message(role="tool", content="odd", call="d"),
        Message(role="assistant", content="So"),
        Message(role="system", content="Stop"),
        Message(role="user", content=""),
    ]
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        await provider.complete(request(messages=tuple(told)))
    body = server.bodies[0]
    assert body["system"] == "One\n\nTwo"
    used = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": ""}
    assert [(one["role"], *one["content"]) for one in body["messages"]] == [
        ("user", text("early")),
        ("user", text("Hi")),
        ("assistant", used),
        ("user", result),
        ("user", text("odd")),
        ("assistant", text("So")),
        ("user", text("Stop")),
        ("user", text("")),  # the vendor's to refuse
    ]


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}
