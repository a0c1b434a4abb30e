"""Nothing that models, tasks, servers or files wrote steers the terminal that shows it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestry.cli.console import Console
from orchestry.cli.screen import Lenient
from tests.cli.support import FAKE, CommandLine, served

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[1A\x9b31m\u202eback\u2066wards\x08\rover"
STEERS = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\x08", "\rover")


def steers(text: str) -> list[str]:
    return [found for found in STEERS if found in text]


@given(st.text(st.characters() | st.sampled_from(EVIL)))
def test_a_stream_shows_what_would_steer_and_json_keeps_its_meaning(text: str) -> None:
    out = io.StringIO()
    Lenient(out, OSError).write(text)
    assert not steers(out.getvalue())
    out.seek(0)
    out.truncate()
    Lenient(out, OSError).write(json.dumps(text, ensure_ascii=False))
    assert json.loads(out.getvalue()) == text


@given(st.text(st.characters() | st.sampled_from(EVIL)))
def test_what_rich_prints_is_tamed_too(text: str) -> None:
    out = io.StringIO()
    console = Console(file=Lenient(out, OSError))  # type: ignore[arg-type]
    table = Table(text)
    table.add_row(Text(text))
    console.print(Panel(table, title=Text(text)), text, markup=False)
    assert not [found for found in steers(out.getvalue()) if found != "\rover"]


def test_our_own_colours_reach_a_terminal() -> None:
    out = io.StringIO()
    console = Console(
        file=Lenient(out, OSError),  # type: ignore[arg-type]
        force_terminal=True,
        color_system="standard",
    )
    console.print(Text(f"fine{EVIL}", "red"))
    assert out.getvalue().startswith("\x1b[31mfine")
    assert "\x1b]" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


@pytest.mark.slow
def test_answers_errors_of_servers_and_libraries_are_shown_tamed(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path("script.jsonl")
    script.write_text(json.dumps({"agent": "*", "text": f"words {EVIL}"}) + "\n")
    odd = ("--set", f"provider.fake.script={script}")
    shown = [cli("run", *FAKE, *odd, "--run-dir", "run", "--show-best", "--verbose")]
    shown += [cli("rate", "run", "--show"), cli("report", "run")]
    shown += [cli("run", *FAKE, "--run-dir", f"no\x1b[2J{EVIL}/x", "--task", EVIL)]
    monkeypatch.setenv("OPENAI_API_KEY", "k-0123456789")
    body = json.dumps({"error": {"message": EVIL}}, ensure_ascii=False).encode()
    free = ("--set", "prices.m.input=0", "--set", "prices.m.output=0")
    with served(lambda number, sent: (401, body)) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        failed = cli("run", *FAKE, "--provider", "openai", "--model", "m", *free)
    assert failed.code == 1
    Path("bad.yaml").write_text(f'task: "{"x" * 3}\\e[2J"\nmodel: m\n')
    for result in (*shown, failed, cli("behaviors", "list", "bad.yaml")):
        assert not steers(result.out + result.err), result


@pytest.mark.parametrize(
    "words",
    [
        ("run", *FAKE, "--run-dir", "x" * 300),
        ("run", *FAKE, "--task-path", "x" * 300),
        ("run", "--config", "x" * 300),
        ("resume", "x" * 300),
        ("evaluate", "x" * 300),
        ("report", "x" * 300),
        ("behaviors", "list", "x" * 300),
        ("baselines", "run", "fixed", "--of", "x" * 300),
        ("judge", "check", *FAKE[:6], "--run-dir", "x" * 300),
        ("run", *FAKE, "--set", f"behaviors.from={'x' * 300}"),
    ],
    ids=lambda words: " ".join(map(str, words))[:24],
)
def test_a_name_that_no_disk_takes_is_one_short_line(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    result = cli(*words)
    result.failed(2, "the name xxx", "is longer than this disk takes")
    assert len(result.last) < 200


def test_a_reset_at_exit_is_not_spelled_out() -> None:
    out = io.StringIO()
    Lenient(out, OSError).write("\x1b[0m")
    assert out.getvalue() == ""
