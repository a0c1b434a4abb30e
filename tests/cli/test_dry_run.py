"""`orchestry run --dry-run`: what stands on which stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import FAKE, CommandLine

PRICED = ("--set", "prices.fake-1.input=1", "--set", "prices.fake-1.output=5")
UNTIL = Path(__file__).parents[2] / "benchmarks" / "server" / "tasks"


def test_what_auto_chose_is_said_on_stderr(cli: CommandLine) -> None:
    result = cli("run", "--dry-run", "--json", "--episodes", 2)
    assert json.loads(result.out)["provider"] == "embedded"
    assert "no ANTHROPIC_API_KEY: using the embedded" in result.err


def test_a_named_provider_needs_no_word(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--dry-run").err == ""


def test_the_text_says_what_makes_the_maximum_one(cli: CommandLine) -> None:
    priced = (*PRICED, "--dry-run")
    until = ("--task", "until", "--task-path", UNTIL)
    assert "every answer at its longest" in cli("run", *FAKE, *priced).out
    assert "The maximum is the budget" in cli("run", *FAKE, *priced, "--budget", 0.01).out
    assert "The maximum is the budget" in cli("run", *FAKE, *until, *priced).out
    free = cli("run", *FAKE, *until, *priced, "--set", "budget.usd=null").out
    assert "hard maximum none" in free
    assert "no maximum without a budget" in free
    shown = cli("run", *FAKE, *until, *priced, "--set", "budget.usd=null", "--json").out
    assert json.loads(shown)["cost_usd"]["max"] is None


def test_learning_is_shown_by_purpose_and_has_no_maximum_without_a_budget(cli: CommandLine) -> None:
    learns = ("--set", "behaviors.enabled=true", "--set", "behaviors.every=1")
    priced = (*PRICED, "--dry-run")
    shown = cli("run", *FAKE, *learns, *priced, "--set", "budget.usd=null").out
    assert "trial" in shown
    assert "distil" in shown
    assert "no maximum without a budget: the run learns" in " ".join(shown.split())


def test_earlier_runs_are_found_where_runs_lie_and_beside_this_one(cli: CommandLine) -> None:
    dry = ("run", *FAKE, "--dry-run", *PRICED)
    assert "No earlier run of fake-1" in cli(*dry).out
    cli("run", *FAKE)
    cli("run", *FAKE, "--run-dir", "own/first")
    assert "from 1 earlier run of the model" in " ".join(cli(*dry).out.split())
    beside = cli(*dry, "--run-dir", "own/second", "--json").out
    assert json.loads(beside)["earlier_runs"] == 2


def test_figures_have_no_noise_in_their_last_digits(cli: CommandLine) -> None:
    shown = cli("run", *FAKE, "--dry-run", "--json", "--episodes", 7).out
    for row in json.loads(shown)["usage"]:
        for key in ("calls", "input_tokens", "output_tokens"):
            assert row[key] == round(row[key], 2)
    assert "words, 1 episode on" in cli("run", *FAKE, "--dry-run", "--episodes", 1).out


def test_a_free_model_has_no_wide_range_and_no_maximum_to_explain(cli: CommandLine) -> None:
    shown = " ".join(cli("run", *FAKE, "--dry-run").out.split())
    assert shown.endswith("hard maximum 0.0000 Every model that it asks is free.")


def test_there_is_a_row_for_each_of_several_providers(cli: CommandLine) -> None:
    other = ("--set", "agents.writer.provider=anthropic", "--dry-run")
    rows = json.loads(cli("run", *FAKE, *other, "--json").out)["by_provider"]
    (claude,) = (row["model"] for row in rows if row["provider"] == "anthropic")
    shown = " ".join(cli("run", *FAKE, *other).out.split())
    assert [row["provider"] for row in rows] == ["anthropic", "fake"]
    assert shown.count(f"all anthropic/{claude}") == shown.count("all fake/fake-1") == 1
    assert "all fake/fake-1" not in " ".join(cli("run", *FAKE, "--dry-run").out.split())


def test_the_text_names_a_budget_that_is_enough(cli: CommandLine) -> None:
    priced = ("--set", "prices.fake-1.input=500", "--set", "prices.fake-1.output=900", "--dry-run")
    dry = ("run", *FAKE, "--task", "until", "--task-path", UNTIL, *priced)
    enough = json.loads(cli(*dry, "--json").out)["enough_usd"]
    said = f"--budget {enough:.2f} is enough in 95 of 100 cases"
    assert said in " ".join(cli(*dry, "--set", "budget.usd=null").out.split())
    assert said in " ".join(cli(*dry, "--budget", enough / 2).out.split())
    capped = cli(*dry, "--budget", enough)
    assert "is enough" not in capped.out
    assert json.loads(cli(*dry, "--budget", enough, "--json").out)["cost_usd"]["p95"] < enough


@pytest.mark.slow
def test_a_budget_that_is_too_small_does_not_promise_what_a_larger_one_learns(
    cli: CommandLine,
) -> None:
    learns = ("--episodes", "20", "--set", "behaviors.enabled=true")
    dry = ("run", *FAKE, *learns, *PRICED, "--dry-run")
    small, large = (" ".join(cli(*dry, "--budget", usd).out.split()) for usd in (0.001, 1000))
    assert "is enough in 95 of 100 cases." in small
    assert "Learning, with that larger budget: " in small
    assert "Learning: " in large
