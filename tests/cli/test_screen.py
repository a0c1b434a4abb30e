"""What commands print fits a narrow terminal whole, and is plain in a file."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from tests.cli.support import FAKE, CommandLine

COLUMNS = 60
BOXES = set("─│╭╮╰╯┏┓┃━┡┩└┘├┤")
STYLE = re.compile(r"\x1b\[[0-9;]*m")
COMMANDS = {
    "tasks": ("tasks", "list"),
    "check": ("tasks", "check", "tldr"),
    "doctor": ("doctor",),
    "kinds of baseline": ("baselines", "list"),
    "estimate": ("run", *FAKE, "--dry-run"),
    "run": ("run", *FAKE, "--show-best"),
    "baselines": ("baselines", "run", "fixed", "best_of_n", *FAKE[:-1], 1, "--out", "base"),
    "report": ("report", "run"),
}


class Terminal(io.StringIO):
    """Stdout as a terminal of so many columns."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(
    params=[
        pytest.param(command, id=name, marks=[pytest.mark.slow] if name == "check" else [])
        for name, command in COMMANDS.items()
    ]
)
def command(request: pytest.FixtureRequest, cli: CommandLine) -> tuple[object, ...]:
    args: tuple[object, ...] = request.param
    if args[0] == "report":
        cli("run", *FAKE, "--run-dir", "run")
    return args


def test_sixty_columns_are_enough(
    command: tuple[object, ...], cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    for name, value in (("COLUMNS", str(COLUMNS)), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", shown)
    assert cli(*command).code == 0
    assert "\\u001b" not in shown.getvalue()  # our own colours, taken for a stranger's
    lines = STYLE.sub("", shown.getvalue()).splitlines()
    to_copy = ("orchestry ", "run/report/")
    assert lines
    assert [line for line in lines if len(line) > COLUMNS and not line.startswith(to_copy)] == []
    assert [line for line in lines if "\u2026" in line] == []


def test_a_wrong_call_is_told_in_sixty_columns(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr(sys, "stderr", shown)
    assert cli("run", "--provider", "nobody").code == 2
    told = shown.getvalue()
    assert "Usage: orchestry run [OPTIONS]\n" in told
    assert "embedded" in told
    assert max(map(len, told.splitlines())) <= COLUMNS


@pytest.mark.slow
def test_a_file_has_no_boxes_and_nothing_is_cut(
    command: tuple[object, ...], cli: CommandLine
) -> None:
    done = cli(*command)
    assert done.code == 0, done
    assert not BOXES & set(done.out)
    assert "\u2026" not in done.out


def test_the_next_command_can_be_copied_from_a_file(cli: CommandLine, tmp_path: Path) -> None:
    deep = tmp_path / "a_rather_long_name_of_a_folder" / "and_another_one_that_is_no_shorter"
    done = cli("run", *FAKE, "--run-dir", deep / "run")
    assert f"orchestry evaluate {deep / 'run'} --split test" in done.out.splitlines()
    assert len(str(deep)) > 80
