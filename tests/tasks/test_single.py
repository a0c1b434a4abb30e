"""One model alone, as each bundled task asks it and scores it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from orchestry import Problem, Score, extract_code, join_code
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS, Limits, Tools
from orchestry.sandbox import open_sandbox
from orchestry.task.arrangements import ALONE, arranged, heading
from orchestry.task.base import BaseTask
from orchestry.task.guard import evaluated
from orchestry.task.registry import load_task

LAST = ("house_style", "research")
"""Tasks whose last agent hands over what one model alone would."""
PARTS = ("arxiv", "story", "tldr")
"""Tasks of which several texts are the work."""
FIRST = ("code_review", "documentation", "repair")
TASKS = ("code_collaboration", *LAST, *PARTS, *FIRST)
HALVES = ("another programmer", "do not define", "write only", "draft", "review")
FEW = 2
"""Gold answers of each task."""


def alone(name: str, baseline: str = "single", **options: Any) -> BaseTask[Any]:
    config = RunConfig(task=name, baseline=baseline, options=options)
    return arranged(config, load_task(name, options=options))[1]


def scored(task: BaseTask[Any], answers: Mapping[Problem, str]) -> list[Score]:
    async def score() -> list[Score]:
        async with open_sandbox(Limits()) as sandbox:
            tools = Tools(sandbox=sandbox)
            ends = {p: task.step(task.reset(p, 0), {ALONE: text}) for p, text in answers.items()}
            return [await evaluated(task, p, end, tools) for p, end in ends.items()]

    return asyncio.run(score())


def gold_of(name: str, problem: Problem) -> str | None:
    """What one model alone would have to answer."""
    gold = load_task(name).gold(problem)
    if gold is None:
        return None
    texts = [*gold.values()]
    if name in PARTS:
        return "\n".join(f"{heading(role)}\n{text}" for role, text in gold.items())
    if name == "code_collaboration":
        names = ("aux", problem.data["entry_point"])
        whole = join_code([extract_code(text, of) for text, of in zip(texts, names, strict=True)])
        return f"```python\n{whole}\n```"
    return texts[-1] if name in LAST else texts[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_one_model_can_earn_the_whole_reward_alone(name: str) -> None:
    task = alone(name)
    problems = [problem for split in SPLITS for problem in task.problems(split)]
    golds = {problem: gold for problem in problems if (gold := gold_of(name, problem))}
    found = scored(task, dict([*golds.items()][:FEW]))
    assert [score.total for score in found] == pytest.approx([1.0] * FEW)
    for score in found:
        assert {part.name for part in score.parts} == set(task.part_weights)
        assert task.solved is None or task.solved in score.tags
    assert scored(task, {problems[0]: ""})[0].total == 0.0


@pytest.mark.parametrize("name", TASKS)
def test_one_model_is_told_of_no_team(name: str) -> None:
    task = alone(name)
    problem = task.problems("train")[0]
    asked = task.observe(task.reset(problem, 0), ALONE)
    if name != "research":  # whose problem is a question about notes
        assert asked.startswith(problem.prompt[:60]) or name == "documentation"
    said = f"{task.agents[0].system_prompt}\n{asked}".lower()
    assert not [words for words in HALVES if words in said]


def test_code_that_needs_no_helper_is_scored_by_the_same_tests() -> None:
    task = alone("code_collaboration")
    problem = task.problems("train")[0]
    name = problem.data["entry_point"]
    wrong = f"```python\ndef {name}(n, limit):\n    return 11\n```"
    broken = f"```python\ndef {name}(n, limit)\n    return 11\n```"
    first, second, other = (
        scored(task, {problem: text})[0] for text in (wrong, broken, "I can't do that.")
    )
    values = [{part.name: part.value for part in one.parts} for one in (first, second, other)]
    assert (values[0]["structure"], values[0]["syntax"]) == (1.0, 1.0)
    assert values[0]["tests"] < 1.0
    assert values[1:] == [{"structure": 0.0, "syntax": 0.0, "tests": 0.0}] * 2
    assert "First failure" in first.feedback
    assert (second.tags, other.tags) == (("no_main", "syntax_error"), ("no_main",))


def test_fixed_is_asked_for_all_of_the_program_and_for_no_half_of_it() -> None:
    task = alone("code_collaboration", "fixed", reviewer=True)
    problem = task.problems("train")[0]
    said = f"{task.agents[0].system_prompt}\n{task.observe(task.reset(problem, 0), ALONE)}"
    assert not [words for words in HALVES[:3] if words in said.lower()]
    assert all(problem.data[name] in said for name in ("aux_goal", "aux_signature", "signature"))
    assert said.endswith("## helper\n...\n## main\n...\n## reviewer\n...")


def test_fixed_is_shown_no_empty_draft() -> None:
    for name in ("code_review", "house_style", "research", "documentation", "story"):
        task = alone(name, "fixed")
        asked = task.observe(task.reset(task.problems("train")[0], 0), ALONE)
        assert not [words for words in ("# no code", "(no ", "Draft:") if words in asked]


def test_a_game_of_several_players_says_why_nobody_plays_it_alone() -> None:
    with pytest.raises(ConfigError, match=r"single: .* several players, .* play baseline fixed"):
        alone("bucket_brigade")


def test_without_weights_of_its_own_one_model_alone_is_refused_before_it_is_asked() -> None:
    weights = {"structure": 0.0, "syntax": 0.0, "tests": 0.0, "cooperation": 1.0}
    config = RunConfig(task="code_collaboration", baseline="single", weights=weights)
    task = load_task("code_collaboration", weights=weights)
    with pytest.raises(ConfigError, match=r"scored without cooperation, .* give one of them some"):
        arranged(config, task)
