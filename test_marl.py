"""What Orchestry promises, as a checklist: `python test_marl.py` prints it, pytest collects it.

Each item is a real run through the command line. Items on the embedded model fetch its weights at
their first use.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent


def orchestry(*args: str, cwd: Path, ok: int = 0, **environ: str) -> str:
    """Runs the command line in a folder; returns stdout."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-m", "orchestry", *args],
        cwd=cwd,
        env={**env, **environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == ok, f"exit code {done.returncode}:\n{done.stderr}"
    return done.stdout


def test_a_key_is_not_needed(folder: Path) -> None:
    """Without a key it searches code_review with the embedded model"""
    text = orchestry(
        *("run", "--episodes", "1", "--json", "--run-dir", "run", "--k-samples", "2"),
        *("--beam-width", "1", "--set", "sampling.max_tokens=128"),
        cwd=folder,
    )
    summary = json.loads(text)
    assert summary["provider"] == "embedded"
    assert summary["episodes"] == 1
    assert summary["calls"] + summary["cache_hits"] == 6
    assert 0 <= summary["mean_reward"] <= 1
    assert summary["cost_usd"] == 0


def test_a_dry_run_needs_no_network(folder: Path) -> None:
    """A dry run tells calls, tokens and dollars, and spends nothing"""
    command = ("run", "--dry-run", "--episodes", "4", "--provider", "anthropic", "--json")
    found = json.loads(orchestry(*command, cwd=folder))
    usd = found["cost_usd"]
    assert 0 < usd["p5"] <= usd["expected"] <= usd["p95"] <= usd["max"] <= 5
    assert found["calls"] > 0
    assert not (folder / "runs").exists()


def test_the_readme_example_runs(folder: Path) -> None:
    """The README's own task is checked and searched"""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("tasks/slogan/task.py", "tasks/slogan/problems.jsonl"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example(readme, name), encoding="utf-8")
    assert len(example(readme, "tasks/slogan/task.py").splitlines()) <= 40
    for line in example(readme, "commands").splitlines():
        extra = ("--provider", "fake") if " run " in line else ()
        orchestry(*line.split()[1:], *extra, cwd=folder)
    program = example(readme, "python").replace('"embedded"', '"fake"')
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_gold_answers_score_one(folder: Path) -> None:
    """Every gold answer of code_review passes its tests"""
    assert "gold" in orchestry("tasks", "check", "code_review", cwd=folder)


def test_the_budget_holds(folder: Path) -> None:
    """A run stops at its budget with its results, and goes on with a larger one"""
    write_toy(folder)
    priced = ("--set", "prices.fake-1.input=1", "--set", "prices.fake-1.output=5")
    command = ("run", "--task", "toy", "--provider", "fake", "--episodes", "8", "--json")
    narrow = ("--run-dir", "run", "--budget", "0.03", "--set", "search.episodes_in_flight=1")
    stopped = json.loads(orchestry(*command, *narrow, *priced, cwd=folder, ok=3))
    assert stopped["stopped"] == "budget"
    assert 0 < stopped["cost_usd"] <= 0.03
    done = json.loads(orchestry("resume", "run", "--budget", "5", "--json", cwd=folder))
    assert done["stopped"] == "done"
    assert done["episodes"] == 8


def test_a_killed_run_goes_on(folder: Path) -> None:
    """kill -9, then resume: the same episodes as an uninterrupted run"""
    write_toy(folder)
    command = ("run", "--task", "toy", "--provider", "fake", "--episodes", "6")
    slow = ("--set", "provider.fake.latency_s=0.1")
    orchestry(*command, *slow, "--run-dir", "whole", cwd=folder)
    args = [sys.executable, "-m", "orchestry", *command, *slow, "--run-dir", "killed"]
    process = subprocess.Popen(args, cwd=folder, stdout=-3, stderr=-3)
    journal = folder / "killed" / "journal.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and b"answered" in journal.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    orchestry("resume", "killed", cwd=folder)
    for name in ("episodes.jsonl", "metrics.jsonl", "rewards.csv"):
        assert (folder / "killed" / name).read_text() == (folder / "whole" / name).read_text()


def test_errors_name_the_fix(folder: Path) -> None:
    """A wrong name costs nothing and says what was meant"""
    args = [sys.executable, "-m", "orchestry", "run", "--task", "code_reviw"]
    done = subprocess.run(args, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'code_review'" in done.stderr
    assert "Traceback" not in done.stderr


def example(readme: str, name: str) -> str:
    """The fenced block of the README that follows its marker."""
    marker = f"<!-- example: {re.escape(name)} -->\n```\\w+\n(.*?)```"
    found = re.search(marker, readme, flags=re.DOTALL)
    assert found, f"README.md has no example {name}"
    return found[1]


def write_toy(folder: Path) -> None:
    """A task in the folder, made by the command that users have for it."""
    orchestry("tasks", "new", "toy", cwd=folder)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return tmp_path


def main() -> int:
    """Runs every item in an empty folder, printing a tick or what went wrong."""
    items: list[Callable[[Path], None]] = [
        item for name, item in globals().items() if name.startswith("test_")
    ]
    return checklist(items)


def checklist(items: Sequence[Callable[[Path], None]]) -> int:
    """1 if an item failed, else 0; an item that raises anything fails, and the next one runs."""
    failed = 0
    for item in items:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                item(Path(folder))
                mark = "ok  "
            except Exception as error:
                mark, failed = f"FAIL ({type(error).__name__}: {error})", failed + 1
        print(f"{mark}  {item.__doc__}  ({time.monotonic() - start:.1f} s)")  # noqa: T201
    print(f"{len(items) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
