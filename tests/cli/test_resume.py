"""`orchestry resume` and interrupts: a stopped run says how to go on, and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestry.store.journal import Lost, Reserved, read
from orchestry.store.run import Store
from tests.cli.support import FAKE, CommandLine, Reply, chat, served
from tests.engine.test_run import artefacts

SLOW = ("--set", "provider.fake.latency_s=0.04", "--set", "search.episodes_in_flight=2")
PRICED = ("--set", "prices.fake-1.input=1", "--set", "prices.fake-1.output=5")


def start(*args: object, **environ: str) -> subprocess.Popen[str]:
    """A process of its own, whose first calls have been sent."""
    command = [sys.executable, "-m", "orchestry", "run", *map(str, FAKE), *map(str, args)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environ}
    )
    journal, deadline = Path("run/journal.jsonl"), time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and b'"reserved"' in journal.read_bytes():
            return process
        time.sleep(0.02)
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_stopped_run_keeps_what_was_in_flight_and_goes_on(
    cli: CommandLine, number: signal.Signals
) -> None:
    process = start("--episodes", 6, *SLOW, *PRICED, "--run-dir", "run", "--json")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert json.loads(out)["stopped"] == "interrupted"
    assert "orchestry resume run" in err
    assert "Traceback" not in err
    events = list(read(Path("run/journal.jsonl")))
    assert any(isinstance(event, Reserved) for event in events)
    assert not any(isinstance(event, Lost) for event in events)  # those in flight were answered
    assert json.loads(cli("resume", "run", "--json").out)["episodes"] == 6
    assert cli("run", *FAKE, "--episodes", 6, *SLOW, *PRICED, "--run-dir", "whole").code == 0
    assert artefacts(Path("run")) == artefacts(Path("whole"))


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_calls_that_cost_nothing_are_given_up_at_once(number: signal.Signals) -> None:
    process = start("--set", "provider.fake.latency_s=60", "--run-dir", "run")
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130, err
    assert "orchestry resume run" in out + err
    assert "paid calls" not in err
    assert "Traceback" not in err
    assert "never retrieved" not in err


ODD = """
import asyncio
from pathlib import Path
from orchestry import AgentSpec, Problem, TeamTask

class Odd(TeamTask):
    name = "odd"
    agents = (AgentSpec(role="writer"),)

    def problems(self, split):
        return [Problem(id=f"p{n}", prompt="write", split=split) for n in range(3)]

    async def evaluate(self, state, tools):
        Path("evaluating").touch()
        {end}
        return self.score(quality=1.0)
"""


def odd(end: str) -> tuple[object, ...]:
    Path("odd").mkdir()
    Path("odd/task.py").write_text(ODD.replace("{end}", end))
    return ("run", *FAKE, "--task", "odd", "--task-path", ".", "--run-dir", "run")


@pytest.mark.usefixtures("cli")
def test_a_score_that_never_comes_is_given_up_at_once() -> None:
    command = [sys.executable, "-m", "orchestry", *map(str, odd("await asyncio.sleep(3600)"))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not Path("evaluating").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130, err
    assert "orchestry resume run" in out + err


def test_an_episode_that_its_task_cancels_is_missed(cli: CommandLine) -> None:
    result = cli(*odd("asyncio.current_task().cancel(); await asyncio.sleep(1)"))
    assert result.code == 1, result
    assert "ended without a result" in result.last


@pytest.mark.slow
@pytest.mark.usefixtures("cli")
def test_a_second_interrupt_gives_up_paid_calls_too() -> None:
    over = threading.Event()

    def hang(number: int, body: dict[str, Any]) -> Reply:
        over.wait(60)
        return 200, chat("late")

    with served(hang) as url:
        paid = ("--provider", "openai", "--model", "gpt-4o-mini", "--run-dir", "run")
        process = start(*paid, OPENAI_BASE_URL=f"{url}/v1", OPENAI_API_KEY="k-of-a-test")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = next(line for line in process.stderr if "calls in flight may finish" in line)
        assert "press Ctrl-C again" in said
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        over.set()
    assert process.returncode == 130, err
    assert any(isinstance(event, Lost) for event in read(Path("run/journal.jsonl")))
    assert "Traceback" not in err
    assert "never retrieved" not in err


def test_one_process_a_run_directory(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "run").code == 0
    with Store(Path("run")):
        cli("resume", "run").failed(1, "being written by another process")
        cli("run", *FAKE, "--run-dir", "run").failed(2, "holds a run")
    assert cli("resume", "run").code == 0


def test_a_finished_run_shows_its_numbers_and_no_empty_bar(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "run").code == 0
    again = cli("resume", "run")
    assert again.code == 0
    assert "3 episodes done before" in again.err
    assert "reward -" not in again.err
    assert "3 of 3" in again.out


def test_the_budget_stops_with_code_3_and_a_higher_one_goes_on(cli: CommandLine) -> None:
    args = (*FAKE, *PRICED, "--run-dir", "run", "--json", "--show-best")
    stopped = cli("run", *args, "--budget", 0.03, "--set", "search.episodes_in_flight=1")
    assert stopped.code == 3
    found = json.loads(stopped.out)
    assert found["stopped"] == "budget"
    assert found["cost_usd"] <= 0.03
    again = cli("resume", "run", "--json")
    assert again.code == 3
    assert json.loads(again.out)["cost_usd"] == found["cost_usd"]
    done = cli("resume", "run", "--budget", 5, "--json")
    assert (done.code, json.loads(done.out)["episodes"]) == (0, 3)
    more = cli("resume", "run", "--episodes", 4, "--json")
    assert (more.code, json.loads(more.out)["episodes"]) == (0, 4)


@pytest.mark.parametrize("args", [("--episodes", 0), ("--budget", -1), ("--budget", "nan")])
def test_bad_changes_are_refused(cli: CommandLine, args: tuple[object, ...]) -> None:
    assert cli("run", *FAKE, "--run-dir", "run").code == 0
    before = Path("run/config.yaml").read_text()
    cli("resume", "run", *args).failed(2, "config key")
    assert Path("run/config.yaml").read_text() == before


def test_at_the_budget_one_number_is_named_and_it_is_enough(cli: CommandLine) -> None:
    """A first call dearer than twice the budget: only the ledger's sum helps."""
    dear = ("--set", "sampling.max_tokens=4000", *PRICED, "--budget", 0.001)
    stopped = cli("run", *FAKE, *dear, "--run-dir", "run")
    assert stopped.code == 3
    named = re.findall(r"--budget ([\d.]+)", stopped.out + stopped.err)
    assert len(named) == 1
    again = cli("resume", "run", "--budget", named[0], "--json")
    assert json.loads(again.out)["calls"] > 0
