"""From what a child said, and how it ended, to one verdict a call. All of it a stranger's words."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

from orchestry.services.sandbox.inside import tagged, wire
from orchestry.services.sandbox.inside.server import ENDED, FULL, LATE, MUTE
from orchestry.services.sandbox.leaks import Redactor
from orchestry.services.sandbox.worker import Played
from orchestry.types import CallResult, Limits

_MAX_WHY = 300
_MAX_TRACE = 2000
_MAX_LINE = 1 << 31
_RECORD_BYTES = 1 << 17  # what a record may have besides its value: texts of 4,096 characters
_KEYS = {"index", "verdict", "value", "why", "line", "trace"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_VERDICTS = ("value", "error", "timeout", "memory", "output")


def record_room(limits: Limits) -> int:
    """Bytes of the longest honest record."""
    return (limits.output_kb << 10) + _RECORD_BYTES


def verdicts(played: Played, calls: int, limits: Limits, redactor: Redactor) -> list[CallResult]:
    """One result a call: what was said of it, or why nothing was."""
    results: list[CallResult] = []
    why = _post_mortem(played, limits)
    try:
        for body in _bodies(played.said):
            if len(results) == calls:  # more records than calls: which are the right ones?
                raise tagged.Untaggable("more records than calls")
            if len(body) > record_room(limits):
                raise tagged.Untaggable("a record that is too long")
            results.append(_result(tagged.loads_record(body), len(results), limits, redactor))
    except tagged.Untaggable as error:
        why = CallResult(verdict="error", why=f"broke the runner's channel: {error}")
        results = [] if len(results) == calls else results
    return [*results, *([why] * (calls - len(results)))]


def _bodies(said: bytes) -> Iterator[bytes]:
    """The records' contents; the last one may have been cut off."""
    at = 0
    while at + wire.HEAD <= len(said):
        size = int.from_bytes(said[at : at + wire.HEAD], "big")
        if at + wire.HEAD + size > len(said):
            return
        yield said[at + wire.HEAD : at + wire.HEAD + size]
        at += wire.HEAD + size


def _result(record: dict[str, Any], index: int, limits: Limits, redactor: Redactor) -> CallResult:
    """Raises Untaggable for what the runner would not say."""
    if record.get("index") != index or record.keys() - _KEYS:
        raise tagged.Untaggable("a record out of order")
    verdict, line = record.get("verdict"), record.get("line")
    why, trace = record.get("why", ""), record.get("trace", "")
    numbered = line is None or (type(line) is int and 0 <= line < _MAX_LINE)
    if verdict not in _VERDICTS or type(why) is not str or type(trace) is not str or not numbered:
        raise tagged.Untaggable("a record that is not the runner's")
    place = "" if line is None else f" (line {line})"
    said = _text(redactor.text(why, _MAX_WHY) + place) if why else place
    if verdict != "value":
        shown = _text(redactor.text(trace, _MAX_TRACE))
        return CallResult(verdict=verdict, why=said, trace=shown)
    if "value" not in record:
        raise tagged.Untaggable("a record without its value")
    plain = tagged.untag(record["value"])
    return CallResult(verdict="value", value=redactor.value(plain), why=said)


def _text(text: str) -> str:
    """Without lone surrogates, which no file and no server takes."""
    return _SURROGATES.sub("\ufffd", text)


def _post_mortem(played: Played, limits: Limits) -> CallResult:
    """The verdict on all calls that a child left open."""
    if played.end == LATE:
        text = f"no answer within {limits.wall_s:g} s for the whole run"
        return CallResult(verdict="timeout", why=text)
    if played.end == FULL:
        return CallResult(verdict="output", why="said more than all its calls together may")
    if played.end == MUTE:
        return CallResult(verdict="error", why="closed the runner's channel")
    assert played.end == ENDED
    code = os.waitstatus_to_exitcode(played.status)
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and played.cpu_s >= limits.cpu_s):
        return CallResult(verdict="timeout", why="used up the CPU time of the whole run")
    if code == -signal.SIGKILL:  # the system's, for this was before our own
        return CallResult(verdict="memory", why="was killed, as a rule for want of memory")
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return CallResult(verdict="error", why=f"ended its process before it answered ({how})")
