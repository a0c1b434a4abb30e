"""Runs one candidate's calls in a forked child and sends one record per call.

Nothing in here knows what the calls should return. The candidate runs in this very process and can
reach all of it, so whoever reads the records takes them as answers of the candidate, no more.
"""

from __future__ import annotations

import linecache
import marshal
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from orchestry.sandbox.inside.tagged import Untaggable, dumps, dumps_record, loads

NAME = "<candidate>"
MAX_WHY = 4096  # the host shows less
MAX_FRAMES = 8
REARM_S = 0.05
FRAME = 128
"""Bytes of each record that do not count: its index, its verdict and a short why."""

Record = dict[str, Any]
Send = Callable[[bytes], None]


class OutOfTime(BaseException):
    """The current call used up its CPU time."""


def answer_calls(job: dict[str, Any], send: Send) -> None:
    """Every call of the job in order, each with arguments of its own."""
    call_s, output_kb = job["call_s"], job["output_kb"]
    function, failure = load(job["code"], job["entry_point"], call_s)
    room = output_kb << 10  # for all calls together: the host reads what they say
    for index, args in enumerate(job["calls"]):
        record = failure or attempt(function, marshal.loads(args), call_s)
        data = fitted({"index": index, **record}, room, output_kb)
        room -= max(0, len(data) - FRAME)
        send(data)


def answer_test(job: dict[str, Any], receive: Callable[[], bytes], send: Send) -> None:
    """Calls as a test in another process asks for them, until it is gone."""
    call_s, output_kb = job["call_s"], job["output_kb"]
    function, failure = load(job["code"], job["entry_point"], call_s)
    while True:
        args, named = loads(receive())
        record = failure or attempt(partial(function, **named), args, call_s, kin=True)
        send(fitted(record, output_kb << 10, output_kb))


def fitted(record: Record, room: int, output_kb: int) -> bytes:
    """A record as it is sent; one that needs more than `room` says only that."""
    if len(record.get("value", b"")) <= room:
        data = dumps_record(record)
        if len(data) <= room + FRAME:
            return data
    verdict = "output" if record["verdict"] == "value" else record["verdict"]
    short = {"verdict": verdict, "why": f"said more than {output_kb} KiB in all"}
    return dumps_record(short | ({"index": record["index"]} if "index" in record else {}))


def load(code: str, entry_point: str, call_s: float) -> tuple[Callable[..., Any], Record | None]:
    """The candidate's function, or the record that every call gets because there is none."""
    module = sys.modules["candidate"] = ModuleType("candidate")  # as pickle and others expect
    names = vars(module)
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)

    def define() -> Record:
        exec(compile(code, NAME, "exec", dont_inherit=True), names)  # noqa: S102
        if not callable(names.get(entry_point)):
            return {"verdict": "error", "why": f"no function '{entry_point}' is defined"}
        return {}

    failure = timed(define, call_s)
    found = names.get(entry_point)
    return (found if callable(found) else define), failure or None


def attempt(function: Callable[..., Any], args: Any, call_s: float, *, kin: bool = False) -> Record:
    """One call: its value as tagged JSON, or why there is none."""

    def answer() -> Record:
        value = function(*args)
        try:
            data = dumps(value, kin=kin)
        except Untaggable as error:
            return {"verdict": "error", "why": f"returned what can't be compared: {error}"}
        return {"verdict": "value", "value": data}

    return timed(answer, call_s)


def timed(work: Callable[[], Record], call_s: float) -> Record:
    """Runs candidate code under the CPU timer; whatever it raises becomes a record."""
    try:
        _arm(call_s, REARM_S)
        try:
            return work()
        finally:
            _arm(0)
    except OutOfTime:
        return {"verdict": "timeout", "why": f"no answer after {call_s:g} s of CPU time"}
    except MemoryError as error:
        return {"verdict": "memory", **explain(error)}
    except BaseException as error:
        return {"verdict": "error", **explain(error)}


def heed_timer() -> None:
    """From here on the CPU timer's end is an OutOfTime, in this process and its forks."""
    signal.signal(signal.SIGPROF, out_of_time)


def _arm(call_s: float, again_s: float = 0) -> None:
    """Starts the CPU timer, or ends it (0). WASI has none: there only the run as a whole ends."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, call_s, again_s)


def out_of_time(*_: object) -> None:
    """The handler of the CPU timer."""
    raise OutOfTime


def explain(error: BaseException) -> Record:
    """What was raised, the line inside the candidate, and its own part of the traceback."""
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # the candidate's own __str__
        text = "(its message can't be shown)"
    kind = type(error).__name__
    why = f"{kind}: {text}" if text else kind
    line, trace = _frames(error)
    return {"why": why[:MAX_WHY], "line": line, "trace": trace[:MAX_WHY]}


def _frames(error: BaseException) -> tuple[int | None, str]:
    """The candidate's own line that raised, and its frames, one per line."""
    if isinstance(error, SyntaxError):
        return error.lineno, ""
    try:
        frames = [f for f in _extract(error.__traceback__) if f.filename == NAME]
        shown = [f"line {f.lineno}, in {f.name}: {f.line}" for f in frames]
    except BaseException:  # the candidate may have patched what this stands on
        return None, ""
    if len(shown) > MAX_FRAMES:  # the first ones and the last ones tell
        half = MAX_FRAMES // 2
        shown = [*shown[:half], f"({len(shown) - 2 * half} more)", *shown[-half:]]
    return (frames[-1].lineno if frames else None), "\n".join(shown)


_extract = traceback.extract_tb
