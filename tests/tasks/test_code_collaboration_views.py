"""Each agent sees its own part and history, and the other's code only where it acts after it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestry import BaseTask, Tools
from tests.tasks.cubes import CUBES, HEAD, PROBLEMS, TASK, block, task

SAID = {"helper": block("def aux(n):\n    return 111"), "main": block(f"{HEAD}return 222")}


async def play(team: BaseTask[Any], tools: Tools, turns: int) -> list[tuple[str, str]]:
    """Who saw what, in order, where each says the same every time, as a rollout plays it."""
    seen, state = list[tuple[str, str]](), team.reset(CUBES, 0)
    while actors := team.to_act(state):
        seen += [(role, team.observe(state, role)) for role in actors]
        state = team.step(state, {role: SAID[role] for role in actors})
        state = team.told(state, await team.evaluate(state, tools))
    assert len(seen) == 2 * turns
    return seen


@pytest.mark.parametrize("feedback", ["none", "levels", "failure"])
async def test_agents_at_once_never_see_each_others_code(tools: Tools, feedback: str) -> None:
    seen = await play(task(turns=3, feedback=feedback), tools, 3)
    assert [role for role, _ in seen] == ["helper", "main"] * 3
    assert [text.count("return 111") for _, text in seen] == [0, 0, 1, 0, 2, 0]
    assert [text.count("return 222") for _, text in seen] == [0, 0, 0, 1, 0, 2]
    levels = [text.count("Result of both: structure 1.00, syntax 1.00") for _, text in seen]
    assert levels == ([0] * 6 if feedback == "none" else [0, 0, 1, 1, 2, 2])
    failed = "sum_of_cubes([]) wrongly returned 222"
    failures = [text.count(failed) for _, text in seen]
    assert failures == ([0, 0, 1, 1, 2, 2] if feedback == "failure" else [0] * 6)


async def test_main_sees_the_helpers_code_where_it_acts_after_it(tools: Tools) -> None:
    seen = await play(task(acting="sequential", turns=2), tools, 2)
    assert [role for role, _ in seen] == ["helper", "main", "helper", "main"]
    assert [text.count("return 111") for _, text in seen] == [0, 1, 1, 1]
    assert [text.count("return 222") for _, text in seen] == [0, 0, 0, 1]
    assert [text.count("Result of both") for _, text in seen] == [0, 0, 1, 1]


def test_each_sees_its_part_of_the_problem() -> None:
    for problem in PROBLEMS.values():
        state = TASK.reset(problem, 0)
        helper, main = (TASK.observe(state, spec.role) for spec in TASK.agents)
        assert problem.prompt in helper
        assert problem.prompt in main
        assert problem.data["aux_goal"] in helper
        assert problem.data["main_goal"] in main
        assert all(problem.data["aux_signature"] in text for text in (helper, main))
        assert problem.data["signature"] in main
        assert len(main) < 2400  # for a small context
