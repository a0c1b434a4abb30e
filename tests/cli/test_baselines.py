"""`orchestry baselines`: what it plays, prints, refuses and costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import FAKE, TASKS, CommandLine

PLAIN = ("--provider", "fake", "--task", "words", "--task-path", TASKS)
PRICED = ("--set", "prices.fake-1.input=1", "--set", "prices.fake-1.output=5")


def test_no_note_of_one_baseline_is_counted_with_the_next(cli: CommandLine) -> None:
    result = cli("baselines", "run", "fixed", "concat", *PLAIN, "--episodes", 1, "--out", "out")
    assert result.code == 0
    assert result.err.count("sandbox level") == 2
    assert "times in all" not in result.err


def test_list_names_every_baseline(cli: CommandLine) -> None:
    names = [line.split()[0] for line in cli("baselines", "list").out.splitlines()]
    assert names == ["fixed", "best_of_n", "concat", "sequential", "discussion", "single"]


def test_all_are_played_and_shown_in_a_table(cli: CommandLine) -> None:
    found = cli("baselines", "run", "all", *PLAIN, "--samples", "2", "--out", "b")
    assert found.code == 0
    notes = ("reward: ", "dollars: ")
    rows = [line for line in found.out.splitlines() if line and not line.startswith(notes)]
    assert [row.split()[0] for row in rows[2:]] == [
        "fixed",
        "best_of_n",
        "concat",
        "sequential",
        "discussion",
        "single",
    ]
    assert all(len(line) <= 80 for line in found.out.splitlines())
    assert "pass@" not in found.out  # words has no word for solved


def test_json_is_one_object(cli: CommandLine) -> None:
    found = cli(
        "baselines", "run", "concat", "concat", *PLAIN, "--samples", "2", "--out", "b", "--json"
    )
    plain = json.loads(found.out)
    assert (plain["folder"], plain["split"], list(plain["baselines"])) == ("b", "test", ["concat"])
    one = plain["baselines"]["concat"]
    assert (one["problems"], one["trajectories"], one["calls_per_problem"]) == (5, 10, 6.0)
    assert set(one["reward"]) == {"mean", "low", "high"}


def test_baselines_of_a_run_take_its_task_model_and_seed(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--seed", "4", "--run-dir", "r").code == 0
    assert cli("baselines", "run", "concat", "--of", "r", "--samples", "2").code == 0
    folder = Path("r/baselines/concat--test--samples-2")
    assert "seed: 4" in (folder / "config.yaml").read_text()
    assert len((folder / "episodes.jsonl").read_text().splitlines()) == 5


def test_what_a_run_decides_is_no_flag(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "r").code == 0
    clash = cli("baselines", "run", "concat", "--of", "r", "--task", "tldr", "--seed", "3")
    clash.failed(2, "leave out --task, --seed")
    cli("baselines", "run", "concat", "--of", "r", "--seed", "0").failed(2, "leave out --seed")
    other = cli("baselines", "run", "concat", "--of", "r", "--set", "seed=3")
    other.failed(2, "that run, which has seed=0, but 3 was given")
    cli("baselines", "run", "concat", "--of", "r", "--episodes", "0").failed(2, "give 1 or more")
    assert cli("baselines", "run", "concat", "--of", "r", "--out", "o").code == 2
    cli("baselines", "run", "concat", "--of", "nowhere").failed(2, "nowhere does not exist")
    assert not Path("r/baselines").exists()


def test_no_name_and_a_wrong_one_cost_nothing(cli: CommandLine) -> None:
    nothing = cli("baselines", "run", *PLAIN)
    assert nothing.code == 2
    assert "name baselines, or all: fixed, best_of_n" in nothing.err
    cli("baselines", "run", "concatt", *PLAIN, "--out", "b").failed(2, "'concatt'", "concat")
    assert cli("baselines", "run", "concat", *PLAIN, "--samples", "0").code == 2
    assert list(Path().iterdir()) == []
    Path("file").touch()
    taken = cli("baselines", "run", "concat", *PLAIN, "--out", "file")
    taken.failed(2, "file is not a directory: choose another --out")


@pytest.mark.slow
def test_a_dry_run_tells_the_calls_that_are_then_made(cli: CommandLine) -> None:
    names = ("best_of_n", "discussion")
    args = ("baselines", "run", *names, *PLAIN, *PRICED, "--samples", "2", "--episodes", "3")
    dry = json.loads(cli(*args, "--dry-run", "--json").out)
    assert list(Path().iterdir()) == []
    real = json.loads(cli(*args, "--out", "b", "--json").out)["baselines"]
    assert {name: one["calls"] for name, one in dry.items()} == {
        name: one["calls"] for name, one in real.items()
    }
    assert all(one["cost_usd"]["max"] >= real[name]["usd"] > 0 for name, one in dry.items())
    few = ("baselines", "run", "concat", *PLAIN, "--samples", "2", "--episodes", "3", "--dry-run")
    assert "concat      18 calls" in cli(*few).out


def test_a_dry_run_has_no_noise_in_its_figures_last_digits(cli: CommandLine) -> None:
    dry = cli("baselines", "run", "fixed", *PLAIN, "--samples", 5, "--dry-run", "--json")
    (row,) = json.loads(dry.out)["fixed"]["usage"]
    assert row["calls"] == 25


def test_the_budget_ends_all_of_them_with_code_3(cli: CommandLine) -> None:
    args = ("baselines", "run", "all", *PLAIN, *PRICED, "--samples", "2", "--out", "b")
    found = cli(*args, "--budget", "0.012")
    assert found.code == 3
    assert "fixed has played 1 of 5 problems, best_of_n, concat" in found.err
    assert "the same command with a larger --budget continues" in found.err
    assert len(list(Path("b").iterdir())) < 5


def test_solved_problems_are_told_as_pass_at_k(cli: CommandLine) -> None:
    script = Path("script.jsonl")
    wrong = {"agent": "*", "text": "```python\ndef f():\n    pass\n```"}
    script.write_text(json.dumps(wrong) + "\n")
    task = ("--provider", "fake", "--task", "code_collaboration")
    names = ["sequential", "discussion"]
    found = cli(
        "baselines",
        "run",
        *names,
        *task,
        "--set",
        f"provider.fake.script={script}",
        "--samples",
        "10",
        "--episodes",
        "2",
        "--out",
        "b",
    )
    assert found.code == 0, found
    lines = found.out.splitlines()
    heading = next(place for place, line in enumerate(lines) if "pass@" in line)
    named = [word for k in (1, 3, 5, 10) for word in (f"pass@{k}", "95", "%")]
    assert lines[heading].split() == named
    assert [line.split()[0] for line in lines[heading + 1 : heading + 3]] == names
    assert max(map(len, lines)) <= 80
