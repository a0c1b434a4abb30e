"""The loopback server speaks to the vendors' own SDKs, and its bill is right."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.server.bill import Options
from benchmarks.server.loopback import ROOT, Loopback, serve, spawn

MODEL = "claude-haiku-5-5"
PLAIN: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "x" * 400}],
}


def marked(prefix: str, question: str) -> dict[str, Any]:
    """A request whose system prompt is marked for the prompt cache."""
    system = [{"type": "text", "text": prefix, "cache_control": {"type": "ephemeral"}}]
    return PLAIN | {"system": system, "messages": [{"role": "user", "content": question}]}


@asynccontextmanager
async def claude(**options: Any) -> AsyncIterator[tuple[Any, Loopback]]:
    """An Anthropic client without retries, and the server it talks to."""
    from anthropic import AsyncAnthropic

    timeout = options.pop("timeout", 10.0)
    async with serve(Options(**options)) as (url, loopback):
        client = AsyncAnthropic(api_key="test", base_url=url, max_retries=0, timeout=timeout)
        async with client:
            yield client, loopback


async def stream(client: Any, body: dict[str, Any]) -> Any:
    async with client.messages.stream(**body) as events:
        return await events.get_final_message()


async def test_an_answer_is_parsed_and_billed() -> None:
    async with claude(output_tokens=20, input_usd=2.0, output_usd=10.0) as (client, loopback):
        answer = await client.messages.create(**PLAIN)
    assert answer.usage.input_tokens == 100
    assert answer.usage.output_tokens == 20
    assert answer.stop_reason == "end_turn"
    assert loopback.bill.usd == pytest.approx((100 * 2.0 + 20 * 10.0) / 1e6)


async def test_equal_requests_get_equal_answers_and_others_differ() -> None:
    async with claude() as (client, loopback):
        texts = [
            (await client.messages.create(**body)).content[0].text
            for body in (PLAIN, PLAIN, PLAIN | {"max_tokens": 63})
        ]
    assert texts[0] == texts[1] != texts[2]
    assert sorted(loopback.bill.as_json()["by_body_hash"].values()) == [[1, 1], [2, 2]]


async def test_a_stream_is_the_whole_answer_with_its_usage() -> None:
    async with claude(output_tokens=300) as (client, loopback):
        body = PLAIN | {"max_tokens": 300}
        answer = await stream(client, body)
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 300
    assert len(answer.content[0].text) > 1000
    assert loopback.bill.output_tokens == 300


async def test_a_prefix_is_written_once_and_then_read() -> None:
    options = {"cache_min_tokens": 512, "output_tokens": 1, "input_usd": 1.0, "output_usd": 0.0}
    async with claude(**options) as (client, loopback):
        first = await client.messages.create(**marked("p" * 4000, "q" * 40))
        other = await client.messages.create(**marked("p" * 4000, "r" * 40))
    written, read = first.usage, other.usage
    assert (written.cache_creation_input_tokens, written.cache_read_input_tokens) == (1000, 0)
    assert (read.cache_creation_input_tokens, read.cache_read_input_tokens) == (0, 1000)
    assert written.input_tokens == read.input_tokens == 10
    assert loopback.bill.usd == pytest.approx((10 + 1250 + 10 + 100) / 1e6)


async def test_a_short_prefix_is_not_cached() -> None:
    async with claude(cache_min_tokens=1024) as (client, loopback):
        for question in "qr":
            await client.messages.create(**marked("p" * 4000, question))
    assert loopback.bill.cache_write_tokens == loopback.bill.cache_read_tokens == 0


async def test_an_entry_is_not_seen_by_requests_in_flight_with_its_writer() -> None:
    async with claude(cache_min_tokens=512, latency_s=0.05) as (client, loopback):
        calls = (client.messages.create(**marked("p" * 4000, question)) for question in "abc")
        answers = await asyncio.gather(*calls)
    assert [a.usage.cache_creation_input_tokens for a in answers] == [1000] * 3
    assert loopback.bill.max_in_flight == 3


async def test_an_entry_is_seen_once_its_writers_stream_has_begun() -> None:
    async with (
        claude(cache_min_tokens=512, latency_s=0.3, first_byte_share=0.1) as (client, _),
        client.messages.stream(**marked("p" * 4000, "a")) as events,
    ):
        async for _ in events:
            break
        follower = await client.messages.create(**marked("p" * 4000, "b"))
    assert follower.usage.cache_read_input_tokens == 1000


async def test_an_entry_expires() -> None:
    async with claude(cache_min_tokens=512, cache_ttl_s=0.05) as (client, loopback):
        await client.messages.create(**marked("p" * 4000, "a"))
        await asyncio.sleep(0.1)
        await client.messages.create(**marked("p" * 4000, "b"))
    assert loopback.bill.cache_write_tokens == 2000


FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"grade": {"type": "integer", "enum": [1, 2]}, "why": {"type": "string"}},
    "required": ["grade", "why"],
    "additionalProperties": False,
}


def formed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


async def test_a_structured_request_is_answered_by_its_schema_and_the_schema_billed() -> None:
    async with claude() as (client, loopback):
        answers = [
            await client.messages.create(**PLAIN | formed(FORM) | {"max_tokens": limit})
            for limit in (64, 64, 1)
        ]
    first, again, cut = (answer.content[0].text for answer in answers)
    assert set(json.loads(first)) == {"grade", "why"}
    assert first == again
    assert (len(cut), answers[2].stop_reason) == (4, "max_tokens")
    assert answers[0].usage.input_tokens > 100 + len(json.dumps(FORM)) / 4
    assert loopback.bill.output_tokens == 2 * answers[0].usage.output_tokens + 1


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (FORM | {"additionalProperties": True}, "additionalProperties"),
        (FORM | {"required": ["grade"]}, "required"),
        (FORM | {"properties": {"grade": FORM, "why": {"type": "string", "maxLength": 9}}}, "maxL"),
        ({"type": "array", "items": FORM, "minItems": 2}, "minItems"),
    ],
)
async def test_a_schema_that_claude_refuses_is_refused(schema: dict[str, Any], says: str) -> None:
    from anthropic import BadRequestError

    async with claude() as (client, loopback):
        with pytest.raises(BadRequestError, match=says):
            await client.messages.create(**PLAIN | formed(schema))
    assert loopback.bill.usd == 0


async def test_a_prefix_serves_only_requests_of_the_same_form() -> None:
    async with claude(cache_min_tokens=512) as (client, loopback):
        for extra in ({}, formed(FORM), formed(FORM)):
            await client.messages.create(**marked("p" * 4000, "q") | extra)
    assert loopback.bill.cache_write_tokens > 2000
    assert 1000 < loopback.bill.cache_read_tokens < 1200


async def test_five_marks_are_refused() -> None:
    from anthropic import BadRequestError

    mark = {"type": "text", "text": "p", "cache_control": {"type": "ephemeral"}}
    async with claude() as (client, loopback):
        with pytest.raises(BadRequestError, match="maximum of 4"):
            await client.messages.create(**PLAIN | {"system": [mark] * 5})
    assert loopback.bill.usd == 0


@pytest.mark.parametrize(
    ("fault", "body", "billed"),
    [
        ("html", b"Bad gateway", 0),
        ("malformed_billed", b'[{"te', 1),
        ("empty_billed", b"", 1),
        ("failure_in_200", b'"code": 429', 1),
    ],
)
async def test_a_200_may_be_no_answer(fault: str, body: bytes, billed: int) -> None:
    import aiohttp

    async with (
        serve(Options(script=f"-,{fault}")) as (url, loopback),
        aiohttp.ClientSession() as go,
    ):
        for number in range(2):
            async with go.post(f"{url}/v1/messages", json=PLAIN) as answer:
                assert answer.status == 200
                found = await answer.read()
            assert (body in found) == (number == 1) or not body
        assert body or not found
    assert loopback.bill.billed_requests == 1 + billed


@pytest.mark.parametrize("status", [0, 529])
async def test_a_server_goes_away_and_comes_back(status: int) -> None:
    import aiohttp

    options = Options(away_at=2, away_s=0.3, away_status=status)
    seen = list[int | str]()
    async with serve(options) as (url, loopback), aiohttp.ClientSession() as go:
        for _ in range(60):
            try:
                async with go.post(f"{url}/v1/messages", json=PLAIN) as answer:
                    seen.append(answer.status)
            except aiohttp.ClientConnectorError:
                seen.append("refused")
            except aiohttp.ClientError:
                seen.append("broken")
            if seen[1:] and seen[-1] == 200:
                break
            await asyncio.sleep(0.02)
    assert (seen[0], seen[-1]) == (200, 200)
    assert set(seen[1:-1]) == ({529} if status else {"broken", "refused"})
    assert loopback.bill.billed_requests == 2


async def test_a_poisoned_prompt_is_always_refused() -> None:
    from anthropic import BadRequestError

    async with claude(poison="xxx") as (client, loopback):
        for _ in range(2):
            with pytest.raises(BadRequestError):
                await client.messages.create(**PLAIN)
    assert loopback.bill.billed_requests == 0


@pytest.mark.parametrize(
    ("fault", "status", "billed"),
    [
        ("rate_limited", 429, 0),
        ("overloaded", 529, 0),
        ("error", 500, 0),
        ("error_billed", 500, 1),
        ("busy_billed", 503, 1),
        ("limited_billed", 429, 1),
    ],
)
async def test_an_error_status_says_when_to_return_and_bills_as_it_should(
    fault: str, status: int, billed: int
) -> None:
    from anthropic import APIStatusError

    async with claude(**{fault: 1.0, "retry_after": "0.5"}) as (client, loopback):
        with pytest.raises(APIStatusError) as caught:
            await client.messages.create(**PLAIN)
    assert caught.value.status_code == status
    assert caught.value.response.headers.get("retry-after") == (
        "0.5" if status in (429, 529) else None
    )
    assert loopback.bill.billed_requests == billed
    assert loopback.bill.faults == {fault: 1}


@pytest.mark.parametrize(("fault", "billed"), [("drop", 0), ("drop_billed", 1)])
@pytest.mark.parametrize("call", ["create", "stream"])
async def test_a_drop_is_a_lost_connection(fault: str, billed: int, call: str) -> None:
    async with claude(**{fault: 1.0}) as (client, loopback):
        with pytest.raises(Exception, match=r"(?i)connection|disconnected|incomplete|closed|peer"):
            await (stream(client, PLAIN) if call == "stream" else client.messages.create(**PLAIN))
    assert loopback.bill.billed_requests == billed
    assert loopback.bill.in_flight == 0


async def test_a_stream_may_end_without_its_count() -> None:
    async with claude(uncounted=1.0) as (client, loopback):
        for question in "abcdefgh":
            messages = [{"role": "user", "content": question * 400}]
            events = await client.messages.create(**PLAIN | {"messages": messages}, stream=True)
            (last,) = [one async for one in events if one.type == "message_delta"]
            assert not getattr(last.usage, "output_tokens", None)
        whole = await client.messages.with_raw_response.create(**PLAIN)
    assert json.loads(await whole.text())["usage"] == {}
    assert loopback.bill.output_tokens == 9 * 20


async def test_thoughts_are_billed_beside_a_chats_answer() -> None:
    from openai import AsyncOpenAI

    async with (
        serve(Options(thinking=1.0, overbilled=2.0)) as (url, loopback),
        AsyncOpenAI(api_key="test", base_url=f"{url}/v1", max_retries=0) as client,
    ):
        usage = (await client.chat.completions.create(**PLAIN)).usage
    assert usage.completion_tokens_details.reasoning_tokens == 40
    assert usage.total_tokens == 100 + 2 * (20 + 40)
    assert loopback.bill.output_tokens == 2 * (20 + 40)


async def test_a_hang_is_billed_and_ends_with_its_client() -> None:
    from anthropic import APITimeoutError

    async with claude(hang_billed=1.0, timeout=0.2) as (client, loopback):
        with pytest.raises(APITimeoutError):
            await client.messages.create(**PLAIN)
        await asyncio.sleep(0.1)
        assert loopback.bill.billed_requests == 1
        assert loopback.bill.in_flight == 0


async def test_latencies_and_faults_follow_from_the_seed() -> None:
    async def run(seed: int) -> tuple[float, int]:
        options = Options(latency_s=0.001, sigma=0.5, rate_limited=0.5, seed=seed)
        loopback = Loopback(options)
        for _ in range(50):
            loopback._draw_fault()
            loopback.bill.wait(loopback._draw_latency())
        return loopback.bill.latency_total_s, loopback.bill.faults["rate_limited"]

    assert await run(1) == await run(1) != await run(2)


async def test_chat_completions_are_parsed_whole_and_streamed() -> None:
    from openai import AsyncOpenAI

    body: dict[str, Any] = {"model": "m", "max_tokens": 30, "messages": PLAIN["messages"]}
    async with (
        serve(Options(output_tokens=20)) as (url, loopback),
        AsyncOpenAI(api_key="test", base_url=f"{url}/v1", max_retries=0) as client,
    ):
        answer = await client.chat.completions.create(**body, n=2)
        chunks = await client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
        last = [chunk async for chunk in chunks][-1]
    assert len({choice.message.content for choice in answer.choices}) == 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (100, 40)
    assert last.usage.completion_tokens == 20
    assert loopback.bill.output_tokens == 60


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model": "m", "max_tokens": 1}'])
async def test_a_bad_body_is_a_400(body: bytes) -> None:
    import aiohttp

    async with serve(Options()) as (url, loopback), aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/messages", data=body) as answer:
            assert answer.status == 400
        async with session.get(f"{url}/v1/nothing") as answer:
            assert answer.status == 404
    assert loopback.bill.billed_requests == 0


def test_shares_beyond_all_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1"):
        Loopback(Options(drop=0.6, error=0.6))


def test_a_spawned_server_answers_its_bill_and_ends() -> None:
    from anthropic import Anthropic

    with spawn(Options(output_tokens=7)) as server:
        with Anthropic(api_key="test", base_url=server.url) as client:
            client.messages.create(**PLAIN)
        assert server.bill()["output_tokens"] == 7
        server.reset()
        assert server.bill()["requests"] == 0
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_server_ends_with_the_process_that_spawned_it() -> None:
    command = [sys.executable, "-m", "benchmarks.server.loopback", "--until-eof"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=10) == 0
