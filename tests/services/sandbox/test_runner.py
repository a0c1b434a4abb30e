"""Candidates that fail, loop, flood or break out: each gets its verdict, and the host goes on."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestry.services.sandbox import SubprocessSandbox, open_sandbox
from orchestry.types import Call, CallResult, Limits

LIMITS = Limits(wall_s=0.5, memory_mb=256, output_kb=64)
CALLS = [Call(args=(n,)) for n in range(4)]


@pytest.fixture
async def sandbox() -> AsyncIterator[SubprocessSandbox]:
    async with open_sandbox(LIMITS) as opened:
        yield opened


async def test_values_keep_their_types(sandbox: SubprocessSandbox) -> None:
    value = [1, 1.0, True, None, "ü\ud800", (1,), {2}, frozenset({3}), {(4, 5): b"\0"}, 10**5000]
    results = await sandbox.run("def f(x):\n    return x", "f", [Call(args=(value,))])
    assert results == [CallResult(verdict="value", value=value)]
    assert [type(item) for item in results[0].value] == [type(item) for item in value]


@pytest.mark.parametrize(
    ("code", "verdict", "why"),
    [
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
        (
            "class E(Exception):\n  def __str__(s): raise SystemExit\ndef f(x): raise E",
            "error",
            "E:",
        ),
        ("import os, signal\ndef f(x): os.kill(os.getpid(), 11)", "error", "signal 11"),
        ("def f(x): return f(x)", "error", "RecursionError"),
        ("import os\ndef f(x):\n  os.closerange(0, 99)\n  return x", "error", "ended its process"),
        ("class I(int): pass\ndef f(x): return I(x)", "error", "a I is no plain data"),
        ("def f(x): yield x", "error", "a generator is no plain data"),
        ("def f(x):\n  l = []\n  l.append(l)\n  return l", "error", "nested deeper"),
        ("def f(x): return 'x' * 10**9", "memory", "MemoryError"),
        ("def f(x): return 'x' * 10**5", "output", "more than 64 KiB"),
        ("def f(x):\n  while True: pass", "timeout", "CPU time"),
        ("while True: pass", "timeout", "CPU time"),
        ("import time\ndef f(x): time.sleep(60)", "timeout", "whole run"),
        ("def f(x): return 10 ** 10 ** 9", "timeout", "0.25 s"),
    ],
)
async def test_a_failure_is_a_verdict(
    sandbox: SubprocessSandbox, code: str, verdict: str, why: str
) -> None:
    results = await sandbox.run(code, "f", CALLS)
    assert [result.verdict for result in results] == [verdict] * len(CALLS)
    assert why in results[0].why


@pytest.mark.parametrize(
    "code",
    [
        "print = None\ndef f(x): return x",
        "def f(x):\n  print('x' * 10**6)\n  return x",
        "import os\ndef f(x):\n  os.fork()\n  return x",
        "import threading, time\n"
        "def f(x):\n  threading.Thread(target=time.sleep, args=(60,)).start()\n  return x",
        "import atexit, time\natexit.register(time.sleep, 60)\ndef f(x): return x",
        "import sys\nsys.stdout.close()\ndef f(x): return x",
        "import os\nos.remove\nos.chdir('/')\ndef f(x): return x",
    ],
)
async def test_odd_but_right_code_is_answered(sandbox: SubprocessSandbox, code: str) -> None:
    if os.geteuid() and ("fork" in code or "Thread" in code):
        pytest.skip("the process limit binds all users but root")
    results = await sandbox.run(code, "f", CALLS)
    assert [result.value for result in results] == [0, 1, 2, 3]


async def test_one_endless_call_leaves_the_others(sandbox: SubprocessSandbox) -> None:
    code = "def f(x):\n  while x == 1: pass\n  return x"
    results = await sandbox.run(code, "f", CALLS)
    assert [result.verdict for result in results] == ["value", "timeout", "value", "value"]


async def test_a_loop_that_catches_everything_ends(sandbox: SubprocessSandbox) -> None:
    code = "def f(x):\n while 1:\n  try:\n   while 1: pass\n  except BaseException: pass"
    started = time.monotonic()
    results = await sandbox.run(code, "f", CALLS)
    assert {result.verdict for result in results} == {"timeout"}
    assert time.monotonic() - started < 10


async def test_forged_records_are_named(sandbox: SubprocessSandbox) -> None:
    code = (
        "import os\nfor fd in range(3, 32):\n  try: os.write(fd, b'junk' * 9)\n  except OSError: 0"
    )
    results = await sandbox.run(code, "f", CALLS)
    assert {result.verdict for result in results} == {"error"}
    assert "broke the runner's channel" in results[0].why


async def test_no_environment_no_stdin_an_empty_folder(
    sandbox: SubprocessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    code = (
        "import os, sys\ndef f():\n  return dict(os.environ), os.listdir(), os.read(0, 9), sys.path"
    )
    (result,) = await sandbox.run(code, "f", [Call()])
    environ, files, stdin, path = result.value
    assert set(environ) - {"LC_CTYPE"} == {"PYTHONHASHSEED"}
    assert (files, stdin) == ([], b"")
    assert not any("site-packages" in folder or "orchestry" in folder for folder in path)


async def test_the_interpreter_is_isolated(sandbox: SubprocessSandbox) -> None:
    code = (
        "import sys\ndef f():\n  flags = sys.flags\n"
        "  return flags.no_site, flags.no_user_site, flags.safe_path,"
        " 'site' in sys.modules, sys.path"
    )
    (result,) = await sandbox.run(code, "f", [Call()])
    *flags, path = result.value
    assert flags == [1, 1, True, False]
    assert path
    assert all(Path(folder).is_absolute() for folder in path)


async def test_verdicts_repeat_in_another_process(sandbox: SubprocessSandbox) -> None:
    code = "def f(x): return list({'a', 'b', 'c', 'd', 'e', 'f', x})"
    runs = [Limits(wall_s=2.0 + n) for n in range(3)]  # equal runs would be answered from memory
    results = [await sandbox.run(code, "f", [Call(args=("g",))], limits) for limits in runs]
    assert results[0] == results[1] == results[2]
    assert results[0][0].verdict == "value"


async def test_nothing_in_the_process_leads_to_the_package(sandbox: SubprocessSandbox) -> None:
    code = """
import gc, inspect, os, sys
def f():
    main, frame = sys.modules["__main__"], sys._getframe()
    found = [*sys.argv, *sys.orig_argv, *sys.path, sys.executable, sys.prefix, os.getcwd()]
    found += [str(getattr(module, "__file__", "")) for module in sys.modules.values()]
    found += [text for text in vars(main).values() if isinstance(text, str)]
    while frame:
        found.append(frame.f_code.co_filename)
        frame = frame.f_back
    found += [t.__code__.co_filename for t in gc.get_objects() if inspect.isfunction(t)]
    for name in ("cmdline", "environ", "maps"):
        if os.path.exists("/proc/self/" + name):
            found += open("/proc/self/" + name).read().split()
    for fd in range(32):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    try:
        found.append(inspect.getsource(main))
    except (OSError, TypeError):
        pass
    return sorted(set(found))
"""
    (result,) = await sandbox.run(code, "f", [Call()], Limits(wall_s=5.0, output_kb=256))
    assert result.verdict == "value", result.why
    root = str(Path(__file__).parents[3])
    assert [text for text in result.value if root in text or "child.py" in text] == []


async def test_the_process_hides_its_environment(sandbox: SubprocessSandbox) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has prctl")
    await sandbox.run("def f(): return 1", "f", [Call()])
    get_dumpable = 3
    assert ctypes.CDLL(None).prctl(get_dumpable, 0, 0, 0, 0) == 0


@pytest.mark.parametrize("end", ["return", "raise ValueError"])
async def test_secrets_are_taken_out(
    sandbox: SubprocessSandbox, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The argument stands for what a candidate reads of this process."""
    monkeypatch.setenv("VENDOR_API_KEY", "sentinel-1234")
    code = f"def f(x): {end}('y' * 285 + x)"
    (result,) = await sandbox.run(code, "f", [Call(args=("sentinel-1234" * 3,))])
    text = result.why or result.value
    assert "[secret]" in text
    assert "senti" not in text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runner makes its temporary folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def test_nothing_is_left(sandbox: SubprocessSandbox, folder: Path) -> None:
    code = "import os, time\ndef f():\n  p = os.fork()\n  if not p: time.sleep(60)\n  return p"
    (result,) = await sandbox.run(code, "f", [Call()])
    assert _names_in(folder) == []
    if result.verdict == "value":  # only root may fork
        await asyncio.sleep(0.2)
        assert not _alive(result.value)


async def test_cancellation_kills_the_child(sandbox: SubprocessSandbox, folder: Path) -> None:
    code = (
        "import os, time\ndef f(path):\n"
        "  print(os.getpid(), file=open(path, 'w'), flush=True)\n  time.sleep(60)"
    )
    call = Call(args=(str(folder / "pid"),))
    task = asyncio.create_task(sandbox.run(code, "f", [call], Limits(wall_s=20)))
    while not (pid := _pid_in(folder / "pid")):  # noqa: ASYNC110 - written by another process
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _alive(pid)
    assert _names_in(folder) == ["pid"]


async def test_equal_runs_are_answered_from_memory(
    sandbox: SubprocessSandbox,
) -> None:
    code = "import os\ndef f(x): return os.getpid()"
    first, again = await asyncio.gather(*[sandbox.run(code, "f", CALLS[:1]) for _ in range(2)])
    other = await sandbox.run(code, "f", CALLS[:1], Limits(wall_s=3.0))
    assert first == again
    assert first != other


async def test_no_calls_no_results(sandbox: SubprocessSandbox) -> None:
    assert await sandbox.run("def f(): return 1", "f", []) == []


def test_the_level_is_named() -> None:
    assert open_sandbox(Limits()).level.startswith("4: ")


def _alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody reaps does not."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def _pid_in(path: Path) -> int:
    """The number in a file that another process may not have written yet, or 0."""
    return int(path.read_text() or 0) if path.exists() else 0


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
