"""Answers of servers that are not OpenAI's, and what a client should make of each.

Every case has an address of its own, so the server needs no memory. Messages are in the vendors'
words, numbers are ours. Only the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

Reply = tuple[int, object]
"""An HTTP status, and what becomes JSON."""
Seen = Mapping[str, Any]
"""A request as the server saw it: `body`, `headers` and `query`."""
Found = Sequence[Mapping[str, Any]]
"""What a client says of each answer: `text`, `calls`, `refused`, `input`, `output`, `value`; of an
error its `error`: overflow, again (it may succeed later), or no."""

PLAIN: dict[str, Any] = {"model": "m", "system": "Be brief.", "user": "What is 2 + 2?"}
PRICE: dict[str, Any] = {
    "name": "price",
    "description": "What a thing costs.",
    "parameters": {
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
    },
}
SHOP = PLAIN | {"user": "What does coffee cost?", "tool": PRICE, "result": "4"}
"""With a tool: its call is answered by the result, and the model is asked once more."""
GRADE = {
    "type": "object",
    "properties": {"grade": {"type": "integer"}},
    "required": ["grade"],
    "additionalProperties": False,
}
COFFEE = {"item": "coffee"}


@dataclass(frozen=True, slots=True)
class Case:
    """One request, what a server answers to it, and whether a client got it right."""

    item: str
    """The row of the table that it counts in."""
    reply: Callable[[Seen], Reply]
    right: Callable[[Found], bool]
    ask: Mapping[str, Any] = field(default_factory=lambda: PLAIN)
    """What the client is asked to do, in no library's words."""


def said(text: object, finish: str = "stop", **message: Any) -> Reply:
    """A whole answer with this message."""
    return 200, answer(text, finish, **message)


def answer(text: object, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """The same, as what becomes JSON."""
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55},
    }


def _always(reply: Reply) -> Callable[[Seen], Reply]:
    return lambda seen: reply


def _fault(status: int, message: str, **more: object) -> Reply:
    return status, {"error": {"message": message, **more}}


def _text(wanted: str) -> Callable[[Found], bool]:
    """Whether the last answer is this text and nothing else."""
    return lambda found: (
        "error" not in found[-1] and found[-1]["text"].strip() == wanted and not found[-1]["calls"]
    )


def _error(*kinds: str) -> Callable[[Found], bool]:
    return lambda found: found[-1].get("error") in kinds


# --- tools ------------------------------------------------------------------------------------


def _call(arguments: object = '{"item": "coffee"}', name: str = "price", **more: Any) -> Any:
    function = {"name": name, "arguments": arguments}
    return [{"id": "a1", "type": "function", "function": function, **more}]


def _called(found: Found) -> bool:
    return [call["arguments"] for call in found[0].get("calls", ())] == [COFFEE]


def _shop(**message: Any) -> Callable[[Seen], Reply]:
    """Calls the tool, then answers; refuses a history without what was added to message or call."""
    wanted = {name: value for name, value in message.items() if name != "tool_calls"}
    signed = message["tool_calls"][0].get("extra_content")

    def reply(seen: Seen) -> Reply:
        messages = seen["body"]["messages"]
        if messages[-1]["role"] != "tool":
            return said(None, "tool_calls", **message)
        (before,) = (one for one in messages if one["role"] == "assistant")
        (call,) = before["tool_calls"]
        if call.get("extra_content") != signed:
            return _fault(400, "Function call is missing a thought_signature", code=400)
        if any(before.get(name) != value for name, value in wanted.items()):
            return _fault(400, f"{[*wanted]} must be passed back in the next request")
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
            return _fault(400, "messages.tool_calls.function.name: does not match the pattern")
        return said("4 euros.")

    return reply


_PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "Ask for it."}]}]
_DETAILS = [{"type": "reasoning.text", "text": "Ask for it.", "signature": "c2ln", "index": 0}]
_SIGNED: dict[str, Any] = {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
_ELSEWHERE = "functions.price:0|toolu_01A09q90qw90lq917835lq9"
"""A call's id as other vendors make them."""


def _takes_ids(form: str) -> Callable[[Seen], Reply]:
    """A server that refuses calls' ids of another form, or a result without its call."""

    def reply(seen: Seen) -> Reply:
        messages = seen["body"]["messages"]
        ids = [call["id"] for one in messages for call in one.get("tool_calls") or ()]
        if not all(re.fullmatch(form, id) for id in ids):
            return _fault(400, f"tool call id {ids} must match {form}")
        if [one["tool_call_id"] for one in messages if one["role"] == "tool"] != ids:
            return _fault(400, "each tool call needs a result")
        return said("4 euros.")

    return reply


_PAST = SHOP | {"past": {"id": _ELSEWHERE, "name": "price", "arguments": COFFEE}}


def _tools() -> list[Case]:
    kept = "added fields come back"
    added: list[dict[str, Any]] = [
        {"tool_calls": _call(**_SIGNED)},
        {"tool_calls": _call(), "reasoning_content": "Ask for it."},
        {"tool_calls": _call(), "reasoning_details": _DETAILS},
        {"tool_calls": _call(), "content": _PARTS},
    ]
    illegal = _shop(tool_calls=_call(name="price<|channel|>json"))
    return [
        Case("arguments as an object", _shop(tool_calls=_call(COFFEE)), _called, SHOP),
        *(Case(kept, _shop(**one), _text("4 euros."), SHOP) for one in added),
        Case("illegal tool name", illegal, _text("4 euros."), SHOP),
        Case(
            "ids of another vendor",
            _takes_ids("[a-zA-Z0-9]{9}"),
            _text("4 euros."),
            _PAST | {"model": "mistral-small-latest", "vendor": "mistral"},
        ),
        Case("ids of another vendor", _takes_ids("[a-zA-Z0-9_-]{1,40}"), _text("4 euros."), _PAST),
    ]


# --- text -------------------------------------------------------------------------------------


def _texts() -> list[Case]:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}]
    return [
        Case("content in parts", _always(said(parts)), _text("4")),
        Case("content in parts", _always(said([{"type": "text", "text": "4"}])), _text("4")),
        Case("content null", _always(said(None)), _text("")),
        Case(
            "refusal",
            _always(said(None, refusal="I can't help with that.")),
            lambda found: bool(found[-1].get("refused")),
        ),
        Case("thoughts in the text", _always(said("<think>\nTwo.\n</think>\n\n4")), _text("4")),
        Case("thoughts in the text", _always(said("Two.\n</think>\n\n4")), _text("4")),
        Case("thoughts in the text", _always(said("<think>\nTwo and", "length")), _text("")),
    ]


# --- errors -----------------------------------------------------------------------------------

_REFUSALS = [
    json.loads(line)
    for line in (Path(__file__).parent / "shapes_overflows.jsonl").read_bytes().split(b"\n")
    if line
]
OVERFLOWS: list[Reply] = [(one["status"], one["body"]) for one in _REFUSALS if one["server"]]
"""A prompt that is too long, in each server's words."""
OTHERWISE: list[Reply] = [(one["status"], one["body"]) for one in _REFUSALS if not one["server"]]
"""What sounds alike, and is not."""


def _errors() -> list[Case]:
    busy = {"error": {"code": 429, "message": "Provider returned error"}}
    bad = "Failed to call a function. Please adjust your prompt."
    drawn = [
        _fault(400, bad, type="invalid_request_error", code="tool_use_failed"),
        _fault(400, "Failed to generate JSON.", code="json_validate_failed"),
        said(None, "function_call_filter: MALFORMED_FUNCTION_CALL"),
    ]
    return [
        Case("error inside a 200", _always(said("", "error")), _error("again")),
        Case("error inside a 200", _always((200, busy)), _error("again")),
        Case(
            "error inside a 200",
            _always((200, {"error": {"code": 401, "message": "no such key"}})),
            _error("no"),
        ),
        *(Case("overflow", _always(one), _error("overflow")) for one in OVERFLOWS),
        *(Case("overflow", _always(one), _error("again", "no")) for one in OTHERWISE),
        *(Case("bad draw", _always(one), _error("again"), SHOP) for one in drawn),
    ]


# --- requests ---------------------------------------------------------------------------------


def _needs(good: Callable[[Seen], bool], words: str = "wrong field") -> Callable[[Seen], Reply]:
    return lambda seen: said("4") if good(seen) else _fault(400, words)


def _limits(name: str, other: str) -> Callable[[Seen], Reply]:
    words = f"Unsupported parameter: '{other}' is not supported with this model. Use '{name}'."
    return _needs(lambda seen: name in seen["body"] and other not in seen["body"], words)


def _roles(seen: Seen) -> list[str]:
    return [one["role"] for one in seen["body"]["messages"]]


def _told(seen: Seen) -> bool:
    """Whether the system's text is there, in no role of its own."""
    return "system" not in _roles(seen) and PLAIN["system"] in json.dumps(seen["body"])


def _requests() -> list[Case]:
    limits = ("max_tokens", "max_completion_tokens")
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    bare = PLAIN | {"extra_body": extra, "leave_out": ["temperature", "seed"]}
    moved = PLAIN | {"no_system": True}
    return [
        Case(
            "extra fields, others left out",
            _needs(lambda seen: seen["body"].items() >= extra.items()
                and not {"temperature", "seed"} & {*seen["body"]}),
            _text("4"),
            bare,
        ),
        Case(
            "headers",
            _needs(lambda seen: seen["headers"].get("x-gateway") == "a b"),
            _text("4"),
            PLAIN | {"headers": {"x-gateway": "a b"}},
        ),
        *(
            Case("name of the token limit", _limits(*pair), _text("4"), PLAIN | {"limit": pair[0]})
            for pair in (limits, limits[::-1])
        ),
        Case("no system role", _needs(_told, "System role not supported"), _text("4"), moved),
        Case(
            "no system role",
            _needs(
                lambda seen: _told(seen) and all(a != b for a, b in pairwise(_roles(seen))),
                "Conversation roles must alternate user/assistant/user/assistant/...",
            ),
            _text("4"),
            moved,
        ),
        Case(
            "address with a query",
            _needs(lambda seen: seen["query"] == {"api-version": "2026-01-01"}),
            _text("4"),
            PLAIN | {"query": "api-version=2026-01-01"},
        ),
    ]  # fmt: skip


# --- values and bills -------------------------------------------------------------------------


def _graded(text: str) -> Case:
    return Case(
        "one JSON object",
        _always(said(text)),
        lambda found: found[-1].get("value") == {"grade": 7},
        PLAIN | {"schema": GRADE},
    )


def _billed(output: int, usage: Mapping[str, Any], vendor: str = "openai") -> Case:
    reply = {**answer("4"), "usage": {"prompt_tokens": 50, **usage}}
    return Case(
        "thoughts are billed",
        _always((200, reply)),
        lambda found: (found[-1].get("input"), found[-1].get("output")) == (50, output),
        PLAIN | {"vendor": vendor},
    )


def _values() -> list[Case]:
    thought = {"completion_tokens_details": {"reasoning_tokens": 400}}
    return [
        _graded('```json\n{"grade": 7}\n```'),
        _graded('<think>Is it {"grade": 3}? No.</think>{"grade": 7}'),
        _graded('Here is my answer:\n\n{"grade": 7}\n\nI hope that this helps.'),
        _graded('{"grade": 7.0}'),
        _billed(402, {"completion_tokens": 2, "total_tokens": 452, **thought}, "xai"),
        _billed(402, {"completion_tokens": 2, "total_tokens": 452}),
        _billed(402, {"completion_tokens": 402, "total_tokens": 452, **thought}),
    ]


CASES = [*_tools(), *_texts(), *_errors(), *_requests(), *_values()]
ITEMS = list(dict.fromkeys(case.item for case in CASES))
SPEED = len(CASES)
"""The number of the address that answers every request alike, by which calls are timed."""


def reply_to(number: int, seen: Seen) -> Reply:
    """What the server answers at the address of that case."""
    return said("word " * 20) if number == SPEED else CASES[number].reply(seen)
