"""The two vendors' formats, from the side that answers: what a program's client sends becomes an
Ask, and an answer becomes what the client expects. OpenAI's newer one is in responses.py.

The run's settings replace those of the call: model, temperature, top_p, seed, thinking. What would
change the form of an answer and can't be had is refused, never left out.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pydantic import ValidationError

from orchestry.core.errors import reason
from orchestry.core.extras import THINKING, others, packed, unpacked
from orchestry.core.extras import as_dict as as_dict
from orchestry.core.tools import ANY, NAME, ToolCall, ToolSpec
from orchestry.core.types import Completion, Message
from orchestry.task.programs.agent_task import Ask

Body = Mapping[str, Any]
_STOPS = {"end": "stop", "calls": "tool_calls", "refusal": "content_filter"}
_CLAUDE_STOPS = {"length": "max_tokens", "calls": "tool_use", "refusal": "refusal"}
_CHAT_LACKS = ("functions", "function_call", "logprobs", "logit_bias", "audio", "prediction")
_CHAT_FIELDS = (
    *("role", "content", "tool_calls", "tool_call_id", "name", "refusal"),
    *("function_call", "audio", "annotations"),
)
_TEXT_LACKS = ("suffix", "echo", "logprobs", "logit_bias")
_THINKS = ("thinking", "redacted_thinking")
_OURS = "orchestry:"
"""Begins the signature of a thinking block that holds what a server of the other format added."""
_CLAUDE_LACKS = ("output_format", "output_config", "mcp_servers", "container")
_SHOWN = 200
"""Characters of a value that can't be read."""


class Unreadable(Exception):
    """A call that can't be answered as it is, with what to change."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One vendor's format."""

    path: str
    read: Callable[[str, Body], Ask]
    """From the role that is asked and the call's body. Raises Unreadable."""
    answer: Callable[[Completion, Body], dict[str, Any]]
    stream: Callable[[Completion, Body], Iterator[str]]
    """The same as server-sent events."""
    error: Callable[[str], dict[str, Any]]


# --- chat completions ---------------------------------------------------------------------------


def _read_chat(role: str, body: Body) -> Ask:
    refuse(body, _CHAT_LACKS)
    _once(body, "n")
    if body.get("modalities") not in (None, ["text"]):
        raise Unreadable("modalities has more than text: leave it out")
    told = [_chat_message(one) for one in objects(body, "messages")]
    limits = [whole_number(body, name) for name in ("max_completion_tokens", "max_tokens")]
    return Ask(
        role=role,
        messages=some(told),
        **offer(body, [tool_of(as_dict(one.get("function"))) for one in objects(body, "tools")]),
        max_tokens=limits[0] or limits[1],
        stop=_stop(body, "stop"),
        schema=_schema(body.get("response_format")),
    )


def _chat_message(one: Body) -> Message:
    role = {"developer": "system"}.get(str(one.get("role")), one.get("role"))
    calls = tuple(map(ToolCall.read, objects(one, "tool_calls"), count()))
    extra = packed(others(one, *_CHAT_FIELDS)) if role == "assistant" else ""
    text = text_of(one.get("content") or one.get("refusal"))
    return message_of(role, text, calls, str(one.get("tool_call_id") or ""), extra)


def _schema(asked: Any) -> Mapping[str, Any] | None:
    """Of a structured answer."""
    kind = as_dict(asked).get("type", asked)
    if kind in (None, "text"):
        return None
    schema = as_dict(as_dict(asked).get("json_schema")).get("schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise Unreadable(
            f"response_format {kind!r} is not known: give json_schema, or leave it out"
        )
    return schema


def _chat(answer: Completion, body: Body) -> dict[str, Any]:
    text = answer.text if answer.text or not answer.calls else None
    message: dict[str, Any] = {**_added(answer), "role": "assistant", "content": text}
    if answer.calls:
        message["tool_calls"] = [call.function for call in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
    return {**_chat_head(body), "choices": [choice], "usage": _usage(answer)}


def _chat_stream(answer: Completion, body: Body) -> Iterator[str]:
    head = _chat_head(body, "chat.completion.chunk")

    def chunk(delta: Body, finish: str | None = None) -> str:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({**_added(answer), "role": "assistant", "content": answer.text})
    for place, call in enumerate(answer.calls):
        yield chunk({"tool_calls": [{"index": place, **call.function}]})
    yield chunk({}, _finish(answer))
    if as_dict(body.get("stream_options")).get("include_usage"):
        yield event({**head, "choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def _added(answer: Completion) -> dict[str, Any]:
    """What its server added to the answer and wants back; its content is given as text."""
    return others(unpacked(answer.extra), "content")


def _chat_head(body: Body, kind: str = "chat.completion") -> dict[str, Any]:
    model = str(body.get("model") or "orchestry")
    return {"id": fresh("chatcmpl"), "object": kind, "created": 0, "model": model}


def _finish(answer: Completion) -> str:
    return "tool_calls" if answer.calls else _STOPS.get(answer.stop, answer.stop)


def _usage(answer: Completion) -> dict[str, int]:
    given, drawn = answer.input_tokens, answer.output_tokens
    return {"prompt_tokens": given, "completion_tokens": drawn, "total_tokens": given + drawn}


def _once(body: Body, *names: str) -> None:
    """Raises Unreadable for a call that asks for several answers."""
    for name in names:
        if body.get(name) not in (None, 1):
            raise Unreadable(f"{name} is not 1: ask once per answer")


def chat_error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "orchestry", "param": None, "code": None}}


# --- completions, OpenAI's oldest ---------------------------------------------------------------


def _read_text(role: str, body: Body) -> Ask:
    refuse(body, _TEXT_LACKS)
    _once(body, "n", "best_of")
    given = body.get("prompt")
    text = given[0] if isinstance(given, list) and len(given) == 1 else given
    if not isinstance(text, str):
        raise Unreadable(f"prompt is {short(given)}: give one text")
    return Ask(
        role=role,
        messages=(message_of("user", text),),
        max_tokens=whole_number(body, "max_tokens"),
        stop=_stop(body, "stop"),
    )


def _text(answer: Completion, body: Body) -> dict[str, Any]:
    choice = {"index": 0, "text": answer.text, "logprobs": None, "finish_reason": _finish(answer)}
    head = {**_chat_head(body, "text_completion"), "id": fresh("cmpl")}
    return {**head, "choices": [choice], "usage": _usage(answer)}


def _text_stream(answer: Completion, body: Body) -> Iterator[str]:
    whole = _text(answer, body)
    counts = as_dict(body.get("stream_options")).get("include_usage")
    yield event(whole if counts else {**whole, "usage": None})
    yield "data: [DONE]\n\n"


# --- messages -----------------------------------------------------------------------------------


def _read_messages(role: str, body: Body) -> Ask:
    refuse(body, _CLAUDE_LACKS)
    system = text_of(body.get("system"))
    told = [message_of("system", system)] if system else []
    for one in objects(body, "messages"):
        told += _claude_messages(one)
    return Ask(
        role=role,
        messages=some(told),
        **offer(body, [tool_of(one, "input_schema", "custom") for one in objects(body, "tools")]),
        max_tokens=whole_number(body, "max_tokens"),
        stop=_stop(body, "stop_sequences"),
    )


def _claude_messages(one: Body) -> list[Message]:
    """One of theirs: text and calls, or results of calls and text."""
    content = one.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    found, calls, texts = list[Message](), list[ToolCall](), list[Any]()
    thinking = list[dict[str, Any]]()
    for block in map(as_dict, blocks):
        if block.get("type") == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            named = {name: str(block.get(name) or "") for name in ("id", "name")}
            extra = packed(others(block, "type", "id", "name", "input", "cache_control"))
            calls.append(ToolCall(**named, arguments=arguments, extra=extra))
        elif block.get("type") == "tool_result":
            result, call = text_of(block.get("content")), str(block.get("tool_use_id") or "")
            found.append(message_of("tool", result, call=call))
        elif block.get("type") in _THINKS:
            thinking.append(block)
        else:
            texts.append(block)
    if texts or calls:
        extra = _extra_of(thinking)
        found.append(message_of(one.get("role"), text_of(texts), tuple(calls), extra=extra))
    return found


def _extra_of(thinking: list[dict[str, Any]]) -> str:
    """What `_thinking` made blocks of."""
    signed = (unsealed(block.get("signature")) for block in thinking)
    ours = next((one for one in signed if one), "")
    return ours or packed({THINKING: thinking})


def _thinking(answer: Completion) -> list[dict[str, Any]]:
    """What its server added to the answer, as blocks that a program sends back: Claude's own, or
    one block that holds the fields of another server."""
    extra = unpacked(answer.extra)
    if not extra or THINKING in extra:
        return list(extra.get(THINKING, []))
    return [{"type": "thinking", "thinking": thoughts_in(extra), "signature": sealed(answer.extra)}]


def _claude(answer: Completion, body: Body) -> dict[str, Any]:
    blocks = _thinking(answer)
    if answer.text or not answer.calls:
        blocks.append({"type": "text", "text": answer.text})
    blocks += [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": call.given,
            **unpacked(call.extra),
        }
        for call in answer.calls
    ]
    usage = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
    return {**_claude_head(body), "content": blocks, "stop_reason": _why(answer), "usage": usage}


def _claude_stream(answer: Completion, body: Body) -> Iterator[str]:
    whole = _claude(answer, body)
    start = {**whole, "content": [], "stop_reason": None}
    yield event({"type": "message_start", "message": start}, "message_start")
    for place, block in enumerate(whole["content"]):
        empty, deltas = _pieces(block)
        for kind, more in (
            ("content_block_start", {"content_block": empty}),
            *(("content_block_delta", {"delta": delta}) for delta in deltas),
            ("content_block_stop", {}),
        ):
            yield event({"type": kind, "index": place, **more}, kind)
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event({"type": "message_delta", "delta": end, "usage": whole["usage"]}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as a stream begins it, and what it adds to that."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        names = [name for name in ("thinking", "signature") if block.get(name)]
        added = [{"type": f"{name}_delta", name: block[name]} for name in names]
        return {**block, "thinking": "", "signature": ""}, added
    if block["type"] == "tool_use":
        text = json.dumps(block["input"], ensure_ascii=False)
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return block, []


def _claude_head(body: Body) -> dict[str, Any]:
    model = str(body.get("model") or "orchestry")
    own = {"id": fresh("msg"), "type": "message", "role": "assistant", "model": model}
    return {**own, "stop_sequence": None}


def _why(answer: Completion) -> str:
    return "tool_use" if answer.calls else _CLAUDE_STOPS.get(answer.stop, "end_turn")


def _claude_error(text: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": text}}


# --- all ----------------------------------------------------------------------------------------


def sealed(added: str) -> str:
    """What a server added, as a field that a program sends back unread."""
    return f"{_OURS}{added}"


def unsealed(text: object) -> str:
    """What `sealed` was given; '' for what is not ours."""
    found = str(text or "")
    return found.removeprefix(_OURS) if found.startswith(_OURS) else ""


def thoughts_in(extra: Body) -> str:
    """The thoughts in what a server of chat completions added."""
    return str(extra.get("reasoning_content") or extra.get("reasoning") or "")


def text_of(content: Any) -> str:
    """A message's text. Raises Unreadable for what is none, such as a picture."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, str) and not isinstance(as_dict(part).get("text"), str):
            kind = as_dict(part).get("type", type(part).__name__)
            raise Unreadable(f"a message holds a part of type {kind!r}: send text alone")
    return "".join(part if isinstance(part, str) else part["text"] for part in parts)


def message_of(
    role: Any, content: str, calls: tuple[ToolCall, ...] = (), call: str = "", extra: str = ""
) -> Message:
    try:
        return Message(role=role, content=content, calls=calls, call=call, extra=extra)
    except ValidationError:
        known = "system, user, assistant, tool"
        raise Unreadable(f"a message has the role {role!r}: give one of {known}") from None


def fresh(kind: str) -> str:
    """An answer's id. LangGraph takes two messages of one id for the same."""
    return f"{kind}_{secrets.token_hex(12)}"


def tool_of(one: Body, schema: str = "parameters", kind: str = "function") -> ToolSpec:
    name = one.get("name")
    if one.get("type") not in (None, kind):
        raise Unreadable(f"the vendor's own tool {one['type']!r} is not here: give your own tools")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Unreadable(f"a tool has the name {name!r}: use letters, digits, _ and -, at most 64")
    try:
        return ToolSpec(
            name=name,
            description=one.get("description") or "",
            parameters=one.get(schema) or {"type": "object", "properties": {}},
        )
    except ValidationError as error:
        raise Unreadable(f"the tool {name} can't be read: {reason(error)}") from None


def some(told: list[Message]) -> tuple[Message, ...]:
    if not told or all(message.role == "system" for message in told):
        raise Unreadable("messages has nothing to answer: send a user's message")
    return tuple(told)


def objects(body: Body, name: str) -> list[Body]:
    """A field's objects; none where it is missing. Raises Unreadable."""
    found = [] if body.get(name) is None else body[name]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Unreadable(f"{name} is not a list of objects")
    return found


def offer(body: Body, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The fields of an Ask that say which tools may, must or can't be called, from `tool_choice`
    in any vendor's form. Raises Unreadable."""
    told = body.get("tool_choice")
    choice = as_dict(told)
    kind = choice.get("type", told)
    if kind == "allowed_tools":
        choice = {**choice, **as_dict(choice.get("allowed_tools"))}
        names = [_chosen(one, tools) for one in objects(choice, "tools")]
        tools, kind = [one for one in tools if one.name in names], choice.get("mode") or kind
    found: dict[str, Any] = {"tools": tuple(tools), "must_answer": kind == "none"}
    if kind in ("required", "any") and tools:
        return {**found, "must_call": ANY}
    if kind in ("function", "tool"):
        return {**found, "must_call": _chosen(choice, tools)}
    if kind not in (None, "auto", "none"):
        raise Unreadable(
            f"tool_choice is {short(told)}: give auto, none, required (with tools) or one of your "
            "own tools"
        )
    return found


def _chosen(choice: Body, tools: Sequence[ToolSpec]) -> str:
    """The name of a tool that is chosen. Raises Unreadable for one that is not there."""
    name = as_dict(choice.get("function")).get("name", choice.get("name"))
    if name not in [one.name for one in tools]:
        raise Unreadable(f"tool_choice names {short(name)}, which is none of the tools")
    return str(name)


def short(value: Any) -> str:
    """What a program sent, for a message of one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _stop(body: Body, name: str) -> tuple[str, ...]:
    """Texts that end an answer. Raises Unreadable."""
    value = body.get(name)
    found = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise Unreadable(f"{name} is {value!r}: give a text or a list of texts")
    return tuple(found)


def whole_number(body: Body, name: str) -> int | None:
    """A number of tokens; None if it is not given, for which some clients send -1 or 0. Raises
    Unreadable."""
    value = body.get(name)
    if value is None or (type(value) is int and value in (-1, 0)):
        return None
    if type(value) is not int or value < 1:
        raise Unreadable(
            f"{name} is {short(value)}: give a whole number from 1 on, or leave it out"
        )
    return value


def refuse(body: Body, names: Sequence[str]) -> None:
    """Raises Unreadable for what can't be had."""
    for name in names:
        if body.get(name):
            raise Unreadable(f"{name} can't be had here: leave it out")


def event(data: Body, name: str = "") -> str:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n"


KINDS = (
    Kind("/chat/completions", _read_chat, _chat, _chat_stream, chat_error),
    Kind("/completions", _read_text, _text, _text_stream, chat_error),
    Kind("/messages", _read_messages, _claude, _claude_stream, _claude_error),
)
