"""Answers of servers that are not in the form of OpenAI's or Claude's own: nothing of them is lost,
and what a server added goes back to it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.extras import packed, split_thoughts, unpacked
from orchestry.core.tools import NAME, ToolCall
from orchestry.core.types import Completion, Message, Provider, Request, Step
from orchestry.models.request_key import request_key
from tests.models.conftest import ANTHROPIC_ANSWER, OPENAI_ANSWER, at, request
from tests.models.loopback import events, reply, serving
from tests.models.scripted import Run
from tests.models.test_anthropic import END, START, STOP
from tests.models.test_dialect import opened
from tests.models.test_tool_calls import after

GIVEN: list[Any] = [
    {"a": 1},
    {"a": None, "b": [True, {"c": "ż"}]},
    {},
    '{"a": 1}',
    '{"a": None',
    [1, 2],
    7,
]
"""Arguments as models write them, and servers give them: as an object, as its text, as anything."""


def chat(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> bytes:
    """An answer of chat completions."""
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return reply({**OPENAI_ANSWER, "choices": [choice], **more})


def claude(*blocks: Any, **more: Any) -> bytes:
    return reply({**ANTHROPIC_ANSWER, "content": [*blocks], **more})


async def answer_to(asked: Request, raw: bytes, vendor: str = "openai", **given: Any) -> Completion:
    async with serving(raw) as server, opened(server.url, vendor, **given) as provider:
        found = await provider.complete(asked)
    assert isinstance(found, Completion)
    return found


async def sent(asked: Request, vendor: str = "openai", **given: Any) -> list[dict[str, Any]]:
    """The messages that a vendor is sent."""
    raw = reply(OPENAI_ANSWER if vendor == "openai" else ANTHROPIC_ANSWER)
    async with serving(raw) as server, opened(server.url, vendor, **given) as provider:
        await provider.complete(asked)
    found = server.bodies[0]["messages"]
    assert isinstance(found, list)
    return found


# --- arguments ----------------------------------------------------------------------------------


def same(call: ToolCall, given: Any) -> None:
    """Nothing is lost: an object is read, and of what is none the model is told."""
    if isinstance(given, dict):
        assert call.given == given
    else:
        assert call.arguments == (given if isinstance(given, str) else json.dumps(given))


@pytest.mark.parametrize("given", GIVEN, ids=repr)
async def test_arguments_in_any_form_are_read(given: Any) -> None:
    function = {"name": "add", "arguments": given}
    asked = [{"id": "c", "type": "function", "function": function}]
    (call,) = (await answer_to(after(), chat({"tool_calls": asked}))).calls
    same(call, given)
    block = {"type": "tool_use", "id": "c", "name": "add", "input": given}
    (call,) = (await answer_to(after(), claude(block), "anthropic")).calls
    same(call, given)


@pytest.mark.parametrize("pieces", [[], ["", '{"a"', ": 1}"], ['{"a": 1}']], ids=repr)
async def test_a_stream_gives_arguments_at_once_or_in_pieces(pieces: list[str]) -> None:
    whole = {"a": 1} if not pieces else {}
    block = {"type": "tool_use", "id": "c", "name": "add", "input": whole}
    begun = {"type": "content_block_start", "index": 0, "content_block": block}
    deltas = [
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": one},
        }
        for one in pieces
    ]
    raw = events(START, begun, *deltas, END, STOP)
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        answer = await provider.complete(after(), started=lambda: None)
    assert [one.given for one in answer.calls] == [{"a": 1}]


# --- what a server adds ---------------------------------------------------------------------------

CALL: dict[str, Any] = {
    "id": "c",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}', "note": "within"},
    "extra_content": {"google": {"thought_signature": "c2ln"}},
}
ADDED: dict[str, Any] = {
    "reasoning_content": "Two and two.",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "x/+="}],
    "extra_content": {"google": {"thought_signature": "b2tlbg=="}},
}
SIGNED: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Two and two.", "signature": "s/+="},
    {"type": "redacted_thinking", "data": "hidden"},
]


def stepped(answer: Completion) -> Request:
    """The request after a server's calls were made."""
    found = after(Step(said=answer, results=("3",) * len(answer.calls)))
    assert isinstance(found, Request)
    return found


async def test_what_a_server_added_goes_back_to_it() -> None:
    message = {"content": "I add.", **ADDED, "tool_calls": [CALL]}
    answer = await answer_to(after(), chat(message, "tool_calls"))
    assert answer.text == "I add."
    said = (await sent(stepped(answer)))[-2]
    assert said == {"role": "assistant", **message}


async def test_claudes_thinking_goes_back_to_it_streamed_or_not() -> None:
    use = {"type": "tool_use", "id": "c", "name": "add", "input": {"a": None}, "caller": {"x": 1}}
    plain = await answer_to(after(), claude(*SIGNED, use), "anthropic")
    begun = {"type": "thinking", "thinking": "", "signature": ""}
    pieces = [
        {"type": "thinking_delta", "thinking": "Two and "},
        {"type": "thinking_delta", "thinking": "two."},
        {"type": "signature_delta", "signature": "s/+="},
    ]
    raw = events(
        START,
        *({"type": "content_block_start", "index": i, "content_block": b} for i, b in [(0, begun)]),
        *({"type": "content_block_delta", "index": 0, "delta": piece} for piece in pieces),
        *(
            {"type": "content_block_start", "index": i, "content_block": b}
            for i, b in [(1, SIGNED[1]), (2, use)]
        ),
        END,
        STOP,
    )
    async with serving(raw) as server, at("anthropic", server.url) as provider:
        streamed = await provider.complete(after(), started=lambda: None)
    for answer in (plain, streamed):
        assert "Two" not in answer.text
        said = (await sent(stepped(answer), "anthropic"))[-2]
        assert said == {"role": "assistant", "content": [*SIGNED, use]}


async def test_in_a_mixed_team_each_server_gets_its_own_additions_alone() -> None:
    other = await answer_to(after(), chat({"content": "", **ADDED, "tool_calls": [CALL]}))
    thought = await answer_to(
        after(),
        claude(*SIGNED, {"type": "tool_use", "id": "c", "name": "add", "x": "y"}),
        "anthropic",
    )
    assert "Two and two" not in json.dumps(await sent(stepped(other), "anthropic"))
    told = await sent(stepped(thought))
    assert "Two and two" not in json.dumps(told)
    assert {*told[-2]["tool_calls"][0]} == {"id", "type", "function"}


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_a_resume_sends_the_same_bytes_back(vendor: str, tmp_path: Path) -> None:
    raw = chat({"content": None, **ADDED, "tool_calls": [CALL]})
    if vendor == "anthropic":
        raw = claude(*SIGNED, {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}})
    run, bodies = Run(tmp_path), []
    async with serving(raw) as server:
        for _ in range(2):
            provider: Provider = opened(server.url, vendor)
            async with provider, run.open(provider) as gateway:
                answer = await gateway.answer(after())
            bodies.append(await sent(stepped(answer), vendor))
    assert len(server.bodies) == 1, "the second process reads the answer from its journal"
    assert bodies[0] == bodies[1]
    assert ("signature" if vendor == "openai" else "hidden") in json.dumps(bodies)


def test_requests_of_plain_chats_have_the_keys_they_had() -> None:
    """Fields that came later are left out where they say nothing."""
    dumped = Message(role="assistant", content="x").model_dump()
    assert dumped == {"role": "assistant", "content": "x"}
    kept = Completion(text="x", model="m").model_dump()
    assert not {"extra", "thoughts", "calls", "steps"} & {*kept}


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers() | st.none()))
def test_additions_are_kept_as_they_are(fields: dict[str, Any]) -> None:
    kept = unpacked(packed(fields))
    assert kept == {name: value for name, value in fields.items() if value not in (None, "", False)}


# --- content ------------------------------------------------------------------------------------

THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}, "Hello"),
        ({"content": [{"type": "output_text", "text": "Hello"}]}, "Hello"),
        ({"content": ["Hel", "lo"]}, "Hello"),
        ({"content": {"type": "text", "text": "Hello"}}, "Hello"),
        ({"content": [THINKING, {"type": "text", "text": "Hello"}]}, "Hello"),
        ({"content": [{"type": "reasoning", "text": "hm"}, "Hello"]}, "Hello"),
        ({"content": [{"type": "refusal", "refusal": "I can't."}]}, "I can't."),
        ({"content": None, "refusal": "I can't."}, "I can't."),
        ({"content": "", "refusal": "I can't."}, "I can't."),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": []}, ""),
        ({"content": 7}, ""),
    ],
    ids=repr,
)
async def test_content_in_any_form_is_read(message: dict[str, Any], text: str) -> None:
    answer = await answer_to(request(), chat(message))
    assert answer.text == text
    assert (answer.stop == "refusal") == ("refusal" in message)


async def test_thoughts_among_the_parts_of_content_go_back_as_parts() -> None:
    parts = [THINKING, {"type": "text", "text": "Hello"}]
    answer = await answer_to(after(), chat({"content": parts, "tool_calls": [CALL]}))
    assert answer.text == "Hello"
    assert (await sent(stepped(answer)))[-2]["content"] == parts


@pytest.mark.parametrize(
    ("said", "finish", "thoughts", "text"),
    [
        ("<think>Two.</think>\n\n4", "stop", "Two.", "4"),
        ("\n<thinking>Two.</thinking>4", "stop", "Two.", "4"),
        ("<think></think>4", "stop", "", "4"),
        ("Two.</think>4", "stop", "Two.", "4"),  # the prompt ended with the opening mark
        ("<think>Two.</think><think>Three.</think>4", "stop", "Two.\nThree.", "4"),
        ("<think>Two and", "length", "Two and", ""),
        ("<think>Two and", "stop", "", "<think>Two and"),
        ("4 < 5", "stop", "", "4 < 5"),
        ("Write <think>x</think> so.", "stop", "", "Write <think>x</think> so."),
    ],
)
async def test_thoughts_in_the_text_are_split_off(
    said: str, finish: str, thoughts: str, text: str
) -> None:
    answer = await answer_to(request(), chat({"content": said}, finish))
    assert (answer.thoughts, answer.text) == (thoughts, text)
    whole = await answer_to(request(), chat({"content": said}, finish), split_thoughts=False)
    assert (whole.thoughts, whole.text) == ("", said)


def test_answers_with_their_thoughts_are_other_answers() -> None:
    """Else the setting would do nothing where answers are in the cache."""
    split, whole = (opened("http://h:1/v1", split_thoughts=value) for value in (True, False))
    assert request_key(split, request()) != request_key(whole, request())


@given(st.text(max_size=30), st.text("<>/think ok", max_size=30), st.booleans())
def test_of_a_text_with_thoughts_nothing_is_lost(thoughts: str, text: str, cut: bool) -> None:
    found = split_thoughts(f"<think>{thoughts}</think>{text}", cut=cut)
    for part in (thoughts, text):
        assert part.replace("<think>", "").strip() in "".join(found) or "<" in f"{thoughts}{text}"
    assert split_thoughts(text, cut=False)[1] == text or "think>" in text


# --- names, ids, addresses ------------------------------------------------------------------------

NAMES = ["get weather", "ns.tool:run", "x" * 90, "", "żółw", "ok_name", "a/b", "a b"]


def called(*calls: ToolCall) -> Request:
    said = Completion(text="", model="m", calls=calls)
    return stepped(said)


def shown(vendor: str, messages: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[str]]:
    """Each call's id and name, and the ids of the results."""
    if vendor == "openai":
        made = [call for one in messages for call in one.get("tool_calls", ())]
        calls = [(call["id"], call["function"]["name"]) for call in made]
        return calls, [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    blocks = [b for m in messages for b in m["content"] if isinstance(m["content"], list)]
    uses = [(b["id"], b["name"]) for b in blocks if b["type"] == "tool_use"]
    return uses, [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
@given(st.lists(st.sampled_from(NAMES) | st.text(max_size=70), min_size=1, max_size=6, unique=True))
def test_names_go_back_as_legal_ones_that_differ_as_they_did(vendor: str, names: list[str]) -> None:
    calls = tuple(ToolCall(id=f"c{n}", name=name, arguments="") for n, name in enumerate(names))
    messages = body_of(vendor, called(*calls))
    told = [name for _, name in shown(vendor, messages)[0]]
    assert all(NAME.fullmatch(name) for name in told)
    assert len(set(told)) == len(names)
    for name, before in zip(told, names, strict=True):
        assert name == before or not NAME.fullmatch(before)


def body_of(vendor: str, asked: Request, model: str = "m") -> list[dict[str, Any]]:
    provider: Any = opened("http://127.0.0.1:1/v1", vendor, model=model)
    body = provider._body(asked) if vendor == "openai" else provider._body(asked, cached=False)
    found = body["messages"]
    assert isinstance(found, list)
    return found


IDS = ["call_1", "toolu_01A", "chatcmpl-tool-" + "f" * 32, "a|b", "", "ż", "D681PevKs", "fc_" * 30]


@pytest.mark.parametrize(
    ("vendor", "model", "form"),
    [
        ("openai", "m", r"[a-zA-Z0-9_-]{1,40}"),
        ("openai", "mistral-small-latest", r"[a-zA-Z0-9]{9}"),
        ("anthropic", "m", r"[a-zA-Z0-9_-]{1,64}"),
    ],
)
@given(st.lists(st.sampled_from(IDS) | st.text(max_size=50), min_size=1, max_size=6, unique=True))
def test_ids_are_made_fit_for_whom_is_asked(
    vendor: str, model: str, form: str, ids: list[str]
) -> None:
    """A team's members may be of several vendors, and a chat goes from one to another."""
    calls = tuple(ToolCall(id=id, name="add", arguments="") for id in ids)
    made, results = shown(vendor, body_of(vendor, called(*calls), model))
    assert [id for id, _ in made] == results
    assert len(set(results)) == len(ids)
    assert all(re.fullmatch(form, id) for id in results)


async def test_an_address_with_a_query() -> None:
    async with serving(reply(OPENAI_ANSWER)) as server:
        url = f"{server.url}/openai/deployments/d?api-version=2024-10-21&key=very-secret-1"
        for vendor, end in (("openai", "chat/completions"), ("anthropic", "v1/messages")):
            server.paths.clear()
            provider = opened(url, vendor)
            async with provider:
                if vendor == "openai":
                    assert (await provider.complete(request())).text == "Hello"
                else:
                    with pytest.raises(Exception, match="answered with") as raised:
                        await provider.complete(request())
                    assert "very-secret-1" not in str(raised.value)
            path, _, query = server.paths[0].partition("?")
            assert path == f"/openai/deployments/d/{end}"
            assert query == "api-version=2024-10-21&key=very-secret-1"


async def test_a_key_in_a_query_that_a_server_repeats_is_shown_nowhere() -> None:
    said = chat({"content": "You came by key=very-secret-1."})
    async with serving(said) as server:
        provider: Any = opened(f"{server.url}/v1?key=very-secret-1")
        async with provider:
            answer = await provider.complete(request())
    assert answer.text == "You came by key=***."
    assert "very-secret-1" not in repr(provider._endpoint)
