"""`orchestry run`: what it prints, for people and for programs, on any terminal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestry.cli.console import Console, Notes, say
from tests.cli.support import FAKE, CommandLine

RUN = (sys.executable, "-m", "orchestry", "run", *map(str, FAKE), "--run-dir", "run")


def test_a_run_says_where_it_is_and_what_it_came_to(cli: CommandLine) -> None:
    result = cli("run", *FAKE)
    (folder,) = Path("runs").glob("words--api--*")
    assert result.code == 0
    assert "words: done" in result.out
    assert f"{folder}" in result.err
    assert {path.name for path in folder.iterdir()} == {
        *("config.yaml", "manifest.json", "summary.json", "journal.jsonl", "run.lock"),
        "journal.head",
        *("episodes.jsonl", "metrics.jsonl", "rewards.csv"),
    }


@pytest.mark.parametrize("extra", [(), ("--show-best",), ("--verbose", "--show-best")])
def test_json_is_one_object_and_nothing_else(cli: CommandLine, extra: tuple[str, ...]) -> None:
    result = cli("run", *FAKE, "--run-dir", "run", "--json", *extra)
    found = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert found == json.loads(Path("run/summary.json").read_text())
    assert (found["run_dir"], found["episodes"], found["calls"]) == ("run", 3, 60)
    rewards = {"mean_reward", "best_of_k", "best_reward"}
    assert {"task", "provider", "model", "cost_usd", *rewards} <= found.keys()
    assert ("advantage" in result.err) == ("--show-best" in extra)


def test_a_dry_run_is_one_object_and_makes_nothing(cli: CommandLine) -> None:
    result = cli("run", *FAKE, "--dry-run", "--json", "--show-best", "--run-dir", "run")
    assert result.code == 0
    assert {"p5", "expected", "p95", "max"} == json.loads(result.out)["cost_usd"].keys()
    assert not list(Path().iterdir())


def test_help_names_what_is_on_by_itself(cli: CommandLine) -> None:
    text = " ".join(cli("run", "--help").out.split())
    for said in ("judge.enabled=false", "behaviors.enabled=false", "docs/learning.md", "credits"):
        assert said in text
    assert "<split>--update-N" in cli("evaluate", "--help").out


def test_notes_break_between_words_on_a_terminal_and_stay_whole_in_a_file() -> None:
    note = "candidate 0123456789 is accepted after a long and patient trial on dev problems"
    for terminal, lines in ((True, 3), (False, 1)):
        out = io.StringIO()
        say(Console(file=out, force_terminal=terminal, width=30, color_system=None), note)
        assert len(out.getvalue().splitlines()) == lines
        assert {"accepted", "0123456789"} <= set(out.getvalue().split())


def test_eight_notes_alike_are_one_and_a_count() -> None:
    out = io.StringIO()
    notes = Notes(Console(file=out))
    for number in range(8):
        notes("the disk is slow")
        notes(f"update {number}")
    assert out.getvalue().count("the disk is slow") == 1
    notes.close()
    said = out.getvalue().splitlines()
    assert said[-1] == "· 8 times in all: the disk is slow"
    assert len(said) == 1 + 8 + 1


def test_a_traceback_comes_only_with_verbose(cli: CommandLine) -> None:
    for extra in ((), ("--verbose",)):
        result = cli("run", *FAKE, "--episodes", 0, *extra)
        assert result.code == 2
        assert ("Traceback" in result.err) == bool(extra)
        assert result.last.startswith("orchestry: config key 'episodes' is 0")


@pytest.mark.parametrize("args", [("--bogus",), ("--provider", "x"), ("--episodes", "x"), ("y",)])
def test_bad_flags_are_code_2(cli: CommandLine, args: tuple[str, ...]) -> None:
    result = cli("run", *args)
    assert (result.code, result.out) == (2, "")
    assert result.last.startswith("Error: ")


@pytest.mark.parametrize(
    "variables",
    [{"COLUMNS": "12"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}],
    ids=["narrow", "ascii", "C"],
)
@pytest.mark.slow
def test_any_terminal_will_do(cli: CommandLine, variables: dict[str, str]) -> None:
    Path("script.jsonl").write_text('{"agent": "*", "text": "na\u00efve \U0001f600 \u4e2d"}\n')
    script = ("--set", "provider.fake.script=script.jsonl", "--show-best", "--verbose")
    done = subprocess.run(
        [*RUN, *script], env={**os.environ, **variables}, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_does_not_hurt_the_run(cli: CommandLine) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run([*RUN], stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write_end)
    assert b"Traceback" not in done.stderr
    assert json.loads(Path("run/summary.json").read_text())["stopped"] == "done"
