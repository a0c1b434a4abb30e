"""The live view: a first line at once, then who answers how fast, how far it is, and the ETA."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orchestry
from orchestry.cli import watch
from orchestry.engine.session import Silent
from tests.cli.support import FAKE, TASKS, CommandLine

CONFIG = {"task": "words", "task_path": [str(TASKS)], "provider": {"name": "fake"}, "episodes": 2}
SLOW = ("--set", "provider.fake.latency_s=0.2", "--set", "search.episodes_in_flight=1")


@pytest.mark.slow
def test_a_file_gets_a_first_note_and_lines_as_the_run_goes_on(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.05)
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    lines = cli("run", *FAKE, *SLOW, "--run-dir", "run").err.splitlines()
    assert lines[0] == "· reading the config, loading task and model"
    form = r"· (\d)/3  (reward .* best .*  )?\$0.000/5  eta [^$]+ s  \w+ \d+ tok/s  \d+ open"
    found = [match for line in lines if (match := re.fullmatch(form, line))]
    assert len(found) > 3, lines
    done = [int(match[1]) for match in found]
    assert done == sorted(done)
    assert done[-1] >= 1
    assert "reward" in found[-1][0]


def test_python_shows_the_same_unless_told_who_watches(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = orchestry.RunConfig.model_validate(CONFIG)
    run = orchestry.train(config, tmp_path / "shown")
    assert "reading the config" in capsys.readouterr().err
    orchestry.evaluate(run, "test")
    assert re.search(r"words on fake/\S+, \d problems? -> ", capsys.readouterr().err)
    orchestry.train(config, tmp_path / "none", None)
    orchestry.train(config, tmp_path / "silent", observer=Silent())
    assert capsys.readouterr().err == ""


def test_the_eta_falls_as_calls_are_answered(tmp_path: Path) -> None:
    from orchestry.engine.run import prepare
    from orchestry.models.pulse import Pulse

    plan = prepare(orchestry.RunConfig.model_validate(CONFIG))

    class Gateway:
        pulse = Pulse()

    plan.backend.gateway = Gateway()  # type: ignore[assignment]
    now = [0.0]
    meter = watch.Meter(plan, 0, clock=lambda: now[0])
    assert meter._eta() == "-"
    now[0], Gateway.pulse.answers, Gateway.pulse.tokens = 10.0, plan.calls // 2, 500
    assert meter._eta() == "30 s"  # a quarter of two episodes' calls in ten seconds
    assert meter._speed() == 50.0


def test_a_reward_that_the_task_can_not_compute_is_not_shown(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--task", "research", "--run-dir", "run").code == 0
    found = cli("ask", "run", "What is a ledger?", "--verbose")
    assert "no reward, 3 calls" in found.err
    assert "reward 0" not in found.err


def test_the_first_line_comes_before_anything_slow(tmp_path: Path) -> None:
    """Nothing of a backend or a model is loaded when it is written."""
    code = (
        "import sys\n"
        "from orchestry.cli.watch import watching\n"
        "with watching(verbose=False):\n"
        "    print(sorted({'torch', 'anthropic', 'openai', 'xllamacpp'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done
    assert done.stderr.startswith("· reading the config")
