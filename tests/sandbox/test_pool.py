"""Honest and clumsy code in the sandbox: each run gets its verdicts, and the host goes on.

What tries to break out is in hostile/. Tests that hold at every level run at all that this machine
allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.errors import SandboxError
from orchestry.core.types import Call, CallResult, Limits
from orchestry.sandbox import ForkServers, open_sandbox
from orchestry.sandbox.inside import tagged
from orchestry.sandbox.inside.candidate import answer_calls
from orchestry.sandbox.inside.server import UNCONFINED
from orchestry.sandbox.results import run_room
from orchestry.sandbox.worker import Ended, Worker

LIMITS = Limits(wall_s=4.0, cpu_s=0.5, memory_mb=256, output_kb=64)
CALLS = [Call(args=(n,)) for n in range(4)]
LEVELS = [1, 2, UNCONFINED] if sys.platform == "linux" else [UNCONFINED]
ONE = [Call(args=(1,))]


@pytest.fixture(params=LEVELS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ForkServers]:
    async with open_sandbox(LIMITS, request.param, allow_unsafe=True) as servers:
        yield servers


@pytest.fixture
async def confined() -> AsyncIterator[ForkServers]:
    async with open_sandbox(LIMITS) as servers:
        yield servers


async def test_values_keep_their_types(confined: ForkServers) -> None:
    value = [1, 1.0, True, None, "ü\ud800", (1,), {2}, frozenset({3}), {(4, 5): b"\0"}, 10**5000]
    results = await confined.run("def f(x):\n    return x", "f", [Call(args=(value,))])
    assert results == [CallResult(verdict="value", value=value)]
    assert [type(item) for item in results[0].value] == [type(item) for item in value]


FAILURES = [
    ("def f(x) return x", "error", "SyntaxError: expected ':' (line 1)"),
    ("\n\ndef f(x):\nreturn x", "error", "IndentationError"),
    ("x = '\0'", "error", "null bytes"),
    ("def f(x):\n\n    return x / 0", "error", "division by zero (line 3)"),
    ("1 / 0", "error", "ZeroDivisionError: division by zero (line 1)"),
    ("def g(x): return x", "error", "no function 'f' is defined"),
    ("f = 3", "error", "no function 'f' is defined"),
    ("def f(): return 1", "error", "TypeError"),
    ("import sys\ndef f(x): sys.exit(0)", "error", "SystemExit: 0 (line 2)"),
    ("import sys\nsys.exit(0)", "error", "SystemExit"),
    ("import os\ndef f(x): os._exit(0)", "error", "exit status 0"),
    ("import os\nos._exit(0)", "error", "exit status 0"),
    ("def f(x): raise BaseException('no')", "error", "BaseException: no (line 1)"),
    ("class E(Exception):\n  def __str__(s): raise SystemExit\ndef f(x): raise E", "error", "E:"),
    ("def f(x): return f(x)", "error", "RecursionError"),
    ("class I(int): pass\ndef f(x): return I(x)", "error", "a I is no plain data"),
    ("def f(x): yield x", "error", "a generator is no plain data"),
    ("def f(x):\n  l = []\n  l.append(l)\n  return l", "error", "nested deeper"),
    ("def f(x): return 'x' * 10**9", "memory", "MemoryError"),
    ("def f(x): return 'x' * 10**5", "output", "more than 64 KiB"),
    ("def f(x):\n  while True: pass", "timeout", "CPU time"),
    ("while True: pass", "timeout", "CPU time"),
    ("def f(x): return 10 ** 10 ** 9", "timeout", "0.25 s"),
]


@pytest.mark.slow
async def test_a_failure_is_a_verdict(sandbox: ForkServers) -> None:
    results = await asyncio.gather(*(sandbox.run(code, "f", CALLS) for code, _, _ in FAILURES))
    for (code, verdict, why), found in zip(FAILURES, results, strict=True):
        assert [result.verdict for result in found] == [verdict] * len(CALLS), code
        assert why in found[0].why, code


MANY = [Call(args=(n,)) for n in range(16)]
BOUND = (64 << 10) + (1 << 16) + 16 * 132 + 4
"""Bytes: the values' 64 KiB, a test's message, a frame for each of 16 records, the last word."""
FORGER = """
import os
items = b",".join([b'["l",[]]'] * 7000)
for n in range(SPOKEN):
    record = b'{"index":%d,"verdict":"value","value":["l",[%b]]}' % (n, items)
    data = len(record).to_bytes(4, "big") + record
    while data:
        data = data[os.write(3, data):]
def f(x):
    return 0
"""


async def said(level: int, code: str, calls: Sequence[Call], limits: Limits) -> Ended:
    """What a server passes on of a run."""
    worker = await Worker.start(level)
    try:
        args = [tagged.pack(call.args) for call in calls]
        job = {
            "code": code,
            "entry_point": "f",
            "calls": args,
            **limits.model_dump(),
            "call_s": 1,
            "cpu_s": 1,
        }
        return await worker.play([job], limits.wall_s, run_room(len(calls), limits))
    finally:
        await worker.close()


@pytest.mark.parametrize("code", [FORGER.replace("SPOKEN", "16"), "def f(x): return [[]] * 7000"])
@pytest.mark.parametrize("level", LEVELS)
async def test_the_host_reads_no_more_of_a_run_than_its_limit(level: int, code: str) -> None:
    """However many calls there are: each could have 64 KiB and more, which were all read."""
    played = await said(level, code, MANY, LIMITS)
    assert 0 < len(played.said) <= BOUND


async def test_what_is_forged_beyond_the_limit_is_worth_nothing(confined: ForkServers) -> None:
    run = asyncio.create_task(confined.run(FORGER.replace("SPOKEN", "16"), "f", MANY))
    turns = 0
    while not run.done():  # the event loop goes on while it is judged
        await asyncio.sleep(0)
        turns += 1
    results = await run
    assert [result.verdict for result in results] == ["value"] * 2 + ["output"] * 14
    assert turns > 50


async def test_calls_share_the_room_for_what_they_say(confined: ForkServers) -> None:
    code = "def f(x):\n  if x == 2: raise ValueError('x' * 3000)\n  return 'x' * 30000"
    results = await confined.run(code, "f", MANY)
    assert [result.verdict for result in results] == [
        *("value", "value", "error"),
        *["output"] * 13,
    ]
    assert results[2].why.startswith("ValueError: xxx")
    assert results[3].why == "said more than 64 KiB in all"


@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_a_run_says_what_there_is_room_for_and_no_more(sizes: list[int]) -> None:
    """The records of one run, as its child sends them."""
    said: list[bytes] = []
    args = [tagged.pack((size,)) for size in sizes]
    code = "def f(size): return 'x' * size"
    job = {"code": code, "entry_point": "f", "calls": args, "call_s": 60.0, "output_kb": 64}
    answer_calls(job, said.append)
    assert sum(4 + len(record) for record in said) <= (64 << 10) + len(sizes) * 132
    before = 0
    for size, record in zip(sizes, said, strict=True):
        fits = tagged.loads_record(record)["verdict"] == "value"
        assert fits or before + size > (64 << 10) - 128
        before += len(record)


@pytest.mark.slow
async def test_a_run_that_sleeps_ends_at_its_wall_clock(sandbox: ForkServers) -> None:
    code = "import time\ndef f(x):\n  if x == 2: time.sleep(60)\n  return x"
    results = await sandbox.run(code, "f", CALLS, Limits(wall_s=1.0))
    assert [result.verdict for result in results] == ["value", "value", "timeout", "timeout"]
    assert "no answer within 1 s" in results[2].why


ODD = [
    "print = None\ndef f(x): return x",
    "def f(x):\n  print('x' * 10**6)\n  return x",
    "import threading, time\n"
    "def f(x):\n  threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n  return x",
    "import atexit, time\natexit.register(time.sleep, 60)\ndef f(x): return x",
    "import sys\nsys.stdout.close()\ndef f(x): return x",
    "import asyncio\nasync def g(x): return x\ndef f(x): return asyncio.run(g(x))",
    "from concurrent.futures import ThreadPoolExecutor\n"
    "def f(x):\n  with ThreadPoolExecutor(4) as pool: return list(pool.map(int, [x]))[0]",
    "import random\ndef f(x): random.seed(x); random.random(); return x",
    "import datetime, statistics, decimal, fractions, heapq, csv, difflib, textwrap, uuid\n"
    "def f(x): datetime.datetime.strptime('2020', '%Y'); return x",
    "def f(x):\n  import xml.etree.ElementTree, email.message, logging, unittest\n  return x",
]


async def test_odd_but_right_code_is_answered(sandbox: ForkServers) -> None:
    results = await asyncio.gather(*(sandbox.run(code, "f", CALLS) for code in ODD))
    for code, found in zip(ODD, results, strict=True):
        assert [result.value for result in found] == [0, 1, 2, 3], (code, found[0])


async def test_threads_are_counted_and_many_are_refused(confined: ForkServers) -> None:
    code = (
        "import threading, time\n"
        "def f(x):\n"
        "  for n in range(500):\n"
        "    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "    except RuntimeError: return n\n"
    )
    (result,) = await confined.run(code, "f", ONE, Limits(processes=8))
    assert result.verdict == "value", result
    if confined.level.startswith("1"):
        assert result.value == 7


async def test_recursion_may_be_as_deep_as_the_config_says(confined: ForkServers) -> None:
    code = "def f(x): return 0 if x == 0 else 1 + f(x - 1)"
    deep = [Call(args=(900,)), Call(args=(3000,))]
    first, second = await confined.run(code, "f", deep)
    assert (first.value, second.verdict) == (900, "error")
    assert (await confined.run(code, "f", deep, Limits(recursion=4000)))[1].value == 3000


async def test_the_traceback_is_the_candidates_own(confined: ForkServers) -> None:
    code = "def g(y):\n  return 1 / y\ndef f(x):\n  return g(x)"
    (result,) = await confined.run(code, "f", [Call(args=(0,))])
    assert result.trace == "line 4, in f: return g(x)\nline 2, in g: return 1 / y"
    (endless,) = await confined.run("def f(x): return f(x)", "f", ONE)
    assert len(endless.trace.splitlines()) == 9
    assert " more)" in endless.trace


async def test_a_text_that_no_file_takes_is_mended(confined: ForkServers) -> None:
    (result,) = await confined.run("def f(x): raise ValueError('\\ud800')", "f", ONE)
    assert result.why == "ValueError: \ufffd (line 1)"
    result.why.encode()


async def test_no_run_leaves_flags_to_the_next(confined: ForkServers) -> None:
    code = "import fcntl\ndef f(x): return fcntl.fcntl(0, fcntl.F_GETFL)"
    ((before,), _, (after,)) = [
        await confined.run(code, "f", ONE),
        await confined.run(code + " + fcntl.fcntl(0, fcntl.F_SETFL, 0x800)", "f", ONE),
        await confined.run(code + " + 0", "f", ONE),
    ]
    assert before.verdict == "value"
    assert before == after


@pytest.mark.slow
async def test_who_closes_the_channel_and_lives_on_ends_with_the_run(confined: ForkServers) -> None:
    await confined.run("def f(x): return x", "f", ONE)
    code = "import os, time\ndef f(x):\n  time.sleep(0.4)\n  os.close(3)\n  time.sleep(60)"
    started = time.monotonic()
    (result,) = await confined.run(code, "f", ONE, Limits(wall_s=4.0))
    assert result.verdict == "error"
    assert "closed the runner's channel" in result.why
    assert time.monotonic() - started < 40


@pytest.mark.slow
async def test_who_ignores_the_clocks_of_the_cpu_is_out_of_time(confined: ForkServers) -> None:
    code = (
        "import signal\n"
        "for n in (signal.SIGXCPU, signal.SIGPROF): signal.signal(n, signal.SIG_IGN)\n"
        "def f(x):\n  while True: pass"
    )
    (result,) = await confined.run(code, "f", ONE, Limits(wall_s=30.0, cpu_s=0.5))
    assert result.verdict == "timeout"


async def test_a_run_that_is_not_awaited_leaves_no_server() -> None:
    async with open_sandbox(LIMITS) as servers:
        code = "import time\ndef f(x): time.sleep(0.5); return x"
        await servers.run("def f(x): return x", "f", ONE)
        task = asyncio.create_task(servers.run(code, "f", ONE))
        await asyncio.sleep(0.1)
    assert (await task)[0].value == 1
    assert _descendants() == []


async def test_one_endless_call_leaves_the_others(confined: ForkServers) -> None:
    code = "def f(x):\n  while x == 1: pass\n  return x"
    results = await confined.run(code, "f", CALLS)
    assert [result.verdict for result in results] == ["value", "timeout", "value", "value"]


async def test_verdicts_repeat_in_another_process() -> None:
    code = "import random\ndef f(x): return list({'a', 'b', 'c', 'd', x}), random.random()"
    found = []
    for _ in range(2):
        async with open_sandbox(LIMITS) as servers:
            found += await servers.run(code, "f", [Call(args=("g",))])
    assert found[0] == found[1]
    assert found[0].verdict == "value"


@pytest.mark.parametrize("level", [1, UNCONFINED])
async def test_the_process_hides_its_environment_only_from_what_is_unconfined(level: int) -> None:
    """Else a debugger or profiler could not attach to a run. A process can't undo it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has prctl")
    program = f"""
import asyncio, ctypes
from orchestry.sandbox.worker import Worker
async def main():
    await (await Worker.start({level})).close()
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
asyncio.run(main())
"""
    pipe = asyncio.subprocess.PIPE
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=pipe)
    said, _ = await host.communicate()
    assert said.strip() == (b"0" if level == UNCONFINED else b"1")


@pytest.mark.parametrize("end", ["return", "raise ValueError"])
async def test_secrets_are_taken_out(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The argument stands for what a candidate reads of this process where it is not confined."""
    monkeypatch.setenv("VENDOR_API_KEY", "sentinel-1234")
    code = f"def f(x): {end}('y' * 285 + x)"
    async with open_sandbox(LIMITS) as servers:
        (result,) = await servers.run(code, "f", [Call(args=("sentinel-1234" * 3,))])
    text = result.why or result.value
    assert "[secret]" in text
    assert "senti" not in text + result.trace


TEST = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(3) == 6, "six"
    for n in range(3):
        assert abs(candidate(n) - 2 * n) < 1e-9
"""


@pytest.mark.parametrize(
    ("code", "value", "why"),
    [
        ("def f(x): return 2 * x", (3, 3), ""),
        ("def f(x): return 4", (1, 3), "not so: assert candidate(3) == 6, 'six'"),
        ("def f(x): return None", (0, 3), "not so: assert candidate(2) == 4"),
        ("def f(x): raise KeyError(x)", (0, 3), "KeyError"),
        ("import os\ndef f(x): os._exit(0)", (0, 3), "candidate(2)"),
        ("class E:\n  def __eq__(s, o): return True\ndef f(x): return E()", (0, 3), "plain data"),
    ],
)
@pytest.mark.slow
async def test_each_assert_of_a_test_counts(
    sandbox: ForkServers, code: str, value: tuple[int, int], why: str
) -> None:
    result = await sandbox.check(code, "f", TEST)
    assert result.verdict == "value"
    assert result.value == value
    assert why in result.why


@pytest.mark.parametrize("size", [0, 1, 20_000])
async def test_an_assert_counts_once_however_often_it_is_run(
    confined: ForkServers, size: int
) -> None:
    """A loop over what the candidate gives is as long as the candidate likes."""
    test = (
        "def check(candidate):\n  got = candidate(3)\n  for n in got:\n    assert n == 1\n"
        "  assert len(got) == 3\n  assert sum(got) == 6\n  assert got == [1, 2, 3]\n"
    )
    result = await confined.check(f"def f(n): return [1] * {size}", "f", test)
    assert result.value == (int(size > 0), 4)


LOOP = "def check(candidate):\n  for n in range(10):\n    got = candidate(n)\n    assert got == n\n"


async def test_a_call_without_a_value_is_no_better_than_a_wrong_one(confined: ForkServers) -> None:
    wrong = "def f(x): return x if x < 5 else -1"
    raises = "def f(x): return x if x < 5 else 1 / 0"
    for code in (wrong, raises):
        assert (await confined.check(code, "f", LOOP)).value == (0, 1)


HONEST = """
import collections
def f(x, y=0):
    if x < 0:
        raise ValueError("negative")
    return collections.Counter("aab") if x == 7 else x + y
"""
STYLES = """
def check(candidate):
    assert (n := candidate(2)) == 2
    assert n + candidate(3) == 5
    assert candidate(1, y=2) == 3
    assert candidate(7) == {"a": 2, "b": 1}
    try:
        candidate(-1)
        assert False
    except ValueError:
        pass
    while n:
        n -= 1
        if n == 1:
            continue
        assert candidate(n) == n
"""


async def test_honest_programs_pass_tests_of_any_style(confined: ForkServers) -> None:
    result = await confined.check(HONEST, "f", STYLES)
    assert result.value == (5, 5), result


async def test_a_test_without_asserts_is_passed_where_it_comes_to_its_end(
    confined: ForkServers,
) -> None:
    test = "def check(candidate):\n  if candidate(1) != 1: raise ValueError\n"
    assert (await confined.check("def f(x): return x", "f", test)).value == (1, 1)
    assert (await confined.check("def f(x): return 2", "f", test)).value == (0, 1)


async def test_a_test_that_ends_early_counts_the_rest_as_failed(confined: ForkServers) -> None:
    test = "def check(candidate):\n  assert candidate(1) == 1\n  candidate(0)\n  assert 1\n"
    result = await confined.check("def f(x): return 1 / x", "f", test)
    assert result.value == (1, 2)
    assert "ZeroDivisionError" in result.why


async def test_load_changes_no_verdict(confined: ForkServers) -> None:
    """What computes for 0.6 s has the same verdict beside as many others as make it take twice its
    wall-clock time."""
    code = "import time\ndef f(x):\n  while time.process_time() < 0.6 + x: pass\n  return x\n# {}"
    limits = Limits(wall_s=0.5, cpu_s=3)
    calls = [Call(args=(0,))]
    async with ForkServers(LIMITS, workers=4 * (os.cpu_count() or 1)) as crowd:
        runs = [
            crowd.run(code.format(n), "f", calls, limits) for n in range(4 * (os.cpu_count() or 1))
        ]
        found = await asyncio.gather(*runs)
    assert {one.verdict for (one,) in found} == {"value"}


async def test_who_sleeps_is_cut_off_at_its_wall_clock(confined: ForkServers) -> None:
    code = "import time\ndef f(x):\n  while True: time.sleep(0.2)"
    before = time.monotonic()
    (result,) = await confined.run(code, "f", [Call(args=(0,))], Limits(wall_s=0.5))
    assert result.verdict == "timeout"
    assert time.monotonic() - before < 3


async def test_a_test_waits_no_longer_than_its_wall_clock(confined: ForkServers) -> None:
    code = "import time\ndef f(x): time.sleep(60)"
    result = await confined.check(code, "f", TEST, Limits(wall_s=1.0))
    assert result.verdict == "timeout"


async def test_nothing_of_a_test_can_be_found_or_forged_by_the_candidate(
    confined: ForkServers,
) -> None:
    code = """
import gc, os, sys
def f(x):
    for fd in range(3, 64):
        try:
            os.write(fd, b"\\0\\0\\0\\x02{}")
        except OSError:
            pass
    texts = [o for o in gc.get_objects() if isinstance(o, str)]
    frame = sys._getframe()
    while frame:
        texts += [repr(v) for v in frame.f_locals.values()]
        frame = frame.f_back
    return 4 if any("candidate(2)" in t for t in texts if "texts" not in t) else 0
"""
    result = await confined.check(code, "f", TEST)
    assert result.value[0] == 0


async def test_a_candidate_has_no_end_of_the_tests_verdict(confined: ForkServers) -> None:
    code = """
import fcntl, os
def f(x):
    return [fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE for fd in (3, 4)]
"""
    test = "def check(candidate):\n  assert candidate(1) == [2, 2], candidate(1)\n"
    assert (await confined.check(code, "f", test)).value == (1, 1)  # the null device, the pair


async def test_who_reads_what_it_can_stops_no_test_and_no_server(confined: ForkServers) -> None:
    thief = """
import os, threading
def steal():
    while True:
        for fd in (0, 1, 2, 3):
            try:
                os.set_blocking(fd, False)
                os.read(fd, 65536)
            except OSError:
                pass
threading.Thread(target=steal, daemon=True).start()
def f(x): return 2 * x
"""
    for number in range(10):
        result = await confined.check(f"{thief}# {number}\n", "f", TEST)
        assert result.value == (3, 3), result


@pytest.mark.parametrize(
    "asserts",
    [
        "assert all(map(lambda x: candidate(x) == x + 1, range(5)))",
        "for a, b in zip(map(candidate, [1, 2]), [2, 3]):\n    assert a == b",
        "assert next(filter(lambda x: candidate(x) != x + 1, range(4)), None) is None",
    ],
)
async def test_the_end_of_an_iteration_is_an_error_like_others(
    confined: ForkServers, asserts: str
) -> None:
    test = f"def check(candidate):\n  {asserts}\n"
    result = await confined.check("def f(x): raise StopIteration", "f", test)
    assert result.value[0] == 0
    assert "StopIteration" in result.why


async def test_asserts_that_nothing_came_to_did_not_hold(confined: ForkServers) -> None:
    test = "def check(candidate):\n  for a in candidate(3):\n    assert a > 0\n"
    result = await confined.check("def f(x): return []", "f", test)
    assert result.value == (0, 1)
    assert "none of its asserts" in result.why


async def test_cancellation_ends_the_run_and_the_next_one_is_answered(
    confined: ForkServers,
) -> None:
    task = asyncio.create_task(
        confined.run("import time\ndef f(x): time.sleep(60)", "f", ONE, Limits(wall_s=50))
    )
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert _descendants() == []
    (result,) = await confined.run("def f(x): return x", "f", ONE)
    assert result.value == 1


async def test_a_server_that_was_killed_is_replaced(sandbox: ForkServers) -> None:
    await sandbox.run("def f(x): return x", "f", ONE)
    (before,) = _children()
    os.kill(before, signal.SIGKILL)
    for run in range(50):  # its parts may answer once more before its death reaches them
        (result,) = await sandbox.run(f"def f(x): return x + {run}", "f", ONE)
        assert result.value == 1 + run
        if _children() != [before]:
            return
    raise AssertionError("it was not replaced")


async def test_a_server_that_dies_in_the_middle_is_replaced(confined: ForkServers) -> None:
    await confined.run("def f(x): return x", "f", ONE)
    code = "import time\ndef f(x):\n  time.sleep(0.5)\n  return x"
    task = asyncio.create_task(confined.run(code, "f", ONE))
    await asyncio.sleep(0.2)
    os.kill(_children()[0], signal.SIGKILL)
    assert (await task)[0].value == 1


@pytest.mark.parametrize("level", LEVELS)
async def test_nothing_is_left_when_it_is_closed(level: int) -> None:
    async with ForkServers(LIMITS, level, allow_unsafe=True, workers=2) as servers:
        code = "import time\ndef f(x):\n  time.sleep(0.1)\n  return x"
        runs = (servers.run(f"{code} + {n}", "f", ONE) for n in range(3))
        assert [r[0].value for r in await asyncio.gather(*runs)] == [1, 2, 3]
        assert len(_children()) == 2
    assert _descendants() == []


@pytest.mark.parametrize("level", LEVELS * 12)  # a child may be at any of its first steps
@pytest.mark.slow
async def test_nothing_is_left_when_the_host_is_killed(level: int) -> None:
    program = f"""
import asyncio, sys
from orchestry.sandbox import open_sandbox
from orchestry.core.types import Call, Limits
async def main():
    async with open_sandbox(Limits(wall_s=60), {level}, allow_unsafe=True) as servers:
        print("ready", flush=True)
        await servers.run("import time\\ndef f(): time.sleep(50)", "f", [Call()])
asyncio.run(main())
"""
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert host.stdout is not None
    assert await host.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 20
    while len(left := _descendants(host.pid)) < 2 and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(left) >= 2
    host.kill()
    await host.wait()
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in left) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert [pid for pid in left if _alive(pid)] == []


async def test_equal_runs_are_answered_from_memory(confined: ForkServers) -> None:
    code = "import time\ndef f(x): return time.perf_counter_ns()"
    first, again = await asyncio.gather(*[confined.run(code, "f", ONE) for _ in range(2)])
    other = await confined.run(code, "f", ONE, Limits(wall_s=3.0))
    assert first == again
    assert first != other


async def test_no_calls_no_results(confined: ForkServers) -> None:
    assert await confined.run("def f(): return 1", "f", []) == []


async def test_the_strongest_level_is_taken_and_named() -> None:
    async with open_sandbox(LIMITS, allow_unsafe=True) as servers:
        assert servers.level.startswith("1: own namespaces")
        assert "Landlock ABI" in servers.level
        assert servers.confined


async def test_the_unconfined_level_is_refused_unless_allowed() -> None:
    with pytest.raises(SandboxError, match="--allow-unsafe-code"):
        await open_sandbox(LIMITS, UNCONFINED).__aenter__()
    async with open_sandbox(LIMITS, UNCONFINED, allow_unsafe=True) as servers:
        assert servers.level.startswith("4: limits alone")
        assert not servers.confined


async def test_what_is_refused_is_named() -> None:
    with pytest.raises(SandboxError, match="no such level: 7"):
        await Worker.start(7)


def _children(parent: int | None = None) -> list[int]:
    """The living processes that a process started."""
    texts: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for task in Path(f"/proc/{parent or os.getpid()}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # that thread has
                texts.append((task / "children").read_text())
    return sorted(pid for pid in map(int, " ".join(texts).split()) if _alive(pid))


def _descendants(parent: int | None = None) -> list[int]:
    children = _children(parent)
    return [*children, *(pid for child in children for pid in _descendants(child))]


def _alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody reaps does not."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
