"""The sandbox's child: runs one candidate's calls and streams a record a call to the host.

Its code comes over stdin, behind that of `tagged`, and runs in the same namespace: the process
holds no path that leads to this package. The rest of stdin is one tagged JSON job; the descriptor
in argv[1] takes the records. Standard library only. Nothing in here knows what the calls should
return. The candidate runs in this very process and can reach all of it, so the host believes no
record further than as an answer of the candidate.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestry.services.sandbox.tagged import Untaggable, dumps, loads

CANDIDATE = "<candidate>"
MAX_WHY = 4096  # the host shows less, once it has taken secrets out
OPEN_FILES = 32
REARM_S = 0.05

Record = dict[str, Any]


class OutOfTime(BaseException):
    """The current call used up its CPU time."""


class Channel:
    """The record pipe: length, nonce, tagged JSON. Only this process writes, no fork of it."""

    def __init__(self, fd: int, nonce: bytes) -> None:
        self._fd, self._nonce, self._pid = fd, nonce, os.getpid()
        self._write, self._getpid, self._dumps = os.write, os.getpid, dumps

    def send(self, record: Record) -> None:
        if self._getpid() != self._pid:
            os._exit(0)
        body = self._nonce + self._dumps(record)
        data = len(body).to_bytes(4, "big") + body
        while data:
            data = data[self._write(self._fd, data) :]


def main() -> None:
    """Reads the job, drops what the candidate must not have, runs every call, leaves at once."""
    job = loads(sys.stdin.buffer.read())
    channel = Channel(int(sys.argv[1]), job["nonce"])
    silence()
    restrict(job["wall_s"], job["memory_mb"], job["output_kb"])
    channel.send({"ready": True})
    leave = os._exit  # no exit handler or thread of the candidate holds the child up
    function, failure = load(job["code"], job["entry_point"], job["call_s"])
    for index, args in enumerate(job["calls"]):
        record = failure or attempt(function, loads(args), job["call_s"], job["output_kb"])
        channel.send({"index": index, **record})
    leave(0)


def silence() -> None:
    """Stdin, stdout and stderr lead nowhere, so that the job can't be read again."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def restrict(wall_s: float, memory_mb: int, output_kb: int) -> None:
    """Lowers the rlimits for good. Root is not held by NPROC; macOS ignores AS."""
    cpu = math.ceil(wall_s)
    caps = {
        resource.RLIMIT_CPU: cpu + 1,
        resource.RLIMIT_AS: memory_mb << 20,
        resource.RLIMIT_FSIZE: output_kb << 10,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for which, cap in caps.items():
        hard = resource.getrlimit(which)[1]
        cap = cap if hard == resource.RLIM_INFINITY else min(cap, hard)
        resource.setrlimit(which, (cap, cap))
    # At the hard limit the kernel kills without a name for it, so the soft one comes first.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[0]
    resource.setrlimit(resource.RLIMIT_CPU, (min(cpu, hard), hard))
    signal.signal(signal.SIGPROF, out_of_time)


def out_of_time(*_: object) -> None:
    """The handler of the CPU timer."""
    raise OutOfTime


def load(code: str, entry_point: str, call_s: float) -> tuple[Callable[..., Any], Record | None]:
    """The candidate's function, or the record that every call gets because there is none."""
    names: dict[str, Any] = {"__name__": "candidate", "__builtins__": __builtins__}

    def define() -> Record:
        exec(compile(code, CANDIDATE, "exec", dont_inherit=True), names)  # noqa: S102
        if not callable(names.get(entry_point)):
            return {"verdict": "error", "why": f"no function '{entry_point}' is defined"}
        return {}

    failure = timed(define, call_s)
    return names.get(entry_point, define), failure or None


def attempt(function: Callable[..., Any], args: Any, call_s: float, output_kb: int) -> Record:
    """One call: its value as tagged JSON, or why there is none."""

    def answer() -> Record:
        value = function(*args)
        try:
            data = dumps(value)
        except Untaggable as error:
            return {"verdict": "error", "why": f"returned what can't be compared: {error}"}
        if len(data) > output_kb << 10:
            return {"verdict": "output", "why": f"returned more than {output_kb} KiB"}
        return {"verdict": "value", "value": data}

    return timed(answer, call_s)


def timed(work: Callable[[], Record], call_s: float) -> Record:
    """Runs candidate code under the CPU timer; whatever it raises becomes a record."""
    try:
        signal.setitimer(signal.ITIMER_PROF, call_s, REARM_S)
        try:
            return work()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except OutOfTime:
        return {"verdict": "timeout", "why": f"no answer after {call_s:g} s of CPU time"}
    except MemoryError as error:
        return {"verdict": "memory", **explain(error)}
    except BaseException as error:
        return {"verdict": "error", **explain(error)}


def explain(error: BaseException) -> Record:
    """The last line of the traceback, and the line number inside the candidate."""
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # the candidate's own __str__
        text = "(its message can't be shown)"
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None and not isinstance(error, SyntaxError):
        if trace.tb_frame.f_code.co_filename == CANDIDATE:
            line = trace.tb_lineno
        trace = trace.tb_next
    kind = type(error).__name__
    message = f"{kind}: {text}" if text else kind
    return {"why": message[:MAX_WHY], "line": line}


if __name__ == "__main__":
    main()
