"""What a user sees before a command runs: help in panels, and what a shell completes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestry.cli import PANELS
from tests.cli.support import FAKE, CommandLine


@pytest.fixture
def complete(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Completer:
    """What bash is given for a line."""
    return Completer(cli, monkeypatch)


class Completer:
    """Asks as the script of `--show-completion bash` does."""

    def __init__(self, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cli, self.monkeypatch = cli, monkeypatch

    def __call__(self, line: str) -> list[str]:
        words = line.split(" ")
        with self.monkeypatch.context() as patched:
            patched.setenv("_ORCHESTRY_COMPLETE", "complete_bash")
            patched.setenv("COMP_WORDS", line)
            patched.setenv("COMP_CWORD", str(len(words) - 1))
            result = self.cli()
        assert (result.code, result.err) == (0, ""), result
        return result.out.split()


def test_a_shell_completes_commands(complete: Completer) -> None:
    assert complete("orchestry ru") == ["run", "runs"]
    assert complete("orchestry judge ch") == ["check"]
    assert complete("orchestry resume --acc") == ["--accept-changes"]
    assert {"run", "resume", "doctor"} <= set(complete("orchestry "))


def test_a_shell_completes_what_options_and_arguments_take(complete: Completer) -> None:
    assert complete("orchestry run --task code_r") == ["code_review"]
    assert complete("orchestry tasks check tl") == ["tldr"]
    assert complete("orchestry run --backend l") == ["local"]
    assert complete("orchestry run --config lap") == ["laptop"]
    assert complete("orchestry baselines run con") == ["concat"]


def test_a_shell_completes_runs_the_newest_first(cli: CommandLine, complete: Completer) -> None:
    assert complete("orchestry resume ") == ["last"]
    for name in ("one", "two"):
        assert cli("run", *FAKE, "--episodes", 1, "--run-dir", f"runs/{name}").code == 0
    Path("runs/notes").mkdir()
    assert complete("orchestry resume ") == ["last", "runs/two", "runs/one"]
    assert complete("orchestry report runs/o") == ["runs/one"]


def test_completion_can_be_shown_and_installed(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    assert "_ORCHESTRY_COMPLETE=complete_bash" in cli("--show-completion").out
    assert cli("--install-completion").code == 0
    assert "orchestry" in (tmp_path / ".bashrc").read_text()


def test_help_has_panels_of_commands_and_of_options(cli: CommandLine) -> None:
    assert _panels(cli("--help").out)[1:] == [*PANELS]
    panels = ["Options", "Run", "Model", "Search", "Learning", "Budget", "Safety", "Output"]
    assert _panels(cli("run", "-h").out) == panels


def _panels(text: str) -> list[str]:
    return re.findall(r"^╭─ ([\w ]+?) ─", text, flags=re.MULTILINE)


def test_without_a_command_help_is_on_stderr_and_the_code_is_2(cli: CommandLine) -> None:
    for words in ((), ("tasks",)):
        result = cli(*words)
        assert (result.code, result.out) == (2, "")
        assert "Usage: orchestry" in result.err


@pytest.mark.parametrize(
    "words", [["run"], ["resume"], ["judge", "check"], ["baselines", "run"], ["sandbox", "run"]]
)
def test_help_waits_for_nothing_heavy(words: list[str]) -> None:
    code = (
        "import atexit, sys; from orchestry.cli import main\n"
        "heavy = ('pydantic', 'numpy', 'torch', 'yaml', 'orchestry.core.types')\n"
        "atexit.register(lambda: print([m for m in heavy if m in sys.modules], file=sys.stderr))\n"
        f"main({[*words, '--help']})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert "Usage: orchestry" in done.stdout


def test_an_interruption_is_said_where_no_command_says_it(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestry.cli.doctor._examine", examine)
    result = cli("doctor")
    assert (result.code, result.last) == (
        130,
        "orchestry: interrupted; `orchestry resume RUN` continues a run",
    )
