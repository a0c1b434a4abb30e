"""The two scripts at the root: main_marl.py is `orchestry run`, test_marl.py a checklist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import test_marl

SCRIPT = Path(__file__).parents[1] / "main_marl.py"
TASKS = Path(__file__).parent / "fixtures" / "tasks"


def main_marl(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--provider", "fake", "--task-path", str(TASKS), *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_script_is_short() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 10


@pytest.mark.slow
def test_it_runs_episodes_and_shows_the_best(tmp_path: Path) -> None:
    done = main_marl(
        tmp_path, "--task", "words", "--episodes", "2", "--verbose", "--show-best", "--seed", "1"
    )
    assert done.returncode == 0, done.stderr
    assert "words: done" in done.stdout
    assert "refactorer" in done.stdout
    assert "advantage" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert len((folder / "episodes.jsonl").read_text().splitlines()) == 2


def test_its_exit_code_is_the_command_lines(tmp_path: Path) -> None:
    done = main_marl(tmp_path, "--task", "wrds")
    assert done.returncode == 2
    assert "did you mean 'words'" in done.stderr
    assert not list(tmp_path.iterdir())


def times_out(folder: Path) -> None:
    """An item that hangs"""
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.01)


def lacks_a_file(folder: Path) -> None:
    """An item whose file is missing"""
    (folder / "nothing").read_text()


def holds(folder: Path) -> None:
    """An item that holds"""
    assert list(folder.iterdir()) == []


def test_the_checklist_goes_on_after_any_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert test_marl.checklist([times_out, lacks_a_file, holds]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL (TimeoutExpired: ")
    assert lines[1].startswith("FAIL (FileNotFoundError: ")
    assert lines[2].startswith("ok    An item that holds")
    assert lines[3] == "1 passed, 2 failed"
    assert test_marl.checklist([holds]) == 0
