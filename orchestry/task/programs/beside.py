"""What a program asks for beside its agents' answers: names of models, sizes of prompts and
embeddings. Nothing of it is a move, so nothing is learned from it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from orchestry.core.extras import unpacked
from orchestry.core.types import Completion
from orchestry.task.programs.agent_task import Ask
from orchestry.task.programs.wire import Body, Unreadable, refuse, short, whole_number

EMBEDDINGS = "/embeddings"
COUNT = "/messages/count_tokens"
MODELS = "/models"
_BYTES_PER_TOKEN = 3
"""Fewer than in most texts, so that a prompt is rather shortened too early."""
_EMBEDDING = ("input", "dimensions", "encoding_format")
_IGNORED = ("model", "user")
_MOST_DIMENSIONS = 65_536
_FORMS = (None, "float", "base64")


def models(names: Sequence[str]) -> dict[str, Any]:
    """A list of models, in both vendors' form."""
    data = [model(one) for one in names]
    ends = {"first_id": names[0], "last_id": names[-1], "has_more": False}
    return {"object": "list", "data": data, **ends}


def model(name: str) -> dict[str, Any]:
    """One of them."""
    openai = {"object": "model", "created": 0, "owned_by": "orchestry"}
    claude = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, **openai, **claude}


def counted(ask: Ask) -> dict[str, int]:
    """An estimate of a prompt's tokens, always the same for the same call: what a program does by
    it is then the same after a resume."""
    size = len(to_json((ask.messages, ask.tools)))
    return {"input_tokens": math.ceil(size / _BYTES_PER_TOKEN)}


def embedding(body: Body) -> str:
    """What is to be embedded, as the provider is told it, in JSON. Raises Unreadable."""
    refuse(body, [name for name in body if name not in (*_EMBEDDING, *_IGNORED)])
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise Unreadable("model is missing: name the provider's model for embeddings")
    given = body.get("input")
    if not (_text(given) or _ids(given) or _all(given)):
        raise Unreadable(f"input is {short(given)}: give a text, tokens, or a list of such")
    if body.get("encoding_format") not in _FORMS:
        raise Unreadable("encoding_format is not known: give float or base64")
    size = whole_number(body, "dimensions")
    if size is not None and size > _MOST_DIMENSIONS:
        raise Unreadable(f"dimensions is {short(size)}: give at most {_MOST_DIMENSIONS}")
    told = {**body, "dimensions": size}
    return json.dumps({n: told[n] for n in _EMBEDDING if told.get(n) is not None})


def embedded(answer: Completion, body: Body) -> dict[str, Any]:
    """The answer as the client expects it."""
    size = answer.input_tokens
    usage = {"prompt_tokens": size, "total_tokens": size}
    data = unpacked(answer.extra).get("data", [])
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def _text(given: Any) -> bool:
    return isinstance(given, str) and bool(given)


def _ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(one) is int for one in given)


def _all(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(_text(g) or _ids(g) for g in given)
