"""The minimal sandbox: one fresh, limited interpreter a run. Level 4, the weakest one.

It holds against code that fails, loops, recurses, floods, exits or kills itself: the verdict is
right and the host goes on. It does NOT hold against malice: the candidate reads and writes every
file and reaches every host that this user may, can leave its process group with `setsid` and so
survive the run, and shares its process with the runner, so it can read the nonce and write records
by itself. Such a record is only ever an answer: expected values stay on the host. Nothing in its
process names the package or the task, but a guessed path opens. As root the limit on processes
does not bind, and it can read this process's environment, so answers are searched for its secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import marshal
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from orchestry.errors import SandboxError
from orchestry.services.sandbox import tagged
from orchestry.services.sandbox.leaks import Redactor, hide_process
from orchestry.types import Call, CallResult, Limits

_FLAGS = ("-s", "-P", "-S")  # no site, no folder of its own on sys.path
_ENVIRON = {"PYTHONHASHSEED": "0"}  # sets have one order, so that verdicts repeat
_BOOT = "import marshal, sys\nfor code in marshal.load(sys.stdin.buffer): exec(code)"
_START_S = 10.0  # for the interpreter alone, on a machine that is busy with other things
_NONCE_BYTES = 16
_RECORD_BYTES = 1 << 16  # what a record may have besides its value
_MAX_WHY = 300
_MAX_LINE = 1 << 31
_MEMO = 4096
_CALL_SHARE = 0.5  # of the run's CPU time; one endless call leaves time for the others
_WALL_SHARE = 3.0  # of the run's CPU time; a busy machine must not turn a right answer wrong
_VERDICTS = ("value", "error", "timeout", "memory", "output")

Results = tuple[CallResult, ...]


class SubprocessSandbox:
    """Runs candidates in subprocesses, at most `workers` at once, and remembers the results.

    A run may use `limits.wall_s` seconds of CPU time, rounded up, and a call half of them. On the
    wall clock a run may take three times as long, so that load does not change verdicts.
    """

    level = "4: subprocess with rlimits (no confinement of files or network)"

    def __init__(self, limits: Limits, workers: int | None = None) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(workers or os.cpu_count() or 1)
        self._memo: OrderedDict[bytes, Results] = OrderedDict()
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> SubprocessSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._memo.clear()

    async def run(
        self, code: str, entry_point: str, calls: Sequence[Call], limits: Limits | None = None
    ) -> list[CallResult]:
        """One result a call, in order; equal runs are answered from memory.

        A candidate's failure is a verdict. Raises SandboxError where no child can be started, and
        Untaggable for arguments that are no plain data.
        """
        limits = limits or self._limits
        job = _job(code, entry_point, calls, limits)
        key = hashlib.sha256(tagged.dumps(job)).digest()
        async with self._locks.setdefault(key, asyncio.Lock()):  # an equal run may be under way
            if key not in self._memo:
                async with self._slots:
                    self._remember(key, await _play(job, len(calls), limits))
            self._memo.move_to_end(key)
            return list(self._memo[key])

    def _remember(self, key: bytes, results: Results) -> None:
        self._memo[key] = results
        if len(self._memo) > _MEMO:
            self._memo.popitem(last=False)


def _job(code: str, entry_point: str, calls: Sequence[Call], limits: Limits) -> dict[str, Any]:
    return {
        "code": code,
        "entry_point": entry_point,
        "calls": [tagged.dumps(call.args) for call in calls],
        "call_s": limits.wall_s * _CALL_SHARE,
        **limits.model_dump(),
    }


async def _play(job: dict[str, Any], calls: int, limits: Limits) -> Results:
    """One child from start to end: nothing of it is left, whatever happens."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    async with _child({**job, "nonce": nonce}) as (process, pipe):
        records = _Records(pipe, nonce, limits.output_kb)
        try:
            async with asyncio.timeout(_START_S):
                await records.ready()
        except (TimeoutError, EOFError, tagged.Untaggable):
            raise SandboxError(_no_start(process.returncode)) from None
        results: list[CallResult] = []
        wall_s = limits.wall_s * _WALL_SHARE
        try:
            async with asyncio.timeout(wall_s):
                while len(results) < calls:
                    results.append(await records.next(len(results)))
            why: CallResult | None = None
        except TimeoutError:
            text = f"no answer within {wall_s:g} s for the whole run"
            why = CallResult(verdict="timeout", why=text)
        except tagged.Untaggable as error:
            why = CallResult(verdict="error", why=f"broke the runner's channel: {error}")
        except EOFError:
            why = await _post_mortem(process)
    return (*results, *([why] * (calls - len(results)) if why else []))


@contextlib.asynccontextmanager
async def _child(
    job: dict[str, Any],
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """A child in its own session and empty folder, and the reading end of its record pipe."""
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="orchestry-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stdin = stack.enter_context(tempfile.TemporaryFile())
        stdin.write(_program() + tagged.dumps(job))
        stdin.seek(0)
        read_fd, write_fd = os.pipe()
        source: BinaryIO = stack.enter_context(os.fdopen(read_fd, "rb", 0))
        try:
            process = await _spawn(folder, stdin, write_fd)
        finally:
            os.close(write_fd)
        try:
            reader = asyncio.StreamReader()
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), source
            )
            stack.callback(transport.close)
            yield process, reader
        finally:
            _kill(process)
            await process.wait()


@functools.cache
def _program() -> bytes:
    """The child's code, compiled under a name that leads nowhere."""
    sources = [Path(__file__).with_name(name).read_text() for name in ("tagged.py", "child.py")]
    return marshal.dumps([compile(s, "<runner>", "exec", dont_inherit=True) for s in sources])


def _interpreter() -> str:
    """The Python below this environment: the environment's own path may lie beside the tasks."""
    return str(Path(sys.executable).resolve())


async def _spawn(folder: str, stdin: BinaryIO, write_fd: int) -> asyncio.subprocess.Process:
    hide_process()
    try:
        return await asyncio.create_subprocess_exec(
            _interpreter(),
            *(*_FLAGS, "-c", _BOOT, str(write_fd)),
            stdin=stdin,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(write_fd,),
            env=_ENVIRON,
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(
            f"the sandbox can't start a process ({error.strerror}): free memory or processes, "
            "or lower search.episodes_in_flight"
        ) from None


def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends the child's whole group; grandchildren may outlive the child itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Records:
    """What the child sends: length, nonce, tagged JSON, checked as a stranger's words."""

    def __init__(self, pipe: asyncio.StreamReader, nonce: bytes, output_kb: int) -> None:
        self._pipe, self._nonce = pipe, nonce
        self._largest = (output_kb << 11) + _RECORD_BYTES
        self._redactor = Redactor(os.environ)

    async def ready(self) -> None:
        """Returns once the child is limited and about to run the candidate."""
        if (await self._read()).get("ready") is not True:
            raise EOFError("no greeting")

    async def next(self, index: int) -> CallResult:
        """The result of call `index`. Raises EOFError at the end, Untaggable for a forgery."""
        record = await self._read()
        verdict, why, line = record.get("verdict"), record.get("why", ""), record.get("line")
        known = verdict in _VERDICTS and isinstance(why, str)
        numbered = line is None or (type(line) is int and 0 <= line < _MAX_LINE)
        if record.get("index") != index or not known or not numbered:
            raise tagged.Untaggable("a record out of order")
        if verdict != "value":
            place = "" if line is None else f" (line {line})"
            return CallResult(verdict=verdict, why=self._redactor.text(why, _MAX_WHY) + place)
        if not isinstance(data := record.get("value"), bytes):
            raise tagged.Untaggable("a record without its value")
        return CallResult(verdict="value", value=self._redactor.value(tagged.loads(data)))

    async def _read(self) -> dict[str, Any]:
        size = int.from_bytes(await self._pipe.readexactly(4), "big")
        if not _NONCE_BYTES < size <= self._largest:
            raise tagged.Untaggable("a record of an impossible length")
        body = await self._pipe.readexactly(size)
        record = tagged.loads(body[_NONCE_BYTES:])
        if body[:_NONCE_BYTES] != self._nonce or type(record) is not dict:
            raise tagged.Untaggable("a record that is not the runner's")
        return record


async def _post_mortem(process: asyncio.subprocess.Process) -> CallResult:
    """The verdict on all calls that a child left open when its records ended."""
    try:
        async with asyncio.timeout(0.5):
            code = await process.wait()
    except TimeoutError:
        return CallResult(verdict="error", why="closed the runner's channel")
    if code == -signal.SIGXCPU:
        return CallResult(verdict="timeout", why="used up the CPU time of the whole run")
    if code == -signal.SIGKILL:  # the system's, for this is before our own
        return CallResult(verdict="memory", why="was killed, as a rule for want of memory")
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return CallResult(verdict="error", why=f"ended its process before it answered ({how})")


def _no_start(code: int | None) -> str:
    return (
        f"the sandbox's interpreter did not start (exit status {code}): try "
        f"`{_interpreter()} {' '.join(_FLAGS)} -c pass`, and check sandbox.memory_mb"
    )
