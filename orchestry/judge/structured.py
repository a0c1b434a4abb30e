"""Structured questions: material between fences, answers by a schema, one repair per answer.

Text by agents and tasks is put between fences with a code that its authors could not know. So no
text can close its own fence and pose as other material or as instructions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from orchestry.core.config import MAX_TOKENS
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Message, Outcome, Policy, Request

_T = TypeVar("_T")
CUT = " [cut]"
_CUT_OUT = "\n[cut]\n"
_FRAME = 64
"""Tokens of an answer in addition to its parts."""
_OPENED = re.compile(r"<(?:think|thinking|thought)>", re.IGNORECASE)
_CLOSED = re.compile(r"</(?:think|thinking|thought)>", re.IGNORECASE)
_REPAIR = "That is no valid {noun}: {why}. Answer once more, with only the JSON object asked for."


class Malformed(ValueError):
    """An answer that can't be read; the message tells the model why."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[_T]):
    """The result of one question."""

    value: _T | None
    """The parsed answer; None if it stayed malformed."""
    at_once: bool
    """Whether the first answer could be read."""


# --- the question -------------------------------------------------------------------------------


def fence_code(seed: int) -> str:
    """The code in the fences of one question: 12 hex digits unknown to the material's authors."""
    return f"{derive(seed, 'fence'):016x}"[:12]


def marked_off(name: str, text: str, code: str) -> str:
    """The text as material of that name."""
    return f"[{code} begin {name}]\n{text}\n[{code} end {name}]"


def head(text: str, most: int) -> str:
    """The first `most` characters, and a mark if the text was longer."""
    return text if len(text) <= most else text[:most] + CUT


def ends(text: str, most: int) -> str:
    """Head and tail, `most` characters in total, with a mark between them if the text was
    longer."""
    return text if len(text) <= most else f"{text[: most // 2]}{_CUT_OUT}{text[-most // 2 :]}"


def closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of an object that has all these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def room(least: int, parts: int, tokens_each: int) -> int:
    """The token limit of an answer with that many parts: `least`, or more if they need it.

    An answer that is cut off is not JSON: with a low limit, it and its repair are paid for nothing.
    """
    return min(MAX_TOKENS, max(least, parts * tokens_each + _FRAME))


# --- the answer ---------------------------------------------------------------------------------


def parsed(text: str, read: Callable[[dict[str, Any]], _T]) -> _T:
    """What `read` makes of the one JSON object in a text, whatever surrounds it: thoughts, a code
    fence, prose. Of several objects, the one that `read` takes.

    Raises Malformed, also if it takes several that differ: one may be a quotation.
    """
    found, faults = list[_T](), list[Malformed]()
    for one in _objects(text):
        try:
            found.append(read(one))
        except Malformed as why:
            faults.append(why)
    if any(other != found[0] for other in found[1:]):
        raise Malformed("it holds several JSON objects that differ")
    if found:
        return found[0]
    raise faults[0] if len(faults) == 1 else Malformed("it is not one JSON object")


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The text's JSON object; else those in what it says after its thoughts."""
    try:
        whole = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        yield from _objects_in(_after_thoughts(text))
    else:
        if isinstance(whole, dict):
            yield whole
        elif isinstance(whole, str):  # the object's text, as a JSON string
            yield from _objects(whole)
        else:
            yield from _objects_in(text)


def _after_thoughts(text: str) -> str:
    """What it says after its thoughts, also those whose beginning stood in the prompt; before them,
    where their end was cut off."""
    said = text[max((one.end() for one in _CLOSED.finditer(text)), default=0) :]
    return _OPENED.split(said, maxsplit=1)[0]


def _objects_in(text: str) -> Iterator[dict[str, Any]]:
    at = text.find("{")
    while at >= 0:
        try:
            found, end = _DECODER.raw_decode(text, at)
        except Malformed:
            raise
        except RecursionError:  # no answer is so deep; each of its braces would be tried
            return
        except ValueError:
            end = at + 1
        else:
            yield found
        at = text.find("{", end)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises if a key is repeated."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Malformed("it names a key twice")
    return found


def _number(text: str) -> int | float:
    """7.0 is 7, which some models write where a schema wants a whole number."""
    number = float(text)
    return int(number) if number.is_integer() else number


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_float=_number)


async def ask(
    policy: Policy,
    requests: Sequence[Request],
    read: Callable[[Completion], _T],
    *,
    noun: str,
    clip: Callable[[str], str],
) -> list[Reply[_T]]:
    """One reply per request, in order: all questions in one batch, all repairs in a second.

    `read` raises Malformed, which the repair tells the model, naming its answer by `noun` and
    showing it through `clip`. Raises what the policy raises.
    """
    answers = await _batch(policy, requests)
    replies, repairs = list[Reply[_T]](), dict[int, Request]()
    for place, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        try:
            replies.append(Reply(read(answer), at_once=True))
        except Malformed as why:
            replies.append(Reply(None, at_once=False))
            # If the prompt was too long, a longer one would be too.
            if not answer.failed and answer.stop != "too_long":
                repairs[place] = _repair(request, clip(answer.text.strip()), noun, why)
    again = await _batch(policy, [*repairs.values()]) if repairs else []
    for place, answer in zip(repairs, again, strict=True):
        try:
            replies[place] = replace(replies[place], value=read(answer))
        except Malformed:
            continue  # no second repair: the reply has no value
    return replies


def _repair(request: Request, shown: str, noun: str, why: Malformed) -> Request:
    """The request that shows a malformed answer (or part of it) and names its fault."""
    messages = (
        *request.messages,
        Message(role="assistant", content=shown or "(nothing)"),  # vendors refuse an empty message
        Message(role="user", content=_REPAIR.format(noun=noun, why=why)),
    )
    seed = derive(request.seed, "repair")
    return request.model_copy(update={"messages": messages, "seed": seed})


def outcome(replies: Sequence[Reply[_T]]) -> Outcome:
    """The outcome of several replies: `malformed` only if none could be read."""
    if all(reply.value is None for reply in replies):
        return "malformed"
    return "rated" if all(reply.at_once for reply in replies) else "repaired"


async def _batch(policy: Policy, requests: Sequence[Request]) -> list[Completion]:
    return [answer for (answer,) in await policy.sample(requests, 1)]
