"""No shape of a server's usage is charged less than its true bill."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.models.usage import Billed, billed
from tests.models.conftest import at, request
from tests.models.loopback import events, reply, serving

BOUND, MOST = 5000, 3000
START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 1},
    },
}
TEXT: list[dict[str, Any]] = [
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
]


def count(usage: object, some: bool = True) -> Billed:
    return billed(usage, BOUND, MOST, some=some)


@pytest.mark.parametrize(
    ("usage", "true"),
    [
        ({"prompt_tokens": 50, "completion_tokens": 2}, (50, 2, 0, 0)),
        ({"prompt_tokens": 50, "completion_tokens": 2, "total_tokens": 452}, (50, 402, 0, 0)),
        (  # OpenAI: thoughts are part of the answer's tokens
            {
                "prompt_tokens": 50,
                "completion_tokens": 402,
                "total_tokens": 452,
                "completion_tokens_details": {"reasoning_tokens": 400},
            },
            (50, 402, 0, 0),
        ),
        (  # more thoughts than answer, and no total: they are beside it
            {
                "prompt_tokens": 50,
                "completion_tokens": 2,
                "completion_tokens_details": {"reasoning_tokens": 400},
            },
            (50, 402, 0, 0),
        ),
        (  # a gateway that keeps Gemini's name
            {"prompt_tokens": 50, "completion_tokens": 2, "thoughtsTokenCount": 400},
            (50, 402, 0, 0),
        ),
        ({"prompt_tokens": 50, "total_tokens": 70}, (50, 20, 0, 0)),
        ({"completion_tokens": 20, "total_tokens": 70}, (50, 70, 0, 0)),
        (
            {"prompt_tokens": 50, "completion_tokens": 2, "prompt_cache_hit_tokens": 48},
            (50, 2, 48, 0),
        ),
        (
            {"input_tokens": 50, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 48}},
            (50, 2, 48, 0),
        ),
        (  # Claude counts what a cache had apart
            {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 45},
            (50, 2, 45, 0),
        ),
        (
            {
                "input_tokens": 5,
                "output_tokens": 2,
                "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 5},
            },
            (50, 2, 0, 45),
        ),
        (  # as litellm tells Claude's cache in OpenAI's form
            {
                "prompt_tokens": 50,
                "completion_tokens": 2,
                "cache_read_input_tokens": 45,
                "cache_creation_input_tokens": 3,
            },
            (50, 2, 45, 3),
        ),
        ({"prompt_tokens": "50", "completion_tokens": 2.0}, (50, 2, 0, 0)),
        (
            {"prompt_tokens": 50, "completion_tokens": 2, "prompt_cache_hit_tokens": 51},
            (101, 2, 51, 0),
        ),
        (  # a gateway that keeps Claude's way to count, under OpenAI's names
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "cache_read_input_tokens": 45,
                "cache_creation_input_tokens": 3,
            },
            (53, 2, 45, 3),
        ),
        (
            {"prompt_tokens": 5, "input_tokens": 5, "output_tokens": 2, "cached_tokens": 45},
            (50, 2, 45, 0),
        ),
        (  # openrouter's name for what was written
            {
                "prompt_tokens": 50,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 40},
            },
            (50, 2, 5, 40),
        ),
        (  # more than was sent: no discount
            {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 2**40},
            (BOUND, 2, 0, 0),
        ),
        ({"prompt_tokens": 50, "completion_tokens": 0}, (50, MOST, 0, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 2}, (BOUND, 2, 0, 0)),
        ({"prompt_tokens": True, "completion_tokens": -2}, (BOUND, MOST, 0, 0)),
        ({}, (BOUND, MOST, 0, 0)),
        (None, (BOUND, MOST, 0, 0)),
        ([7], (BOUND, MOST, 0, 0)),
    ],
)
def test_shapes_of_usage(usage: object, true: tuple[int, int, int, int]) -> None:
    assert count(usage) == true


@st.composite
def usages(draw: st.DrawFn) -> tuple[dict[str, Any], int, int]:
    """A usage in a random shape that implies its true counts, and these: input, output."""
    fresh, read, written = (draw(st.integers(low, 1000)) for low in (1, 0, 0))
    answer, thoughts = draw(st.integers(1, 1000)), draw(st.integers(0, 1000))
    given, beside = fresh + read + written, draw(st.booleans())
    total = {"total_tokens": given + answer + thoughts}
    if draw(st.booleans()):  # Claude's form: no total, and thoughts are part of the answer
        claude = {"input_tokens": fresh, "output_tokens": answer + thoughts}
        claude |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        return claude, given, answer + thoughts
    usage: dict[str, Any] = {"prompt_tokens": given}
    usage |= {"completion_tokens": answer + thoughts * (not beside)}
    usage |= total
    details = draw(st.sampled_from(["completion_tokens_details", "output_tokens_details", ""]))
    usage |= {details: {"reasoning_tokens": thoughts}} if details else {}
    usage |= {"prompt_tokens_details": {"cached_tokens": read}} if draw(st.booleans()) else {}
    return usage, given, answer + thoughts


@given(usages(), st.data())
def test_a_call_is_charged_its_true_bill_and_never_less(
    made: tuple[dict[str, Any], int, int], data: st.DataObject
) -> None:
    usage, given, drawn = made
    found = count(usage)
    assert (found.input, found.output) == (given, drawn)
    lost = data.draw(st.sets(st.sampled_from([*usage]), max_size=1))
    damaged = {name: value for name, value in usage.items() if name not in lost}
    if lost & {"total_tokens"} and "completion_tokens" in usage:
        return  # nothing says any more whether thoughts are beside the answer
    worst = count(damaged | {name: data.draw(st.sampled_from([None, "?", -1])) for name in lost})
    if not lost <= {"cache_read_input_tokens", "cache_creation_input_tokens"}:
        assert worst.input >= min(given, BOUND)
    assert worst.output >= min(drawn, MOST)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=4), st.lists))
def test_nonsense_is_the_worst_case(usage: object) -> None:
    assert count(usage) == (BOUND, MOST, 0, 0)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens"),
                *("total_tokens", "cache_read_input_tokens", "cache_creation"),
                "completion_tokens_details",
            ]
        ),
        st.none() | st.integers(-9, 2**40) | st.floats() | st.text(max_size=4),
    )
)
def test_any_counts_are_read(usage: dict[str, Any]) -> None:
    found = count(usage)
    assert found.input >= 1
    assert found.output >= 1
    assert 0 <= found.cached + found.written <= found.input


END = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}}


@pytest.mark.parametrize(
    ("ends", "output"),
    [
        ([END | {"usage": {"output_tokens": 40}}], 40),
        ([END], MOST),
        ([END | {"usage": {}}], MOST),
        ([END | {"usage": None}], MOST),
        ([END | {"usage": {"output_tokens": 40}}, END], MOST),
        ([], MOST),
    ],
    ids=["counted", "no usage", "empty", "null", "only the first", "no delta"],
)
async def test_a_stream_without_its_last_count_is_charged_the_worst_case(
    ends: list[dict[str, Any]], output: int
) -> None:
    raw = events(START, *TEXT, *ends, {"type": "message_stop"})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        asked = request(max_tokens=MOST)
        answer = await provider.complete(asked, started=lambda: None)
    assert (answer.text, answer.output_tokens) == ("hello", output)


async def test_thoughts_alone_are_not_free() -> None:
    """A server that says 0 tokens of an answer that holds only thoughts."""
    counts = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    said = {"role": "assistant", "content": None, "reasoning_content": "Two and two."}
    raw = reply({"choices": [{"finish_reason": "length", "message": said}], "usage": counts})
    async with serving(raw) as server, at("openai", server.url) as provider:
        assert (await provider.complete(request(max_tokens=MOST))).output_tokens == MOST
    block = {"type": "thinking", "thinking": "Two and two.", "signature": "s"}
    raw = reply({"content": [block], "usage": {"input_tokens": 9, "output_tokens": 0}})
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        assert (await provider.complete(request(max_tokens=MOST))).output_tokens == MOST
