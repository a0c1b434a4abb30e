"""`orchestry judge check`: what it prints, its codes, and what it says of wrong usage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.support import FAKE, TASKS, CommandLine
from tests.engine.planted import good, judging, plant

ZERO = [
    part
    for scale in ("quality", "collaboration", "efficiency")
    for part in ("--set", f"judge.{scale}=0")
]
CHECK = ("judge", "check", "--allow-unsafe-code")


@pytest.fixture
def planted(cli: CommandLine, tmp_path: Path) -> tuple[object, ...]:
    return (*CHECK, "--task", "planted", "--task-path", plant(tmp_path / "tasks"))


def test_a_check_of_the_fake_judge(cli: CommandLine, planted: tuple[object, ...]) -> None:
    result = cli(*planted, "--provider", "fake", "--problems", 5)
    assert result.code == 0
    (folder,) = Path("runs").glob("judge-check--planted--*")
    assert {path.name for path in folder.iterdir()} == {
        *("check.json", "check.yaml", "journal.head", "journal.jsonl", "run.lock")
    }
    assert "judge fake/fake-1 on planted: done" in result.out
    assert "rated 20" in result.out
    assert "leave the judge off" in " ".join(result.out.replace("\u2502", " ").split())
    assert f"{folder}" in result.err
    assert result.err.startswith("· reading the config")


@pytest.mark.slow
def test_a_long_check_tells_a_file_how_far_it_is(
    cli: CommandLine, planted: tuple[object, ...]
) -> None:
    slow = ("--set", "provider.fake.latency_s=0.4", "--set", "search.concurrency=1")
    result = cli(*planted, "--provider", "fake", "--problems", 1, *slow)
    assert "asking the judge 0/1  $0.000/5" in result.err


def test_json_is_one_object_and_the_same_as_on_disk(
    cli: CommandLine, planted: tuple[object, ...]
) -> None:
    command = (*planted, "--provider", "fake", "--problems", 3, "--run-dir", "c", "--json")
    result = cli(*command, "--verbose")
    found = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert found == json.loads(Path("c/check.json").read_text())
    assert (found["problems"], found["calls"], found["measures"]["verdicts"]["rated"]) == (
        3,
        12,
        12,
    )
    assert result.err.count("swaps alike") == 3
    again = json.loads(cli(*command).out)
    assert again["measures"] == found["measures"]


def test_a_dry_run_asks_nothing_and_makes_nothing(
    cli: CommandLine, planted: tuple[object, ...]
) -> None:
    with judging(good) as bench:
        asked = (*planted, "--provider", "openai", "--model", "m", "--problems", 3, "--dry-run")
        server = ("--set", f"provider.base_url={bench.url}", "--set", "prices.m.input=2")
        result = cli(*asked, *server, "--set", "prices.m.output=8", "--json")
        found = json.loads(result.out)
        people = cli(*asked, *server, "--set", "prices.m.output=8")
    usd = found["cost_usd"]
    assert (found["episodes"], bench.bodies) == (3, [])
    assert 12 <= found["calls"] <= 14
    assert 0 < usd["p5"] <= usd["expected"] <= usd["p95"] < usd["max"] < 5.0
    assert "3 problems on" in people.out
    assert f"hard maximum {usd['max']:.4f}" in people.out
    assert not Path("runs").exists()


def test_a_good_judge_over_http_stops_at_the_budget_and_goes_on(
    cli: CommandLine, planted: tuple[object, ...]
) -> None:
    with judging(good) as bench:
        asked = (
            *(*planted, "--provider", "openai", "--model", "m", "--run-dir", "c"),
            *("--set", f"provider.base_url={bench.url}", "--set", "search.concurrency=4"),
            *("--set", "prices.m.input=0", "--set", "prices.m.output=1000"),
        )
        first = cli(*asked, "--budget", 1.1)
        assert first.code == 3
        assert "stopped at the budget; results are kept" in first.out
        assert "--run-dir c and --budget above 1.1 continues" in " ".join(first.err.split())
        second = cli(*asked, "--budget", 9)
    assert second.code == 0
    assert "trustworthy" in second.out
    assert len(bench.bodies) == 48


def test_settings_of_the_config_hold_for_the_flags_provider(
    cli: CommandLine, planted: tuple[object, ...]
) -> None:
    """--provider names the judge: an address in the config is another vendor's."""
    with judging(good) as bench:
        judge = f"judge.provider={{name: openai, model: m, base_url: '{bench.url}'}}"
        asked = (*planted, "--problems", 1, "--set", judge)
        priced = ("--set", "prices.m.input=1", "--set", "prices.m.output=1")
        assert cli(*asked, *priced).code == 0
        assert len(bench.bodies) == 4
        other = cli(*asked, "--provider", "fake", "--json")
        assert json.loads(other.out)["model"] == "fake-1"
        assert len(bench.bodies) == 4


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("--problems", 0), "greater than or equal to 1, found '0'"),
        (("--problems", "many"), "unable to parse string as an integer, found 'many'"),
        (("--provider", "nobody"), "'nobody' is not one of"),
        (("--bogus",), "No such option"),
    ],
)
def test_bad_flags_are_code_2(cli: CommandLine, args: tuple[object, ...], found: str) -> None:
    result = cli(*CHECK, *args)
    assert (result.code, result.out) == (2, "")
    assert found in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("--task", "plantd"), "unknown task 'plantd'"),
        (("--provider", "openai"), "OPENAI_API_KEY is not set"),
        (("--provider", "anthropic"), "ANTHROPIC_API_KEY is not set"),
        (("--set", "judge.repeat=2"), "judge.repeat"),
        (("--budget", -1), "budget.usd"),
        (
            ("--provider", "fake", "--problems", 1, *ZERO),
            "are all zero",
        ),
    ],
)
def test_bad_settings_are_one_line(cli: CommandLine, args: tuple[object, ...], found: str) -> None:
    cli(*CHECK, *args).failed(2, found)


def test_a_task_without_gold_and_a_run_are_refused(cli: CommandLine) -> None:
    words = ("--provider", "fake", "--task", "words", "--task-path", TASKS)
    cli(*CHECK, *words).failed(2, "task words has no answers of different scores")
    assert cli("run", *FAKE, "--run-dir", "run").code == 0
    cli(*CHECK, *words, "--run-dir", "run").failed(2, "run holds a run, not a judge check")


@pytest.mark.slow
def test_an_interrupted_check_goes_on(cli: CommandLine, planted: tuple[object, ...]) -> None:
    slow = ("--set", "provider.fake.latency_s=0.2", "--set", "search.concurrency=2")
    asked = (*planted, "--provider", "fake", "--problems", 4, "--run-dir", "c", *slow)
    command = [sys.executable, "-m", "orchestry", *map(str, asked)]
    process = subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE, text=True)
    journal = Path("c/journal.jsonl")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if journal.exists() and '"kind":"answered"' in journal.read_text():
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert json.loads(Path("c/check.json").read_text())["stopped"] == "interrupted"
    paid = journal.read_text().count('"kind":"answered"')
    assert 0 < paid < 16
    found = json.loads(cli(*asked, "--json").out)
    assert (found["stopped"], found["problems"], found["calls"]) == ("done", 4, 16)
