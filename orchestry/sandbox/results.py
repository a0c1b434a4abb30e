"""Turns a child's output and its end into one result per call. The output is not trusted."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Any

from orchestry.core.secrets import Redactor
from orchestry.core.types import CallResult, Limits
from orchestry.sandbox.inside import tagged, wire
from orchestry.sandbox.inside.candidate import FRAME
from orchestry.sandbox.inside.server import ENDED, FULL, LATE, MUTE
from orchestry.sandbox.worker import Ended

_MAX_WHY = 300
_MAX_TRACE = 2000
_MAX_LINE = 1 << 31
_TEST_BYTES = 1 << 16  # a test's message about its first failure: 4,096 characters, escaped
_KEYS = {"index", "verdict", "value", "why", "line", "trace"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_VERDICTS = ("value", "error", "timeout", "memory", "output")


def run_room(calls: int, limits: Limits) -> int:
    """The most bytes of an honest run's output; the host reads no more."""
    return (limits.output_kb << 10) + _TEST_BYTES + calls * (wire.PREFIX + FRAME)


def verdicts(played: Ended, calls: int, limits: Limits, redactor: Redactor) -> list[CallResult]:
    """One result per call: its record, or why there is none."""
    results: list[CallResult] = []
    broken = ""
    try:
        for index, body in enumerate(_bodies(played.said, calls, limits)):
            results.append(_result(body, index, redactor))
    except tagged.Untaggable as error:
        broken = f"broke the runner's channel: {error}"
    left = calls - len(results)
    if left:
        why = CallResult("error", why=broken) if broken else _post_mortem(played, limits)
        results += [why] * left
    return results


def _bodies(said: bytes, calls: int, limits: Limits) -> list[bytes]:
    """The records' contents, counted before any is parsed; the last one may be cut off.

    Raises Untaggable for too much output.
    """
    if len(said) > run_room(calls, limits):
        raise tagged.Untaggable("more bytes than a run may say")
    at = 0
    found: list[bytes] = []
    while (start := at + wire.PREFIX) <= len(said):
        at = start + int.from_bytes(said[at:start], "big")
        if at > len(said):
            break
        if len(found) == calls:  # it is unknown which are real
            raise tagged.Untaggable("more records than calls")
        found.append(said[start:at])
    return found


def _result(body: bytes, index: int, redactor: Redactor) -> CallResult:
    """Raises Untaggable for what the runner would not say."""
    start = (tagged.PLAIN % (index, b""))[:-1]
    if body.startswith(start) and body.endswith(b"}"):  # then the value is all there is
        with contextlib.suppress(tagged.Untaggable):
            value = tagged.loads(body[len(start) : -1])
            return CallResult("value", redactor.value(value, body))
    return _spelled(tagged.loads_record(body), body, index, redactor)


def _spelled(record: dict[str, Any], body: bytes, index: int, redactor: Redactor) -> CallResult:
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
    shown = _text(redactor.text(trace, _MAX_TRACE))
    if verdict != "value":
        return CallResult(verdict=verdict, why=said, trace=shown)
    if "value" not in record:
        raise tagged.Untaggable("a record without its value")
    value = redactor.value(tagged.untag(record["value"]), body)
    return CallResult(verdict="value", value=value, why=said, trace=shown)


def _text(text: str) -> str:
    """The text without lone surrogates, which files and servers refuse."""
    return _SURROGATES.sub("\ufffd", text)


def _post_mortem(played: Ended, limits: Limits) -> CallResult:
    """The outcome of all calls without a record."""
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
    if code == -signal.SIGKILL:  # killed by the system, before our own limit
        return CallResult(verdict="memory", why="was killed, as a rule for want of memory")
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return CallResult(verdict="error", why=f"ended its process before it answered ({how})")
