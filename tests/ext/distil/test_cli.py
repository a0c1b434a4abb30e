"""`orchestry distil`, as a user calls it; tests/ext/distil/test_distil.py tests what it learns."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.backends.letters import TASK, settings, write_task
from tests.cli.support import FAKE, CommandLine


@pytest.mark.slow
def test_a_run_is_distilled_and_trained_on(cli: CommandLine, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_folder

    model, threads = str(tiny_folder(tmp_path / "tiny")), torch.get_num_threads()
    tasks = write_task(tmp_path / "tasks", TASK)
    plain = settings(model, tasks, "episodes=4")
    sets = [arg for one in plain for arg in ("--set", one)]
    assert cli("run", *sets, "--run-dir", "run").code == 0
    small = ("--set", "learn.rank=4", "--set", "learn.alpha=8", "--set", "learn.threads=1")
    large = ("--set", "learn.rank=16", "--set", "learn.alpha=32", "--run-dir", "other")
    dry = cli("distil", "run", *small, "--top", "0.5", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    count = re.match(r"left: (\d+) examples, \d+ tokens to learn", dry.out)
    assert count
    found = cli("distil", "run", *small, "--top", "0.5", "--into", "out", "--json")
    assert found.code == 0
    told = json.loads(found.out)
    assert told["checkpoint"] == "out/checkpoints/000001"
    assert told["agents"]["left"] == {"examples": int(count[1]), "held_out_loss": None}
    assert "epoch 4 of 4: loss " in found.err
    cli("distil", "run", "--into", "out").failed(2, "out is not empty: choose another folder")
    cli("resume", "out").failed(2, "out is a distilled team")
    assert cli("evaluate", "out", "--episodes", 2).code == 0
    learned = ("--set", f"learn.from={told['checkpoint']}")
    assert cli("run", *sets, *learned, "--run-dir", "next").code == 0
    assert cli("export", "out", "--json").code == 0
    again = cli("distil", "run", *small, "--epochs", 1, "--into", "plain")
    (told_command,) = re.findall(r"`orchestry (run .*)`", again.out)
    assert cli(*shlex.split(told_command), "--episodes", 2, "--run-dir", "on").code == 0
    other = cli("run", *sets, "--set", "learn.from=plain/checkpoints/000001", *large)
    other.failed(2, "than learn.rank=16, learn.alpha=32: --set learn.rank=4 --set learn.alpha=8")
    assert not Path("other").exists()
    assert "0 episodes, 1 update" in cli("report", "out").out
    assert cli("ask", "out", "say 1").code == 0
    cli("distil", "out").failed(2, "out has no finished trajectory")
    torch.set_num_threads(threads)


def test_wrong_arguments_are_named(cli: CommandLine) -> None:
    cli("distil").failed(
        2, "there is nothing to learn from: name runs, a --teacher, or --gold with --task"
    )
    cli("distil", "--gold").failed(2, "--gold without a run needs the task")
    cli("distil", "nowhere").failed(2, "nowhere does not exist")
    cli("distil", "--gold", "--task", "code_reviw").failed(2, "did you mean 'code_review'")
    wrong = cli("distil", "--by", "luck", "nowhere")
    assert (wrong.code, wrong.out) == (2, "")
    assert cli("run", *FAKE, "--set", "split=dev", "--run-dir", "dev").code == 0
    cli("distil", "dev", "--trust").failed(2, "dev was played on dev, which measures")
