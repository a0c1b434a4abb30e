"""What a call is billed, from whatever a server says of its tokens.

Servers name their counts differently, leave some out, and count thoughts inside of the answer's
tokens (OpenAI) or beside them (xAI, Gemini). A bill must never be underestimated, so each count is
the largest that any field implies, and the worst case where no field says it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

_INPUT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_DETAILS_IN = ("prompt_tokens_details", "input_tokens_details")
_DETAILS_OUT = ("completion_tokens_details", "output_tokens_details")
_READ = ("cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens")
_THOUGHTS = ("reasoning_tokens", "thinking_tokens", "thoughts_token_count", "thoughtsTokenCount")
_WRITTEN = "cache_creation_input_tokens"
_WRITES = (_WRITTEN, "cache_write_tokens", "cache_creation_tokens", "cache_write_input_tokens")


class Billed(NamedTuple):
    """A call's billed tokens; `input` includes those that were read from or written to a cache."""

    input: int
    output: int
    cached: int = 0
    written: int = 0


def billed(usage: object, input_bound: int, max_tokens: int, *, some: bool) -> Billed:
    """The billed tokens of an answer with this `usage`, in any vendor's shape.

    `input_bound` and `max_tokens` are the worst case of a count that no field gives. `some`: the
    answer has a text, a call or thoughts, so that 0 tokens of output can't be right.
    """
    said = usage if isinstance(usage, Mapping) else {}
    given, drawn, total = _first(said, _INPUT), _first(said, _OUTPUT), _count(said, "total_tokens")
    cached, written = _from_cache(said)
    apart = {"cache_read_input_tokens", _WRITTEN, "cache_creation"} & {*said}
    if apart and given is not None and _count(said, "prompt_tokens") is None:
        given += cached + written  # in Claude's form
    elif given is not None and cached + written > given:  # apart as well, so at most what was sent
        given = max(given, min(given + cached + written, input_bound))
    tokens_in = given or input_bound
    if not given and total is not None and drawn is not None and total > drawn:
        tokens_in = min(total - drawn, input_bound)
    if cached + written > tokens_in:  # impossible, so no discount is given
        cached = written = 0
    return Billed(tokens_in, _output(said, drawn, given, total, max_tokens, some), cached, written)


def _output(
    said: Mapping[str, Any],
    drawn: int | None,
    given: int | None,
    total: int | None,
    max_tokens: int,
    some: bool,
) -> int:
    """The answer's tokens with all thoughts."""
    places = (said, *_parts(said, _DETAILS_OUT))
    thoughts = max(_count(place, name) or 0 for place in places for name in _THOUGHTS)
    rest = None
    if total is not None:  # where no field says the input, all of it may be thoughts
        rest = total - given if given is not None else min(total, max_tokens)
    beside = drawn + thoughts if drawn is not None and thoughts > drawn else None
    known = [count for count in (drawn, rest, beside) if count is not None and count >= 0]
    if not known or (some and not max(known)):
        return max(max_tokens, thoughts)
    return max(known)


def _from_cache(said: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens that were read from the vendor's prompt cache, and written to it."""
    places = (said, *_parts(said, _DETAILS_IN))
    read = max((_count(one, name) or 0 for one in places for name in _READ), default=0)
    kinds = said.get("cache_creation")
    each = [_count(kinds, name) or 0 for name in kinds] if isinstance(kinds, Mapping) else []
    written = max((_count(one, name) or 0 for one in places for name in _WRITES), default=0)
    return read, max(written, sum(each))


def _parts(said: Mapping[str, Any], names: tuple[str, ...]) -> list[Mapping[str, Any]]:
    return [part for name in names if isinstance(part := said.get(name), Mapping)]


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The largest count of these names; None where none is given."""
    return max((n for name in names if (n := _count(said, name)) is not None), default=None)


def _count(said: Mapping[str, Any], name: str) -> int | None:
    """A server's token count; None if it is missing or impossible."""
    value = said.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    if isinstance(value, float) and math.isfinite(value):
        value = math.ceil(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
