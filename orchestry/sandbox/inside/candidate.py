"""Runs one candidate's calls in a forked child and sends one record per call.

Nothing here knows what the calls should return. The candidate runs in this process and can reach
all of it, so its records are treated as the candidate's own words.
"""

from __future__ import annotations

import builtins
import linecache
import marshal
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from orchestry.sandbox.inside.mirror import Mirror
from orchestry.sandbox.inside.tagged import Untaggable, dumps, dumps_record

_NAME = "<candidate>"
MAX_WHY = 4096  # the host shows less
MAX_FRAMES = 8
REARM_S = 0.05
FRAME = 128
"""Bytes of each record that do not count: index, outcome and a short reason."""

Record = dict[str, Any]
Send = Callable[[bytes], None]


class OutOfTime(BaseException):
    """The current call used up its CPU time."""


def answer_calls(job: dict[str, Any], send: Send) -> None:
    """Runs every call of the job in order, each with its own arguments."""
    call_s, output_kb = job["call_s"], job["output_kb"]
    function, failure = _load(job["code"], job["entry_point"], call_s)
    room = output_kb << 10  # for all calls together, because the host reads their output
    for index, args in enumerate(job["calls"]):
        record = failure or attempt(function, marshal.loads(args), call_s)
        data = fitted({"index": index, **record}, room, output_kb)
        room -= max(0, len(data) - FRAME)
        send(data)


def answer_test(job: dict[str, Any], receive: Callable[[], bytes], send: Send) -> None:
    """Serves calls of a test in another process, until the test ends."""
    tested = Tested(job, receive, send)
    while True:
        tested.until_told()


class Tested:
    """The candidate in its own process: answers a test's calls, and calls its functions."""

    def __init__(self, job: dict[str, Any], receive: Callable[[], bytes], send: Send) -> None:
        self._receive, self._send = receive, send
        self._call_s, self._output_kb = job["call_s"], job["output_kb"]
        function, self._failure = _load(job["code"], job["entry_point"], self._call_s)
        self._names = vars(sys.modules["candidate"])
        self._mirror = Mirror(self._names, 1, self._ask)
        self._mirror.give(function, function)
        self._deep = 0

    def until_told(self) -> tuple[Any, ...]:
        """Answers, until the test says what a function of its own came to."""
        while True:
            what, *content = self._mirror.loads(self._receive())
            if what != "call":
                return (what, *content)
            self._deep += 1
            work = partial(self._answer, *content)
            record = self._failure or timed(work, self._call_s)
            self._send(fitted(record, self._output_kb << 10, self._output_kb))
            self._deep -= 1
            if not self._deep:
                self._mirror.forget()

    def _answer(self, number: int, args: Any, named: Any) -> Record:
        try:
            value = self._mirror.given[number][1](*args, **named)
        except MemoryError:
            raise
        except Exception as error:
            return {"verdict": "error", **explain(error), "value": self._raised(error)}
        try:
            return {"verdict": "value", "value": self._mirror.pack(value)}
        except Untaggable as error:
            return {"verdict": "error", "why": f"returned what can't be compared: {error}"}

    def _raised(self, error: Exception) -> bytes:
        """Names of its classes, its arguments and its attributes."""
        kinds = [kind.__name__ for kind in type(error).__mro__]
        try:
            return self._mirror.pack((kinds, error.args, vars(error)))
        except Untaggable:
            return self._mirror.pack((kinds, (), {}))

    def _ask(self, number: int, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls a function of the test's."""
        data = self._mirror.pack((number, args, named))
        self._send(
            fitted({"verdict": "asks", "value": data}, self._output_kb << 10, self._output_kb)
        )
        what, content, *rest = self.until_told()
        if what == "returned":
            return content
        known = self._names.get(content, getattr(builtins, content, None))
        if not isinstance(known, type) or not issubclass(known, Exception):
            known = type(content, (Exception,), {})  # a class that only the test has
        raise known(*rest[0])


def fitted(record: Record, room: int, output_kb: int) -> bytes:
    """A record for sending; if it needs more than `room`, a short one that says so."""
    if len(record.get("value", b"")) <= room:
        data = dumps_record(record)
        if len(data) <= room + FRAME:
            return data
    verdict = "output" if record["verdict"] == "value" else record["verdict"]
    short = {"verdict": verdict, "why": f"said more than {output_kb} KiB in all"}
    return dumps_record(short | ({"index": record["index"]} if "index" in record else {}))


def _load(code: str, entry_point: str, call_s: float) -> tuple[Callable[..., Any], Record | None]:
    """The candidate's function; if there is none, the record for every call."""
    names = vars(opened(code, "candidate"))

    def define() -> Record:
        execute(code, names)
        if not callable(names.get(entry_point)):
            return {"verdict": "error", "why": f"no function '{entry_point}' is defined"}
        return {}

    failure = timed(define, call_s)
    found = names.get(entry_point)
    return (found if callable(found) else define), failure or None


def opened(code: str, name: str) -> ModuleType:
    """An empty module for a candidate's code, where pickle and tracebacks look for it."""
    module = sys.modules[name] = ModuleType(name)
    linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
    return module


def execute(code: str, names: dict[str, Any]) -> None:
    """Runs a candidate's code in its module's names; raises what it raises."""
    exec(compile(code, _NAME, "exec", dont_inherit=True), names)  # noqa: S102


def attempt(function: Callable[..., Any], args: Any, call_s: float) -> Record:
    """Runs one call: its value as tagged JSON, or why there is none."""

    def answer() -> Record:
        value = function(*args)
        try:
            data = dumps(value, kin=True)
        except Untaggable as error:
            return {"verdict": "error", "why": f"returned what can't be compared: {error}"}
        return {"verdict": "value", "value": data}

    return timed(answer, call_s)


def timed(work: Callable[[], Record], call_s: float) -> Record:
    """Runs candidate code under the CPU timer; an exception becomes a record."""
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
    """From now on the CPU timer raises OutOfTime, in this process and its forks."""
    signal.signal(signal.SIGPROF, out_of_time)


def _arm(call_s: float, again_s: float = 0) -> None:
    """Starts the CPU timer, or stops it (0). WASI has none; there only the whole run is limited."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, call_s, again_s)


def out_of_time(*_: object) -> None:
    """The handler of the CPU timer."""
    raise OutOfTime


def explain(error: BaseException) -> Record:
    """The exception, its line in the candidate, and the candidate's part of the traceback."""
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # the candidate's own __str__
        text = "(its message can't be shown)"
    kind = type(error).__name__
    why = f"{kind}: {text}" if text else kind
    line, trace = _frames(error)
    return {"why": why[:MAX_WHY], "line": line, "trace": trace[:MAX_WHY]}


def _frames(error: BaseException) -> tuple[int | None, str]:
    """The candidate's line that raised, and its frames, one per line."""
    if isinstance(error, SyntaxError):
        return error.lineno, ""
    try:
        frames = [f for f in _extract(error.__traceback__) if f.filename == _NAME]
        shown = [f"line {f.lineno}, in {f.name}: {f.line}" for f in frames]
    except BaseException:  # the candidate may have patched what this uses
        return None, ""
    if len(shown) > MAX_FRAMES:  # the first and the last frames are informative
        half = MAX_FRAMES // 2
        shown = [*shown[:half], f"({len(shown) - 2 * half} more)", *shown[-half:]]
    return (frames[-1].lineno if frames else None), "\n".join(shown)


_extract = traceback.extract_tb
