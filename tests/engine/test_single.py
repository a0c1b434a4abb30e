"""Baseline `single` over both backends: what goes over the wire, what learns, and what compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry import extract_code, join_code
from orchestry.core.config import RunConfig, resolve
from orchestry.core.types import Problem
from orchestry.engine.evaluate import Baselines, evaluate
from orchestry.report.comparison import compared
from orchestry.report.criteria import criteria
from orchestry.report.headline import headline
from orchestry.report.held_out import baselines, of_equal_reward
from orchestry.report.lessons import lessons
from orchestry.report.measures import gain, measure
from orchestry.report.runs import read_experiments
from orchestry.report.tables import beside
from orchestry.store.run import Run
from orchestry.task.registry import load_task
from tests.cli.support import chat, served

TASK = "code_collaboration"


def gold_of(problem: Problem) -> str:
    """The whole function."""
    gold = load_task(TASK).gold(problem)
    assert gold is not None
    names = ("aux", problem.data["entry_point"])
    codes = [extract_code(text, name) for text, name in zip(gold.values(), names, strict=True)]
    return f"```python\n{join_code(codes)}\n```"


def config(url: str, *sets: str) -> RunConfig:
    server = ("provider.name=openai", "provider.model=m", f"provider.base_url={url}/v1")
    prices = ("prices.m.input=1", "prices.m.output=5", "judge.enabled=false")
    return resolve([], [f"task={TASK}", *server, *prices, "behaviors.enabled=false", *sets])


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run whose team writes no code, the same model alone, which solves all; and the requests."""
    folder, bodies = tmp_path_factory.mktemp("single") / "run", list[dict[str, Any]]()
    problems = {p.prompt: p for split in ("train", "test") for p in load_task(TASK).problems(split)}

    def answer(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
        bodies.append(body)
        system, asked = (one["content"] for one in body["messages"][:2])
        if "helper" in system or "aux" in asked:
            return 200, chat("I can't.")
        problem = next(p for prompt, p in problems.items() if asked.startswith(prompt))
        return 200, chat(gold_of(problem))

    with served(answer) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "k")
        patch.chdir(folder.parent)
        plain = config(url, "episodes=1", "search.k_samples=2")
        orchestry.train(plain, folder)
        evaluate(folder, "test", samples=2, episodes=6)
        single = Baselines(plain, ("single",), "test", 2, 6)
        list(single.play(folder / "baselines"))
    return folder, bodies


def test_one_model_is_sent_the_problem_and_nothing_of_a_team(
    played: tuple[Path, list[dict[str, Any]]],
) -> None:
    alone = [json.dumps(body) for body in played[1] if "Write the function" in json.dumps(body)]
    assert len(alone) == 6 * 2
    assert not [body for body in alone if "aux" in body or "helper" in body]


def test_a_team_and_a_trained_single_model_are_compared_by_problems_solved(
    played: tuple[Path, list[dict[str, Any]]],
) -> None:
    places = ("evaluations/test--samples-2", "baselines/single--test--samples-2")
    first, second = (read_experiments([played[0] / place])[0] for place in places)
    figures = {one.name: one for one in compared(first, second).figures}
    assert "reward" not in figures
    assert figures["pass rate"].first == 0.0
    assert figures["pass rate"].second == 1.0


def test_a_lead_over_one_model_is_in_problems_solved(
    played: tuple[Path, list[dict[str, Any]]],
) -> None:
    (experiment,) = read_experiments([played[0]])
    (single,) = baselines(experiment)
    assert single.measures.reward.mean == single.measures.pass_at[1].mean == 1.0
    team = Run(played[0] / "evaluations" / "test--samples-2")
    assert measure(team, single.run).name == "pass rate"
    assert measure(team, team).name == measure(single.run, single.run).name == "reward"
    lead = gain(team, single.run)
    assert lead is not None
    assert (lead.mean, lead.low, lead.high) == (-1.0, -1.0, -1.0)
    assert of_equal_reward(experiment) == []
    table = beside([experiment])
    assert table is not None
    assert "-1.000 [-1.000, -1.000] in pass rate" in table
    assert "cooperation rate" not in table  # of which one model alone has none
    (said,) = [text for text in headline(experiment) if "single" in text]
    assert "earns 0.000 (pass rate) on test problems, single 1.000" in said
    assert any(
        "single, 2 samples each (-1.000 in pass rate)" in text for text in lessons(experiment)
    )
    (ahead,) = [one for one in criteria(experiment) if one.name == "ahead of all baselines"]
    assert (ahead.verdict, "[-1.000, -1.000] in pass rate" in ahead.why) == ("not met", True)
