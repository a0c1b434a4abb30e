"""`orchestry sandbox run`: a verdict a line, and bad lines named before anything runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import CommandLine, Result

RUN = ("sandbox", "run", "--allow-unsafe-code")
"""Any level will do: what is tested here is the command."""
DOUBLE = "def f(x):\n    return 2 * x\n"


def program(id_: str | int = "a", code: str = DOUBLE, **more: Any) -> dict[str, Any]:
    return {"id": id_, "code": code, "entry_point": "f", "tests": [[[1], 2], [[4], 8]], **more}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "programs.jsonl"
    path.write_text("".join(f"{x if type(x) is str else json.dumps(x)}\n" for x in lines))
    return path


def reports(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.out.splitlines()]


def test_each_verdict_in_the_order_of_the_lines(cli: CommandLine, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        program("late", "import time\ndef f(x):\n    time.sleep(60)\n", wall_s=0.5),
        program("right"),
        "",
        program("wrong", "def f(x):\n    return x + 1\n", notes="passed over"),
        program("broken", "def f(x):\n    return 2 * y\n"),
        program("big", "def f(x):\n    return len(bytearray(10 ** 12))\n"),
        program("long", "def f(x):\n    return 'x' * 10 ** 6\n"),
        program(7, tests=[]),
    )
    result = cli(*RUN, path)
    assert result.code == 0, result
    found = reports(result)
    assert [(r["id"], r["verdict"], r["passed"], r["total"]) for r in found] == [
        ("late", "timeout", 0, 2),
        ("right", "pass", 2, 2),
        ("wrong", "fail", 1, 2),
        ("broken", "error", 0, 2),
        ("big", "memory", 0, 2),
        ("long", "error", 0, 2),
        (7, "error", 0, 0),
    ]
    assert all(list(r) == ["id", "verdict", "passed", "total", "why"] for r in found)
    whys = [r["why"] for r in found]
    assert whys[0] == "test 1: f(1): no answer within 0.5 s for the whole run"
    assert whys[1] == ""
    assert whys[2] == "test 2: f(4) returned 5, expected 8"
    assert whys[3].startswith("test 1: f(1): NameError: name 'y' is not defined (line 2)")
    assert "more than 256 KiB" in whys[5]
    assert whys[6].startswith("no tests")
    assert result.err.count("\n") == 1
    assert result.err.startswith("sandbox level ")


def test_the_gravest_call_decides_and_is_told(cli: CommandLine, tmp_path: Path) -> None:
    code = "def f(x):\n    return [1, 1 / 0 if x == 2 else 3, 3][1]\n"
    path = written(tmp_path, program(code=code, tests=[[[1], 9], [[2], 9], [[3], 3]]))
    (found,) = reports(cli(*RUN, path))
    assert (found["verdict"], found["passed"]) == ("error", 1)
    assert found["why"].startswith("test 2: f(2): ZeroDivisionError")


@pytest.mark.parametrize(
    ("value", "expected", "passed"),
    [
        ("[1, 2]", [1, 2], True),
        ("(1, 2)", [1, 2], False),
        ("True", 1, False),
        ("0.1 + 0.2", 0.3, True),
        ("{1: 2}", {"1": 2}, False),
        ("'\\ud800'", "\ud800", True),
        ("1 << 64", 1 << 64, True),
    ],
)
def test_types_must_match(
    cli: CommandLine, tmp_path: Path, value: str, expected: Any, passed: bool
) -> None:
    code = f"def f():\n    return {value}\n"
    (found,) = reports(cli(*RUN, written(tmp_path, program(code=code, tests=[[[], expected]]))))
    assert found["verdict"] == ("pass" if passed else "fail")


def test_why_is_one_short_line_without_a_secret(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_API_KEY", "sentinel-1234")
    long = ["a\nb" * 5000, 10**4000]
    lines = [
        program("echo", "def f(x):\n    return x\n", tests=[[["y" * 72 + "sentinel-1234"], 1]]),
        program("raise", "def f(x):\n    raise ValueError(x)\n", tests=[[["sentinel-1234"], 1]]),
        program("long", "def f(*x):\n    return x\n", tests=[[long * 3, long]]),
        program("huge", "def f(x):\n    return 10 ** 5000\n"),
    ]
    result = cli(*RUN, written(tmp_path, *lines))
    assert "senti" not in result.out
    assert all(len(r["why"]) <= 400 for r in reports(result))
    assert all("\n" not in r["why"] and r["why"] for r in reports(result))
    assert "too long to print" in reports(result)[3]["why"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no JSON object"),
        ({**program(), "id": [1]}, "id is [1]: give a string or an integer"),
        ({**program(), "code": None}, "code is None: give a string"),
        ({"id": 1, "code": "", "tests": []}, "entry_point is missing: give a string"),
        ({**program(), "tests": {}}, "tests is {}: give a list"),
        ({**program(), "tests": [[1, 2]]}, "test 1 is [1, 2]: give [[arguments...], expected]"),
        ({**program(), "tests": [[[1], 2], [[1]]]}, "test 2 is [[1]]"),
        ({**program(), "wall_s": "2"}, "wall_s is '2': give seconds"),
        ({**program(), "wall_s": True}, "wall_s is True: give seconds"),
        ({**program(), "wall_s": 0}, "wall_s: Input should be greater than or equal to 0.1"),
        ('{"id": "\\ud800"', "no JSON"),
        (program(tests=[[[json.loads("[" * 200 + "]" * 200)], 1]]), "test 1 has arguments nested"),
    ],
)
def test_a_bad_line_is_named_and_nothing_runs(
    cli: CommandLine, tmp_path: Path, line: Any, found: str
) -> None:
    path = written(tmp_path, program(), "", line, program())
    result = cli(*RUN, path)
    result.failed(2, f"{path}:3: ", found, '"entry_point"')
    assert "sandbox level" not in result.err


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("missing.jsonl",), "missing.jsonl can't be read (No such file"),
        ((".",), ". can't be read (Is a directory)"),
        (("",), "'' can't be read"),
        (("--wall-s", "0", "a"), "--wall-s: Input should be greater"),
        (("--memory-mb", "1", "a"), "--memory-mb: Input should be greater"),
        (("--cpu-s", "nan", "a"), "--cpu-s: Input should be"),
        (("--output-kb", "0", "a"), "--output-kb: Input should be greater"),
    ],
)
def test_bad_arguments(cli: CommandLine, args: tuple[str, ...], found: str) -> None:
    result = cli(*RUN, *args)
    result.failed(2, found)
    assert "sandbox level" not in result.err  # nothing is started for them


def test_a_closed_stdin_is_named(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as the interpreter leaves it after `<&-`
    cli(*RUN, "-").failed(2, "stdin is closed: give a file of JSON lines")


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = cli("sandbox", "run", "--help").out.splitlines()
    assert max(map(len, lines)) <= columns
    start = next(n for n, line in enumerate(lines) if line.startswith("  In:  {"))
    assert lines[start + 2].startswith("  Out: {")  # examples stay as they are written


def test_bytes_that_are_no_text_are_named(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "binary.jsonl"
    path.write_bytes(json.dumps(program()).encode() + b"\n\xff\xfe\n")
    cli(*RUN, path).failed(2, f"{path}:2: no JSON ('utf-8' codec can't decode byte 0xff")


@pytest.mark.slow
def test_limits_hold_and_a_line_may_change_its_time(cli: CommandLine, tmp_path: Path) -> None:
    slow = "import time\ndef f(x):\n    time.sleep(0.4)\n    return 2 * x\n"
    busy = "import time\ndef f(x):\n    while time.process_time() < 2:\n        pass\n"
    path = written(
        tmp_path,
        program(code=slow),
        program(code=slow, wall_s=20),
        program(code=busy + "    return 2 * x\n", wall_s=20),
        program(code="def f(x):\n    return 'x' * 3000\n"),
        program(code="def f(x):\n    return len(bytearray(90 << 20)) and 2 * x\n"),
    )
    flags = ("--wall-s", "0.3", "--output-kb", "2", "--memory-mb", "64")
    first = reports(cli(*RUN, *flags, path))
    assert [r["verdict"] for r in first] == ["timeout", "pass", "pass", "error", "memory"]
    second = reports(cli(*RUN, "--cpu-s", "1", "--wall-s", "30", "--output-kb", "16", path))
    assert [r["verdict"] for r in second] == ["pass", "pass", "timeout", "fail", "pass"]


def test_stdin_is_judged_up_to_the_bad_line(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps(program("a")), json.dumps(program("b")), "{}", json.dumps(program("c"))]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    result = cli(*RUN, "-")
    assert result.code == 2
    assert [r["id"] for r in reports(result)] == ["a", "b"]
    assert result.last.startswith("orchestry: stdin:3: id is missing")


def test_verdicts_come_while_more_is_awaited(tmp_path: Path) -> None:
    """Also a pipe given by name is read once, as it comes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "orchestry", *RUN, str(pipe)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        with pipe.open("w") as lines:
            for number in range(3):
                print(json.dumps(program(number)), file=lines, flush=True)
                assert json.loads(process.stdout.readline())["id"] == number
        assert process.wait(30) == 0


def test_many_lines_stay_in_order(cli: CommandLine, tmp_path: Path) -> None:
    code = "import time\ndef f(x):\n    time.sleep({} / 100)\n    return 2 * x\n"
    path = written(tmp_path, *(program(n, code.format(-n % 3)) for n in range(300)))
    found = reports(cli(*RUN, path))
    assert [r["id"] for r in found] == [*range(300)]
    assert {r["verdict"] for r in found} == {"pass"}


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_no_lines_no_verdicts(cli: CommandLine, tmp_path: Path, lines: list[str]) -> None:
    result = cli(*RUN, written(tmp_path, *lines))
    assert (result.code, result.out) == (0, "")
    assert result.last == "no program was given, so there are no verdicts"


def test_level_4_wants_a_word(cli: CommandLine, tmp_path: Path) -> None:
    path = written(tmp_path, program())
    result = cli("sandbox", "run", "--level", "4", path)
    result.failed(1, "--allow-unsafe-code")
    assert reports(cli(*RUN, "--level", "4", path))[0]["verdict"] == "pass"
