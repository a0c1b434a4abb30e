"""`orchestry tasks generate` with a scripted model: what it prints, its codes and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import CommandLine
from tests.ext.writing.test_writing import offer

RIGHT = "```python\ndef shift_0(x, y):\n    return x * 3 + y if x > 2 else y\n```"
WEAK = "```python\ndef shift_0(x, y):\n    return 1\n```"


@pytest.fixture
def scripted(cli: CommandLine, tmp_path: Path) -> tuple[object, ...]:
    """A model that knows one problem; its second solver is wrong."""
    lines = [
        {"agent": "author", "text": json.dumps(offer(0))},
        {"agent": "solver 1", "text": RIGHT},
        {"agent": "solver 2", "text": WEAK},
    ]
    script = tmp_path / "script.jsonl"
    script.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return (
        *("tasks", "generate", "code_review", "--provider", "fake", "--into", tmp_path / "p.jsonl"),
        *("--set", f"provider.fake.script={script}"),
    )


def test_it_prints_what_was_kept_and_how_to_use_it(
    cli: CommandLine, scripted: tuple[object, ...], tmp_path: Path
) -> None:
    result = cli(*scripted, "--count", 1, "--verbose")
    assert result.code == 0, result
    assert "Kept 1 of 1 problems (1 attempts, 3 calls, $0.0000)." in result.out
    assert f"--set options.bank={tmp_path / 'p.jsonl'}" in result.out
    assert "kept 1 of 1 after 1 attempts" in result.err
    again = json.loads(cli(*scripted, "--count", 2, "--json").out)
    assert (again["kept"], again["attempts"]) == (1, 10)
    assert again["dropped"] == {"repeats a problem that was kept": 9}
    run = ("run", "--provider", "fake", "--episodes", 1, "--run-dir", tmp_path / "run")
    split = json.loads((tmp_path / "p.jsonl").read_text())["split"]
    played = cli(*run, "--set", f"options.bank={tmp_path / 'p.jsonl'}")
    assert (played.code == 0) == (split == "train"), played.err


def test_a_model_that_writes_nothing_usable_is_a_failure(cli: CommandLine, tmp_path: Path) -> None:
    asked = ("tasks", "generate", "code_review", "--provider", "fake", "--count", 1)
    result = cli(*asked, "--into", tmp_path / "p.jsonl")
    assert result.code == 1
    assert "5 dropped: the answer was no problem in the form asked for" in result.out
    assert not (tmp_path / "p.jsonl").exists()


def test_a_dry_run_makes_no_file(
    cli: CommandLine, scripted: tuple[object, ...], tmp_path: Path
) -> None:
    found = cli(*scripted, "--count", 3, "--dry-run", "--json", "--set", "prices.fake-1.input=1")
    assert found.code == 2  # a price has two parts
    priced = ("--set", "prices.fake-1={input: 1, output: 2}")
    told = json.loads(cli(*scripted, "--count", 3, "--dry-run", "--json", *priced).out)
    assert 0 < told["cost_usd"]["expected"] < told["cost_usd"]["max"]
    assert not list(tmp_path.glob("p.*"))
