"""What the end of a run shows: credits, and nothing that steers a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import orchestry
from orchestry.report.text import counted
from tests.cli.support import FAKE, CommandLine


def test_what_a_model_wrote_does_not_steer_the_terminal(cli: CommandLine, tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": "\x1b[2Jwords\x07 \u202eon\u200b"}) + "\n")
    scripted = ("--set", f"provider.fake.script={script}", "--run-dir", tmp_path / "run")
    done = cli("run", *FAKE, *scripted, "--show-best")
    assert done.code == 0
    assert "[2Jwords" in done.out
    assert not {"\x1b", "\x07", "\u202e", "\u200b"} & set(done.out)


def test_the_best_trajectory_comes_with_the_credit_of_each_agent(
    cli: CommandLine, tmp_path: Path
) -> None:
    done = cli("run", *FAKE, "--run-dir", tmp_path / "run", "--show-best")
    best = orchestry.load_run(tmp_path / "run").best
    assert best is not None
    credits = [credit for credit in best.credits if credit.leaf == best.best]
    assert [credit.agent for credit in credits] == ["writer", "reviewer", "refactorer"]
    for credit in credits:
        assert f"{credit.agent}  {credit.credit:+.3f}  [{credit.low:+.3f}" in done.out


def test_one_is_one() -> None:
    assert [counted(number, "behaviour") for number in (0, 1, 2)] == [
        *("0 behaviours", "1 behaviour", "2 behaviours")
    ]
