"""OpenAI's Responses API, from the side that answers: the third format beside those of wire.py.

Nothing is kept between calls, so each has to send its whole conversation (`previous_response_id`
is refused), which is what clients do that can talk to other servers too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestry.core.extras import packed, unpacked
from orchestry.core.tools import ToolCall
from orchestry.core.types import Completion, Message
from orchestry.task.programs import wire
from orchestry.task.programs.agent_task import Ask
from orchestry.task.programs.wire import Body, Kind, Unreadable

_LACKS = (
    *("previous_response_id", "conversation", "background", "prompt", "top_logprobs"),
    "response_format",
)
_CUT = {"length": "max_output_tokens", "refusal": "content_filter"}
"""Why an answer is incomplete, by how it stopped."""
_Event = dict[str, Any]


def _read(role: str, body: Body) -> Ask:
    wire.refuse(body, _LACKS)
    if "logprobs" in str(body.get("include")):
        raise Unreadable("include asks for log-probabilities: leave them out")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    rules = wire.text_of(body.get("instructions"))
    system = [wire.message_of("system", rules)] if rules else []
    return Ask(
        role=role,
        messages=wire.some([*system, *_messages(wire.objects({"input": items}, "input"))]),
        **wire.offer(body, [*map(wire.tool_of, wire.objects(body, "tools"))]),
        max_tokens=wire.whole_number(body, "max_output_tokens"),
        schema=_schema(body),
    )


def _messages(items: list[Body]) -> list[Message]:
    """An agent's calls, and a text beside them, are one message of it."""
    runs, added = list[list[Message]](), dict[str, Any]()
    for item in items:
        if item.get("type") == "reasoning":
            added = unpacked(wire.unsealed(item.get("encrypted_content")))
            continue
        one = _message(item)
        added = added if one.role == "assistant" else {}
        one = _with(one, added)
        last = runs[-1][-1] if runs else None
        if last and last.role == one.role == "assistant" and (last.calls or one.calls):
            runs[-1].append(one)
        else:
            runs.append([one])
    return [_joined(run) for run in runs]


def _joined(run: list[Message]) -> Message:
    calls = tuple(call for one in run for call in one.calls)
    first, text = run[0], "".join(one.content for one in run)
    return wire.message_of(first.role, text, calls, first.call, first.extra)


def _with(one: Message, added: Body) -> Message:
    """An agent's message with what its server had added; see `_thought`."""
    own = wire.as_dict(added.get("calls"))
    calls = [call.model_copy(update={"extra": str(own.get(call.id, ""))}) for call in one.calls]
    extra = str(added.get("message", ""))
    return wire.message_of(one.role, one.content, tuple(calls), one.call, extra)


def _message(item: Body) -> Message:
    kind = item.get("type") or "message"
    if kind == "function_call":
        id, name, arguments = (_field(item, one) for one in ("call_id", "name", "arguments"))
        return wire.message_of("assistant", "", (ToolCall(id=id, name=name, arguments=arguments),))
    if kind == "function_call_output":
        return wire.message_of(
            "tool", wire.text_of(item.get("output")), call=_field(item, "call_id")
        )
    if kind != "message":
        raise Unreadable(f"input has an item of type {kind!r}: send messages and function calls")
    role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
    return wire.message_of(role, wire.text_of(_unrefused(item.get("content"))))


def _field(item: Body, name: str) -> str:
    """A text that this API demands. Raises Unreadable."""
    if not isinstance(item.get(name), str):
        raise Unreadable(f"an item of type {item['type']!r} has no {name}: send it as you got it")
    return str(item[name])


def _unrefused(content: Any) -> Any:
    """A message's parts, of which what an agent said in refusal is text."""
    if not isinstance(content, list):
        return content
    return [wire.as_dict(one).get("refusal", one) for one in content]


def _schema(body: Body) -> dict[str, Any] | None:
    """Of a structured answer."""
    told = body.get("text") or {}
    asked = told.get("format") or {} if isinstance(told, dict) else told
    kind = wire.as_dict(asked).get("type", asked or None)
    if kind in (None, "text"):
        return None
    schema = wire.as_dict(asked).get("schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise Unreadable(f"text.format {kind!r} is not known: give json_schema, or leave it out")
    return schema


def _answer(answer: Completion, body: Body) -> _Event:
    return _whole(answer, body, _head(body))


def _whole(answer: Completion, body: Body, head: _Event) -> _Event:
    # A program that set no limit takes an answer cut by the run's for no answer.
    known = answer.stop != "length" or body.get("max_output_tokens")
    cut = _CUT.get(answer.stop) if known else None
    given, drawn = answer.input_tokens, answer.output_tokens
    usage = {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": drawn,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + drawn,
    }
    return {
        **head,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "output": _output(answer),
        "usage": usage,
    }


def _head(body: Body) -> _Event:
    return {
        "id": wire.fresh("resp"),
        "object": "response",
        "created_at": 0,
        "model": str(body.get("model") or "orchestry"),
        "status": "in_progress",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "temperature": None,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
    }


def _output(answer: Completion) -> list[_Event]:
    """What the server added, a text, if there is one, then the calls."""
    found = _thought(answer)
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        told = {"type": "message", "role": "assistant", "content": [part]}
        found.append({"id": wire.fresh("msg"), "status": "completed", **told})
    for call in answer.calls:
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        own = {"id": f"fc_{call.id}", "type": "function_call", "status": "completed"}
        found.append({**own, **named})
    return found


def _thought(answer: Completion) -> list[_Event]:
    """What the server added to the answer and its calls, and wants back, as thoughts that a program
    sends back unread. The thoughts that can be read are its summary."""
    calls = {call.id: call.extra for call in answer.calls if call.extra}
    if not (added := packed({"message": answer.extra, "calls": calls})):
        return []
    said = wire.thoughts_in(unpacked(answer.extra))
    summary = [{"type": "summary_text", "text": said}] if said else []
    own = {"id": wire.fresh("rs"), "type": "reasoning", "summary": summary}
    return [{**own, "encrypted_content": wire.sealed(added)}]


def _stream(answer: Completion, body: Body) -> Iterator[str]:
    for number, event in enumerate(_events(answer, body)):
        yield wire.event({**event, "sequence_number": number}, event["type"])


def _events(answer: Completion, body: Body) -> Iterator[_Event]:
    head = _head(body)
    whole = _whole(answer, body, head)
    yield {"type": "response.created", "response": head}
    for place, item in enumerate(whole["output"]):
        at = {"output_index": place}
        yield from ({**one, **at} for one in _PIECES[item["type"]](item))
        yield {"type": "response.output_item.done", "item": item, **at}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _said(item: _Event) -> Iterator[_Event]:
    """A text in one piece."""
    part, at = item["content"][0], {"item_id": item["id"], "content_index": 0}
    empty = {**item, "content": [], "status": "in_progress"}
    yield {"type": "response.output_item.added", "item": empty}
    yield {"type": "response.content_part.added", "part": {**part, "text": ""}, **at}
    yield {"type": "response.output_text.delta", "delta": part["text"], "logprobs": [], **at}
    yield {"type": "response.output_text.done", "text": part["text"], "logprobs": [], **at}
    yield {"type": "response.content_part.done", "part": part, **at}


def _called(item: _Event) -> Iterator[_Event]:
    """A call in one piece."""
    at, kind = {"item_id": item["id"]}, "response.function_call_arguments"
    empty = {**item, "arguments": "", "status": "in_progress"}
    yield {"type": "response.output_item.added", "item": empty}
    yield {"type": f"{kind}.delta", "delta": item["arguments"], **at}
    yield {"type": f"{kind}.done", "arguments": item["arguments"], "name": item["name"], **at}


def _added(item: _Event) -> Iterator[_Event]:
    """Thoughts in one piece."""
    yield {"type": "response.output_item.added", "item": item}


_PIECES = {"message": _said, "function_call": _called, "reasoning": _added}
RESPONSES = Kind("/responses", _read, _answer, _stream, wire.chat_error)
