"""Servers that answer anything at all: no answer crashes the run, no call loses its arguments, and
no call is charged more than was reserved for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.errors import OrchestryError
from orchestry.core.types import Completion
from orchestry.store.journal import Answered, Event, Lost, Reserved
from tests.models.conftest import ANTHROPIC_ANSWER, OPENAI_ANSWER, request
from tests.models.loopback import events, reply, serving
from tests.models.scripted import Run
from tests.models.test_dialect import opened
from tests.models.test_tool_calls import ADD

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9**9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.text(max_size=6), JSON, max_size=3)
COUNTS = st.none() | st.integers(0, 16) | st.text(max_size=3)
USAGE = st.none() | st.fixed_dictionaries(
    {},
    optional={
        name: COUNTS | st.fixed_dictionaries({}, optional={"reasoning_tokens": COUNTS})
        for name in (
            *("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens"),
            *("output_tokens", "cache_read_input_tokens", "completion_tokens_details"),
        )
    },
)
STATUSES = st.sampled_from([200] * 6 + [400, 413, 422, 429, 500, 529])


@dataclass(frozen=True)
class Made:
    """One answer of a server, and the arguments of the calls in it."""

    raw: bytes
    given: tuple[dict[str, Any], ...] = ()


def _replaced(draw: st.DrawFn, whole: dict[str, Any], spared: tuple[str, ...]) -> dict[str, Any]:
    """With some of its other fields gone or of another type, and some that nobody knows."""
    names = draw(st.sets(st.sampled_from([*whole])))
    odd = {name: draw(JSON) for name in sorted(names - {*spared})}
    return {**draw(OBJECTS), **whole, **odd}


@st.composite
def chats(draw: st.DrawFn) -> Made:
    """An answer of chat completions, or nearly."""
    given = draw(st.lists(OBJECTS, max_size=2))
    calls: list[Any] = [
        {
            **draw(OBJECTS),
            "id": draw(st.none() | st.text(max_size=5)),
            "function": {
                "name": draw(st.sampled_from(["add", "", "a b"])),
                "arguments": one if draw(st.booleans()) else json.dumps(one),
            },
        }
        for one in given
    ]
    text = draw(st.none() | st.text(max_size=8) | JSON | st.just("<think>hm</think>4"))
    message = {"content": text, "refusal": draw(st.none() | st.text(max_size=3))}
    none: Any = draw(JSON)
    message = {**_replaced(draw, message, ()), "tool_calls": calls or none}
    finish = st.sampled_from(["stop", "length", "tool_calls", "error", None, "?"])
    choice = _replaced(draw, {"finish_reason": draw(finish), "message": message}, ("message",))
    body = {**OPENAI_ANSWER, "choices": [choice], "usage": draw(USAGE)}
    return Made(reply(_replaced(draw, body, ("choices", "usage")), draw(STATUSES)), tuple(given))


def _blocks(draw: st.DrawFn, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [
        {**draw(OBJECTS), "type": "tool_use", "id": f"c{n}", "name": "add", "input": one}
        for n, one in enumerate(given)
    ]
    kinds = st.sampled_from(["text", "thinking", "redacted_thinking", "?"])
    others = draw(st.lists(st.fixed_dictionaries({"type": kinds, "text": JSON}), max_size=2))
    return [*others, *found]


@st.composite
def claudes(draw: st.DrawFn) -> Made:
    """A message of Claude's, or nearly."""
    given = draw(st.lists(OBJECTS, max_size=2))
    stop = draw(st.sampled_from(["end_turn", "tool_use", "max_tokens", None, "?"]))
    body = {"content": _blocks(draw, given), "usage": draw(USAGE), "stop_reason": stop}
    odd = _replaced(draw, {**ANTHROPIC_ANSWER, **body}, ("content", "usage"))
    return Made(reply(odd, draw(STATUSES)), tuple(given))


@st.composite
def streams(draw: st.DrawFn) -> Made:
    """The same in events, some of which are missing or odd."""
    given = draw(st.lists(OBJECTS, max_size=2))
    told = list[dict[str, Any]]()
    for index, block in enumerate(_blocks(draw, given)):
        whole = block.get("input")
        pieces = whole is not None and draw(st.booleans())
        begun = {**block, "input": {}} if pieces else block
        told.append({"type": "content_block_start", "index": index, "content_block": begun})
        text = json.dumps(whole)
        for part in (text[:3], text[3:]) if pieces else ():
            delta = {"type": "input_json_delta", "partial_json": part}
            told.append({"type": "content_block_delta", "index": index, "delta": delta})
    start = {"type": "message_start", "message": {"usage": draw(USAGE), **draw(OBJECTS)}}
    end = {"type": "message_delta", "delta": draw(JSON), "usage": draw(USAGE)}
    ends = [{**end, **draw(OBJECTS), "type": "message_delta"}] if draw(st.booleans()) else []
    stop = [{"type": "message_stop"}] if draw(st.booleans()) else []
    kinds = st.sampled_from(["error", "ping", "content_block_delta", "content_block_stop", "?"])
    odd = [{**draw(OBJECTS), "type": draw(kinds)} for _ in range(draw(st.integers(0, 1)))]
    return Made(events(start, *odd, *told, *ends, *stop), tuple(given))


ANYTHING = JSON.map(lambda body: Made(reply(body))) | st.binary(max_size=20).map(Made)


async def _played(vendor: str, made: list[Made], folder: Path, streamed: bool) -> list[Event]:
    """Asks four times, and looks at what comes back; the journal's events."""
    retry = {"attempts": 2, "billed_attempts": 2, "patience_s": 5.0, "base_s": 0.0}
    run = Run(folder, retry=retry, cache={"enabled": False})
    started = (lambda: None) if streamed else None
    async with (
        serving(lambda number: made[number % len(made)].raw) as server,
        opened(server.url, vendor) as provider,
    ):
        for index in range(4):
            async with run.open(provider) as gateway:
                try:
                    asked = request(tools=(ADD,), sample_index=index)
                    answer = await gateway.answer(asked, started=started)
                except OrchestryError:  # it ends the run in order
                    continue
            assert isinstance(answer, Completion)
            if not (answer.failed or answer.void):
                given = made[(len(server.bodies) - 1) % len(made)].given
                assert [call.given for call in answer.calls[: len(given)]] == [*given]
                Completion.model_validate_json(answer.model_dump_json())
    return run.events


def _check(vendor: str, made: list[Made], streamed: bool = False) -> None:
    with TemporaryDirectory() as folder:
        found = asyncio.run(_played(vendor, made, Path(folder), streamed))
    reserved = {one.call: one.usd for one in found if isinstance(one, Reserved)}
    for event in found:
        if isinstance(event, Answered) and event.call is not None:
            assert event.completion.usd <= reserved[event.call] + 1e-12
    lost = [event for event in found if isinstance(event, Lost)]
    assert {event.call for event in lost} <= reserved.keys()


@settings(max_examples=12, deadline=None)
@given(st.lists(chats() | ANYTHING, min_size=3, max_size=6))
def test_a_server_of_chat_completions_that_answers_anything(made: list[Made]) -> None:
    _check("openai", made)


@settings(max_examples=12, deadline=None)
@given(st.lists(claudes() | ANYTHING, min_size=3, max_size=6))
def test_a_server_of_claudes_that_answers_anything(made: list[Made]) -> None:
    _check("anthropic", made)


@settings(max_examples=12, deadline=None)
@given(st.lists(streams() | claudes() | ANYTHING, min_size=3, max_size=6))
def test_a_server_of_streams_that_answers_anything(made: list[Made]) -> None:
    _check("anthropic", made, streamed=True)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(streams(), claudes(), chats(), ANYTHING), min_size=3, max_size=6))
def test_servers_of_all_kinds_answer_anything(made: list[Made]) -> None:
    for vendor, streamed in (("openai", False), ("anthropic", False), ("anthropic", True)):
        _check(vendor, [Made(one.raw) for one in made], streamed)
