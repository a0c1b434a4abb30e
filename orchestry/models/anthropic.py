"""Claude, or any server that speaks the Messages API, through the anthropic SDK.

Claude takes no temperature and no seed, so each sample of a prompt gets its own angle: a short
block after everything that the samples share, and so after the cache breakpoint. A structured
request, such as a judge's, has no angle: its samples repeat one question.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile
from typing import Any

from orchestry.core.asked import thinking_budget
from orchestry.core.errors import ProviderError
from orchestry.core.extras import THINKING, TOOL_USE, as_dict, others, packed, unpacked
from orchestry.core.tools import ANY, ToolCall, fit_id
from orchestry.core.types import Completion, Message, Request
from orchestry.models.dialect import Dialect
from orchestry.models.http import (
    SdkProvider,
    decode,
    error_in,
    explain_failure,
    failure_within,
    malformed,
    post,
    request_bound,
    schema_bound,
    text_in,
    without,
)
from orchestry.models.usage import billed

DEFAULT_MODEL = "claude-haiku-5-5"
VENDOR_URL = "https://api.anthropic.com"
ANGLES = (
    "start from the simplest case",
    "start from the hardest case",
    "prefer the shortest answer that is right",
    "question the first idea and look for a second",
    "work backwards from the result",
    "think of the inputs that break it",
    "use a different method than the usual one",
    "split the problem into parts",
)
"""The hint for sample i > 0: ANGLES[(i - 1) % 8], with its number."""

_STOPS = {
    "end_turn": "end",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "stop_sequence": "stop",
    "refusal": "refusal",
    "tool_use": "calls",
}
# Published minimum of tokens before the breakpoint; where sources disagree, the larger. Models
# not named here get the largest known minimum.
_LARGEST_MINIMUM = 4096
_CACHE_MINIMUM = {
    "claude-opus-5": 512,
    "claude-fable-5": 512,
    "claude-mythos-5": 512,
    "claude-sonnet-5": 1024,
    "claude-opus-4-8": 1024,
    "claude-opus-4-7": 2048,
    "claude-sonnet-4-6": 2048,
    "claude-sonnet-4-5": 1024,
    "claude-opus-4-1": 1024,
    "claude-sonnet-4": 1024,
    "claude-opus-4": 1024,
}
# What structured outputs answer 400 to, of the keywords that bound a value.
_REFUSED = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "maxItems", "uniqueItems"),
}
_THINKS = ("thinking", "redacted_thinking")
_PIECES = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "input_json_delta": ("tool_use", "input"),
}
"""Of a stream: the kind of block that a piece belongs to, and the field that it continues."""
_MARK = {"cache_control": {"type": "ephemeral"}}
_BYTES_PER_TOKEN = 5  # more than in real prompts, so that a wrong estimate means "not cached"


class AnthropicProvider(SdkProvider):
    """One Messages API endpoint."""

    name = "anthropic"
    client_class = "AsyncAnthropic"
    _told = False
    """Whether it was said that some answers are too short for thoughts."""

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """One attempt; see Provider. Streams if `started` is given."""

        async def send(body: dict[str, Any]) -> dict[str, Any]:
            if thinking_budget(body) >= request.max_tokens:  # Claude refuses it
                body = self._without_thoughts(body)
            if started is not None:
                return await self._stream(body, started)
            return await post(self._client, "/v1/messages", body, self._endpoint)

        body = self._body(request, cached=shared and self.leads(request))
        return self._completion(request, await self._sent(body, send, Dialect.mended_choice))

    def _without_thoughts(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self._told:
            self._told = True
            self.warn(
                f"answers of at most {body['max_tokens']} tokens are drawn without thinking, as "
                f"thinking.budget_tokens={thinking_budget(body)} is not below that: raise "
                "the max_tokens of sampling, judge or agents.ROLE, or lower the budget"
            )
        return others(body, "thinking")

    def input_bound(self, request: Request) -> int:
        """The bytes of everything that is sent."""
        own = schema_bound(_schema(request)) + self._dialect.room
        return request_bound(request, _angle(request)) + own

    def leads(self, request: Request) -> bool:
        """Whether the prompt is certainly long enough for the model's prompt cache."""
        return _cacheable(request.model, *(m.content for m in request.messages))

    def _body(self, request: Request, *, cached: bool) -> dict[str, Any]:
        system, chat = _split(request.messages)
        messages = _messages(request, chat, cached=cached)
        body = {"model": request.model, "max_tokens": request.max_tokens, "messages": messages}
        if request.tools:
            body["tools"] = [
                {
                    "name": one.name,
                    "description": one.description,
                    "input_schema": dict(one.parameters),
                }
                for one in request.tools
            ]
            body |= _choice(request)
        if system:
            # Its own mark costs nothing, and other states of the agent can read it.
            marked = cached and _cacheable(request.model, system)
            body["system"] = [_text(system) | _MARK] if marked else system
        if (schema := _schema(request)) is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        return body

    async def _stream(self, body: dict[str, Any], started: Callable[[], None]) -> dict[str, Any]:
        """The answer put together from its events; `started` is called at the first.

        The first is not always `message_start`: llama.cpp's server sometimes omits it.
        """
        failure: ProviderError
        answer, whole = _Assembly(), None
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                needed = {name: body[name] for name in ("model", "max_tokens", "messages")}
                async with await self._client.messages.create(
                    stream=True, **needed, extra_body={n: body[n] for n in body if n not in needed}
                ) as events:
                    if "json" in events.response.headers.get("content-type", ""):
                        whole = await events.response.aread()  # this server knows no streams
                    async for event in events:
                        if not answer.begun:
                            started()
                        answer.add(_plain(event))
        except Exception as error:  # whatever the SDK raises, the caller gets one clear line
            failure = explain_failure(error, self._endpoint, structured="output_config" in body)
        else:
            if whole is not None:
                return decode(whole, self._endpoint)
            if answer.whole:
                return answer.message
            failure = malformed(self._endpoint, "a stream that ended before its message")
        failure.billed |= answer.begun
        raise failure

    def _completion(self, request: Request, answer: Mapping[str, Any]) -> Completion:
        if error := error_in(answer):
            raise failure_within(self._endpoint, error, drawn=bool(answer.get("usage")))
        blocks = answer.get("content")
        if not isinstance(blocks, list):
            raise malformed(self._endpoint, f"a message without content: {answer}")
        text = "".join(self._endpoint.answered(b.get("text")) for b in blocks if _is(b, "text"))
        answered = self._endpoint.answered
        calls = tuple(
            _call(block).with_texts(answered) for block in blocks if _is(block, "tool_use")
        )
        thinking = [block for block in blocks if _thinks(block)]
        bound, some = self.input_bound(request), bool(text or calls or thinking)
        usage = billed(answer.get("usage"), bound, request.max_tokens, some=some)
        stop = str(answer.get("stop_reason") or "end")
        return Completion(
            text=text,
            model=request.model,
            input_tokens=usage.input,
            output_tokens=usage.output,
            cached_tokens=usage.cached,
            cache_write_tokens=usage.written,
            stop=_STOPS.get(stop, stop),
            calls=calls,
            extra=answered(packed({THINKING: thinking})),
        )


class _Assembly:
    """A message built up from a stream's events. What an event lacks adds nothing."""

    def __init__(self) -> None:
        self._blocks: dict[object, dict[str, Any]] = {}
        self._usage: dict[str, Any] = {}
        self._stop: object = None
        self.begun = self.whole = False

    def add(self, event: Mapping[str, Any]) -> None:
        kind, self.begun = event.get("type"), True
        if kind == "message_start":
            self._count(as_dict(event.get("message")).get("usage"))
            self._usage.pop("output_tokens", None)  # of what was drawn before the first event
        elif kind == "content_block_start":
            self._blocks[str(event.get("index"))] = as_dict(event.get("content_block"))
        elif kind == "content_block_delta":
            self._grow(str(event.get("index")), as_dict(event.get("delta")))
        elif kind == "message_delta":
            self._stop = as_dict(event.get("delta")).get("stop_reason")
            self._usage.pop("output_tokens", None)  # only the last count is of the whole answer
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self.whole = True

    def _grow(self, index: str, delta: Mapping[str, Any]) -> None:
        """Adds a piece to its block, which some servers do not begin."""
        kind, name = _PIECES.get(str(delta.get("type")), ("", ""))
        if more := text_in(delta.get("partial_json" if kind == "tool_use" else name)):
            block = self._blocks.setdefault(index, {"type": kind})
            block[name] = text_in(block.get(name)) + more  # a call begins as an object

    def _count(self, usage: object) -> None:
        """Later counts are cumulative and replace earlier ones."""
        self._usage |= {name: found for name, found in as_dict(usage).items() if found is not None}

    @property
    def message(self) -> dict[str, Any]:
        """The answer in the form of an unstreamed one."""
        content = [*self._blocks.values()]
        return {"content": content, "usage": self._usage, "stop_reason": self._stop}


def _choice(request: Request) -> dict[str, Any]:
    """Whether a tool may, must or can't be called."""
    if request.must_answer:
        return {"tool_choice": {"type": "none"}}
    if request.must_call in ("", ANY):
        return {"tool_choice": {"type": "any"}} if request.must_call else {}
    return {"tool_choice": {"type": "tool", "name": request.must_call}}


def _angle(request: Request) -> str:
    index = request.sample_index
    if index == 0 or request.response_schema is not None:
        return ""
    return f"(This is independent attempt {index + 1}: {ANGLES[(index - 1) % len(ANGLES)]}.)"


def _schema(request: Request) -> dict[str, Any] | None:
    """The request's schema in the form that Claude accepts."""
    return None if request.response_schema is None else without(request.response_schema, _refuses)


def _refuses(keyword: str, value: Any) -> bool:
    return keyword in _REFUSED or (keyword == "minItems" and value not in (0, 1))


def _cacheable(model: str, *texts: str) -> bool:
    """Whether these texts together certainly reach the model's minimum."""
    size = sum(len(text.encode("utf-8")) for text in texts)
    minimum = _CACHE_MINIMUM.get(re.sub(r"-\d{8}$", "", model), _LARGEST_MINIMUM)
    return size / _BYTES_PER_TOKEN >= minimum


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _split(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """The system prompt, and the chat as Claude takes it: what the system says later, and a result
    of no call before it, are said by the user. Messages without a text are left out, but not the
    last one, which Claude refuses: without it, the answer would continue the one before."""
    rest = [*dropwhile(lambda message: message.role == "system", messages)]
    system = "\n\n".join(message.content for message in messages[: len(messages) - len(rest)])
    chat, called = list[Message](), set[str]()
    for place, message in enumerate(rest, 1):
        called.update(call.id for call in message.calls)
        if message.role == "system" or (message.role == "tool" and message.call not in called):
            message = Message(role="user", content=message.content)
        holds = message.content.strip() or message.calls or message.role == "tool"
        if holds or place == len(rest):
            chat.append(message)
    return system, chat


def _messages(request: Request, shared: Sequence[Message], *, cached: bool) -> list[dict[str, Any]]:
    """The chat. The angle stands after everything that samples share and before the sample's own
    calls, so that each call's prompt begins with the one before it."""
    began = next((i for i, m in enumerate(shared) if m.calls), len(shared))
    found: list[dict[str, Any]] = [
        {"role": m.role, "content": [_text(m.content)]} for m in shared[:began]
    ]
    if cached and found:
        found[-1]["content"][-1] |= _MARK
    if angle := _angle(request):
        _append(found, "user", _text(angle))
    for message in shared[began:]:
        if message.role == "tool":
            _append(found, "user", _result(message))
        else:
            found.append({"role": message.role, "content": _said(message)})
    if cached and len(shared) > began:
        found[-1]["content"][-1] |= _MARK
    return found


def _append(messages: list[dict[str, Any]], role: str, block: dict[str, Any]) -> None:
    """Adds a block to the last message, if that has the role."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"].append(block)
    else:
        messages.append({"role": role, "content": [block]})


def _said(message: Message) -> list[dict[str, Any]]:
    """An assistant's text, which may not be empty, and its calls."""
    calls = [
        {
            **as_dict(unpacked(call.extra).get(TOOL_USE)),
            "type": "tool_use",
            "id": fit.id,
            "name": fit.name,
            "input": call.given,
        }
        for call in message.calls
        for fit in (call.fit,)
    ]
    text = [_text(message.content)] if message.content.strip() or not calls else []
    thinking = unpacked(message.extra).get(THINKING, [])
    return [*(block for block in thinking if _thinks(block)), *text, *calls]


def _thinks(block: object) -> bool:
    return any(_is(block, kind) for kind in _THINKS)


def _result(message: Message) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": fit_id(message.call), "content": message.content}


def _call(block: Mapping[str, Any]) -> ToolCall:
    """A call, whose arguments are an object, or pieces of its text if it was streamed."""
    given = block.get("input")
    added = others(block, "type", "id", "name", "input")
    return ToolCall(
        id=text_in(block.get("id")),
        name=text_in(block.get("name")),
        arguments=given if isinstance(given, str) else json.dumps({} if given is None else given),
        extra=packed({TOOL_USE: {name: one for name, one in added.items() if one is not None}}),
    )


def _plain(event: Any) -> Mapping[str, Any]:
    """A stream's event as it was sent."""
    return event.to_dict(warnings=False) if hasattr(event, "to_dict") else as_dict(event)


def _is(block: object, kind: str) -> bool:
    return isinstance(block, dict) and block.get("type") == kind
