"""The bytes the loopback server answers with: Messages and chat completions, whole and streamed.

Written by hand where it is hot: the server must cost less than what is measured through it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.server.bill import Usage

_WORDS = "the team reads what was asked and then it writes down one more step that can be tested "
_FILLER = _WORDS * 800
_PIECE = 400


def filler(body_hash: str, tokens: int) -> str:
    """About four bytes per token of text that differs with the hash and follows from it."""
    start = int(body_hash[:4], 16) % len(_WORDS)
    return f"{body_hash[:12]} {_FILLER[start : start + 4 * tokens]}".rstrip()


def message(model: str, body_hash: str, text: str, usage: Usage, *, stop: str) -> bytes:
    """A whole answer of POST /v1/messages."""
    return (
        f'{{"id":"msg_{body_hash}","type":"message","role":"assistant","model":{json.dumps(model)},'
        f'"content":[{{"type":"text","text":{json.dumps(text)}}}],"stop_reason":"{stop}",'
        f'"stop_sequence":null,"usage":{_usage(usage, usage.output)}}}'
    ).encode()


def message_events(
    model: str, body_hash: str, text: str, usage: Usage, *, stop: str
) -> Iterator[bytes]:
    """The same answer as server-sent events, the opening first."""
    opening = json.loads(message(model, body_hash, "", replace(usage, told=True), stop=stop))
    opening["content"] = []
    opening["stop_reason"] = None
    opening["usage"]["output_tokens"] = 1
    yield _event("message_start", message=opening) + _event(
        "content_block_start", index=0, content_block={"type": "text", "text": ""}
    )
    for start in range(0, len(text), _PIECE):
        piece = {"type": "text_delta", "text": text[start : start + _PIECE]}
        yield _event("content_block_delta", index=0, delta=piece)
    yield (
        _event("content_block_stop", index=0)
        + _event(
            "message_delta",
            delta={"stop_reason": stop, "stop_sequence": None},
            **_final(body_hash, usage),
        )
        + _event("message_stop")
    )


def chat(model: str, body_hash: str, texts: list[str], usage: Usage, *, stop: str) -> bytes:
    """A whole answer of POST /v1/chat/completions."""
    choices = ",".join(
        f'{{"index":{i},"message":{{"role":"assistant","content":{json.dumps(text)}}},'
        f'"logprobs":null,"finish_reason":"{stop}"}}'
        for i, text in enumerate(texts)
    )
    return (
        f'{{"id":"chatcmpl-{body_hash}","object":"chat.completion","created":0,'
        f'"model":{json.dumps(model)},"choices":[{choices}],"usage":{_chat_usage(usage)}}}'
    ).encode()


def chat_events(
    model: str, body_hash: str, texts: list[str], usage: Usage, *, stop: str, with_usage: bool
) -> Iterator[bytes]:
    """The same answer as server-sent events; a usage event last, where it was asked for."""
    head: dict[str, Any] = {
        "id": f"chatcmpl-{body_hash}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
    }
    for i, text in enumerate(texts):
        for start in range(0, len(text), _PIECE):
            delta = {"role": "assistant", "content": text[start : start + _PIECE]}
            yield _data(head | {"choices": [{"index": i, "delta": delta, "finish_reason": None}]})
        yield _data(head | {"choices": [{"index": i, "delta": {}, "finish_reason": stop}]})
    if with_usage:
        yield _data(head | {"choices": [], "usage": json.loads(_chat_usage(usage))})
    yield b"data: [DONE]\n\n"


def error(kind: str, text: str) -> bytes:
    """An error body that both vendors' SDKs read."""
    return json.dumps({"type": "error", "error": {"type": kind, "message": text}}).encode()


def _final(body_hash: str, usage: Usage) -> dict[str, Any]:
    """The last count of a stream; where it is not told, an empty one, or none."""
    if usage.told:
        return {"usage": {"output_tokens": usage.output}}
    return {"usage": {}} if int(body_hash[0], 16) % 2 else {}


def _usage(usage: Usage, output: int) -> str:
    if not usage.told:
        return "{}"
    return (
        f'{{"input_tokens":{usage.input},"output_tokens":{output},'
        f'"cache_creation_input_tokens":{usage.write},"cache_read_input_tokens":{usage.read}}}'
    )


def _chat_usage(usage: Usage) -> str:
    if not usage.told:
        return "null"
    beside = f'"completion_tokens_details":{{"reasoning_tokens":{usage.thoughts}}},'
    return (
        f'{{"prompt_tokens":{usage.total_input},'
        f'"completion_tokens":{usage.output - usage.thoughts},{beside * (usage.thoughts > 0)}'
        f'"total_tokens":{usage.total_input + usage.output},'
        f'"prompt_tokens_details":{{"cached_tokens":{usage.read}}}}}'
    )


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _data(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()
