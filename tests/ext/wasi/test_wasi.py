"""Level 3 with the real interpreter: what it may reach, how it is stopped, what a test sees.

Without the interpreter, and no way to fetch it, the tests skip and say why.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestry.core.errors import ConfigError, OrchestryError, SandboxError
from orchestry.core.fetch import Pinned
from orchestry.core.files import cache
from orchestry.core.types import Call, CallResult, Limits
from orchestry.ext.wasi import wasi
from orchestry.ext.wasi.wasi import INTERPRETER, Pipe, compiled_interpreter, load
from orchestry.sandbox import open_sandbox
from orchestry.sandbox.pool import ForkServers
from tests.ext.wasi.test_wasi_stack import SMALL

pytestmark = pytest.mark.slow
LIMITS = Limits(wall_s=20)
"""Against load: what is to end by the clock has less."""
SHORT = Limits(wall_s=1)


@pytest.fixture(scope="module", autouse=True)
def interpreter() -> Path:
    """The file itself, fetched by the first test run of a machine."""
    pytest.importorskip("wasmtime")
    try:
        return INTERPRETER.fetch()
    except OrchestryError as error:
        pytest.skip(str(error))


@pytest.fixture
async def sandbox() -> AsyncIterator[ForkServers]:
    async with open_sandbox(LIMITS, 3) as opened:
        yield opened


async def one(
    sandbox: ForkServers, body: str, *args: object, limits: Limits = LIMITS
) -> CallResult:
    """The result of one call of a function with this body; it has `x` and what it imports."""
    code = "import os, sys, time\ndef f(*x):\n    " + body.replace("\n", "\n    ")
    (result,) = await sandbox.run(code, "f", [Call(args=args)], limits)
    return result


async def test_values_come_back_as_what_they_are(sandbox: ForkServers) -> None:
    assert sandbox.level.startswith("3: an interpreter in WebAssembly")
    assert sandbox.confined
    given = ([1, 2.5], {"a": (None, True)}, {3, 4}, b"\0\xff", 1 << 200, "\N{SNOWMAN}\ud800")
    for value in given:
        result = await one(sandbox, "return x[0]", value)
        assert (result.verdict, result.value) == ("value", value)
    calls = [Call(args=(n,)) for n in range(50)]
    results = await sandbox.run("def f(n): return n * n", "f", calls)
    assert [result.value for result in results] == [n * n for n in range(50)]


async def test_runs_share_nothing(sandbox: ForkServers) -> None:
    assert (await one(sandbox, "sys.left = 1\nreturn 1")).value == 1
    assert (await one(sandbox, "return hasattr(sys, 'left')")).value is False


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return open('/etc/passwd').read()", "FileNotFoundError"),
        ("return open('../../../../etc/passwd').read()", "FileNotFoundError"),
        ("return os.listdir('/')", "FileNotFoundError"),
        ("os.mkdir('/usr/local/lib/here')", "Error"),
        ("open('/usr/local/lib/here', 'w').write('')", "Error"),
        ("import socket\nsocket.socket().connect(('127.0.0.1', 80))", "Error"),
        ("import subprocess\nsubprocess.run(['ls'])", "Error"),
        ("return os.fork()", "AttributeError"),
        ("import threading\nthreading.Thread(target=print).start()", "RuntimeError"),
        ("return input()", "EOFError"),
        ("import orchestry", "ModuleNotFoundError"),
        ("import guest", "ModuleNotFoundError"),
        ("import orchestry.sandbox.inside.guest", "ModuleNotFoundError"),
        ("return os.read(3, 1)", "Error"),
        ("return os.pwrite(1, b'to nobody', 4)", "OSError"),
        ("return os.pwrite(1, b'to nobody', 1)", "OSError"),
        ("return os.pread(0, 9, 3)", "OSError"),
    ],
)
async def test_nothing_can_be_reached(sandbox: ForkServers, body: str, why: str) -> None:
    result = await one(sandbox, body)
    assert result.verdict == "error", result.value
    assert why in result.why


async def test_there_is_no_environment_and_output_goes_nowhere(
    sandbox: ForkServers, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRY_TEST_SECRET", "x")
    assert (await one(sandbox, "return dict(os.environ)")).value == {}
    body = "print('seen')\nprint('seen', file=sys.stderr)\nreturn os.write(1, b'seen'), sys.argv"
    assert (await one(sandbox, body)).value == (4, ["-c"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True: print('a' * 10**6)",
        "time.sleep(1e6)",
        "sum(iter(int, 1))",
        "time.sleep(1e300)",
    ],
)
async def test_the_clock_ends_a_run(sandbox: ForkServers, body: str) -> None:
    await one(sandbox, "return 1")  # the instance for the next run is on its way
    before = time.monotonic()
    result = await one(sandbox, body, limits=SHORT)
    if "e300" in body:
        assert result.verdict == "error"  # Python itself refuses
        return
    assert (result.verdict, result.value) == ("timeout", None)
    assert time.monotonic() - before < 30
    await _until_no_more_than(2)


async def test_a_sleep_that_the_clock_ends_says_nothing_more(
    sandbox: ForkServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wasmtime

    ends = wasmtime.Engine.increment_epoch

    def late(engine: wasmtime.Engine) -> None:
        time.sleep(0.5)  # time enough for the program to go on, were it woken before
        ends(engine)

    monkeypatch.setattr(wasmtime.Engine, "increment_epoch", late)
    assert (await one(sandbox, "time.sleep(1e6)", limits=SHORT)).verdict == "timeout"


async def test_a_sleep_takes_its_time(sandbox: ForkServers) -> None:
    body = "a = time.monotonic()\ntime.sleep(0.2)\nreturn time.monotonic() - a, time.time()"
    slept, now = (await one(sandbox, body)).value
    assert slept >= 0.2
    assert abs(now - time.time()) < 60


async def test_memory_is_bounded_in_each_run(sandbox: ForkServers) -> None:
    body = "return len(bytearray(x[0] << 20))"
    assert (await one(sandbox, body, 100)).value == 100 << 20
    assert (await one(sandbox, body, 300)).verdict == "memory"
    assert (await one(sandbox, body, 100, limits=Limits(memory_mb=64))).verdict == "memory"
    large = Limits(wall_s=20, memory_mb=512)
    assert (await one(sandbox, body, 300, limits=large)).value == 300 << 20
    grows = "kept = []\nwhile True: kept.append(bytearray(1 << 20))"
    assert (await one(sandbox, grows)).verdict == "memory"


async def test_output_is_bounded(sandbox: ForkServers) -> None:
    assert (await one(sandbox, "return 'a' * (1 << 20)")).verdict == "output"
    flood = "while True: os.pwrite(1, b'a' * 60000, 3)"
    assert (await one(sandbox, flood)).verdict == "output"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os._exit(0)", "exit status 0"),
        ("os._exit(7)", "exit status 7"),
        ("os.abort()", "signal 6"),
        ("os.pwrite(1, bytes(4) + b'\\0\\0\\0\\x02{}', 3)", "broke the runner's channel"),
    ],
)
async def test_an_instance_that_ends_says_nothing(
    sandbox: ForkServers, body: str, why: str
) -> None:
    result = await one(sandbox, body)
    assert result.verdict == "error"
    assert why in result.why


async def test_deep_recursion_is_an_error_as_elsewhere(sandbox: ForkServers) -> None:
    result = await one(sandbox, "g = lambda n: g(n + 1)\nreturn g(0)")
    assert (result.verdict, result.why[:14]) == ("error", "RecursionError")
    deep = Limits(wall_s=20, recursion=50_000)
    body = "g = lambda n: n and 1 + g(n - 1)\nreturn g(9000)"
    assert (await one(sandbox, body, limits=deep)).value == 9000


_MEMOISED = """import functools
@functools.lru_cache(None)
def g(n):
    return n and 1 + g(n - 1)
return g(x[0])"""


async def test_a_memoised_function_may_call_itself_as_deep_as_another(
    sandbox: ForkServers,
) -> None:
    assert (await one(sandbox, _MEMOISED, 900)).value == 900
    assert (await one(sandbox, _MEMOISED, 1000)).why.startswith("RecursionError")
    deep = Limits(wall_s=20, recursion=50_000)
    assert (await one(sandbox, _MEMOISED, 5000, limits=deep)).why.startswith("RecursionError")


_NEST = "y = []\nfor _ in range(100_000): y = [y]\n"


@pytest.mark.parametrize(
    "body",
    [
        _NEST + "repr(y)",
        _NEST + "import json\njson.dumps(y)",
        "import json\njson.loads('[' * 100_000)",
        _NEST + "z = []\nfor _ in range(100_000): z = [z]\ny == z",
        "import ast\ny = ast.Constant(1, lineno=1, col_offset=0)\n"
        "for _ in range(100_000): y = ast.UnaryOp(ast.USub(), y, lineno=1, col_offset=0)\n"
        "compile(ast.Expression(y), 'y', 'eval')",
        "eval('a' + '.b' * 100_000)",
        "class A:\n  def __lt__(s, o): return sorted([A(), A()])\nA() < 1",
    ],
)
async def test_deep_recursion_of_the_interpreter_is_an_error_too(
    sandbox: ForkServers, body: str
) -> None:
    result = await one(sandbox, body)
    assert (result.verdict, result.why[:14]) == ("error", "RecursionError")


@pytest.mark.parametrize(
    "body",
    [
        "import itertools\ny = iter([1])\nfor _ in range(100_000): y = itertools.chain(y, [2])\n"
        "next(y)",
        "y = ()\nfor _ in range(100_000): y = (y,)\nhash(y)",
        "import select\nsys.setrecursionlimit(100_000)\n"
        "class A:\n  def fileno(s): return select.select([A()], [], [])\n"
        "select.select([A()], [], [])",
    ],
)
async def test_what_python_does_not_bound_ends_the_run_alone(
    sandbox: ForkServers, body: str
) -> None:
    result = await one(sandbox, body)
    assert (result.verdict, "signal 11" in result.why) == ("error", True)
    assert (await one(sandbox, "return 1")).value == 1


async def test_a_test_runs_beside_its_candidate(sandbox: ForkServers) -> None:
    test = "def check(f):\n    assert f(2) == 4\n    assert f(3) == 9\n    assert f(1) == f(2)\n"
    result = await sandbox.check("def f(n): return n * n", "f", test)
    assert (result.verdict, result.value) == ("value", (2, 3))
    assert result.why == "not so: assert f(1) == f(2)"
    liar = "class A:\n  def __eq__(s, o): return True\ndef f(n): return A()"
    assert (await sandbox.check(liar, "f", test)).value == (0, 3)


@pytest.mark.parametrize(
    "body", ["os._exit(0)", "os.pwrite(1, b'\\xff' * 9, 4)", "os.pwrite(1, b'x', 3)"]
)
async def test_a_candidate_cannot_speak_for_its_test(sandbox: ForkServers, body: str) -> None:
    code = f"import os\ndef f(n):\n    {body}\n    return n"
    test = "def check(f):\n    assert f(2) == 4\n"
    result = await sandbox.check(code, "f", test, SHORT)
    assert (result.verdict, result.value) in [("value", (0, 1)), ("timeout", None)]


async def test_a_flood_to_the_test_waits_and_ends(sandbox: ForkServers) -> None:
    code = "import os\nwhile True: os.pwrite(1, bytes(60000), 4)"
    result = await sandbox.check(code, "f", "def check(f): f(1)", SHORT)
    assert result.verdict in ("timeout", "value", "error")
    assert result.value != (1, 1)


async def test_a_cancelled_run_leaves_no_instance() -> None:
    async with open_sandbox(LIMITS, 3) as sandbox:
        await one(sandbox, "return 1")
        running = asyncio.create_task(one(sandbox, "while True: pass"))
        await asyncio.sleep(0.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await one(sandbox, "return 2")).value == 2
    await _until_no_more_than(0)


async def test_runs_play_at_once() -> None:
    async with open_sandbox(LIMITS, 3) as sandbox:
        results = await asyncio.gather(*(one(sandbox, "return x[0]", n) for n in range(6)))
    assert [result.value for result in results] == [*range(6)]


def test_a_pipe_holds_a_writer_back_and_lets_it_go() -> None:
    pipe, done = Pipe(), threading.Event()

    def write() -> None:
        for _ in range(100):
            pipe.write(bytes(1 << 16))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not done.wait(0.3)
    assert len(pipe.read(1 << 30)) <= (1 << 20) + (1 << 16)
    pipe.close()
    thread.join(10)
    assert done.is_set()
    while pipe.read(1 << 20):
        pass
    assert pipe.read(1) == b""


def test_another_file_is_refused(interpreter: Path, tmp_path: Path) -> None:
    copy = tmp_path / INTERPRETER.file
    copy.write_bytes(interpreter.read_bytes()[:-1] + b"\0")
    with pytest.raises(OrchestryError, match=r"its sha256 is [0-9a-f]{64}, expected e5dc5a39"):
        compiled_interpreter({"ORCHESTRY_WASI": str(copy), "XDG_CACHE_HOME": str(tmp_path)})


def test_machine_code_that_others_may_change_is_refused(interpreter: Path, tmp_path: Path) -> None:
    environ = {"ORCHESTRY_WASI": str(interpreter), "XDG_CACHE_HOME": str(tmp_path)}
    folder = cache(environ) / INTERPRETER.folder
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=r"users other than you can write to it: `chmod go-w"):
        compiled_interpreter(environ)


def test_damaged_machine_code_is_compiled_anew(
    interpreter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a small module in the interpreter's place: that one takes a minute to compile."""
    import wasmtime

    small = tmp_path / "python-small.wasm"
    small.write_bytes(wasmtime.wat2wasm(SMALL))
    pinned = _pin(small)
    monkeypatch.setattr(wasi, "INTERPRETER", pinned)
    environ = {"ORCHESTRY_WASI": str(small), "XDG_CACHE_HOME": str(tmp_path)}
    compiled = compiled_interpreter(environ)
    whole = compiled.read_bytes()
    assert compiled_interpreter(environ).stat().st_mtime_ns == compiled.stat().st_mtime_ns
    compiled.write_bytes(whole[: len(whole) // 2])
    load(compiled_interpreter(environ))
    assert compiled.read_bytes() == whole


def test_another_build_is_refused(
    interpreter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wasmtime

    other = tmp_path / "python-other.wasm"
    other.write_bytes(wasmtime.wat2wasm(SMALL.replace("524288", "1048576")))
    monkeypatch.setattr(wasi, "INTERPRETER", _pin(other))
    with pytest.raises(SandboxError, match=r"another build.*unexpected stack"):
        compiled_interpreter({"ORCHESTRY_WASI": str(other), "XDG_CACHE_HOME": str(tmp_path)})


async def test_without_the_interpreter_the_level_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRY_WASI", str(tmp_path / "none.wasm"))
    monkeypatch.setattr("orchestry.sandbox.pool._FOUND", {})
    with pytest.raises(SandboxError, match=r"can't confine.*level 3: ORCHESTRY_WASI names"):
        async with open_sandbox(LIMITS, 3):
            pass


async def test_without_the_extra_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasmtime", None)  # as where it is not installed
    monkeypatch.setattr("orchestry.sandbox.pool._FOUND", {})
    with pytest.raises(SandboxError, match=r"level 3: .*pip install \"orchestry-marl\[wasi\]\""):
        async with open_sandbox(LIMITS, 3):
            pass


def _pin(file: Path) -> Pinned:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return dataclasses.replace(INTERPRETER, file=file.name, sha256=digest, size=len(content))


async def _until_no_more_than(instances: int) -> None:
    """Stopped instances end soon; fails where more than so many live on."""
    for _ in range(200):
        alive = [thread for thread in threading.enumerate() if thread.name == "wasi"]
        if len(alive) <= instances:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{len(alive)} instances live on")
