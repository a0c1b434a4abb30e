"""Two or three helpers, and a reviewer: who acts when and sees what, and what cooperation is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from orchestry import BaseTask, Problem, Score, Tools
from orchestry.core.errors import ConfigError
from orchestry.task.check import check_task
from orchestry.task.generated import problems
from orchestry.task.registry import load_task
from tests.tasks.cubes import CUBE, CUBES, SUM, block, parts

USAGE = import_module("orchestry_tasks.code_collaboration.usage")
SIZE = 8


def team(helpers: int, **options: Any) -> BaseTask[Any]:
    own = {"helpers": helpers, "bank": "generated", "size": SIZE, **options}
    return load_task("code_collaboration", options=own)


async def play(
    task: BaseTask[Any], problem: Problem, tools: Tools, **codes: str
) -> tuple[list[tuple[str, str]], Score]:
    """Who saw what, in order, and the final score; `codes` replace those of the gold."""
    said = {**(task.gold(problem) or {}), **{role: block(code) for role, code in codes.items()}}
    seen, state = list[tuple[str, str]](), task.reset(problem, 0)
    while actors := task.to_act(state):
        seen += [(role, task.observe(state, role)) for role in actors]
        state = task.step(state, {role: said[role] for role in actors})
        state = task.told(state, await task.evaluate(state, tools))
    return seen, await task.evaluate(state, tools)


@pytest.mark.parametrize(("helpers", "acting"), [(2, "joint"), (3, "sequential")])
@pytest.mark.slow
async def test_gold_is_worth_one_and_every_helper_is_needed(
    tools: Tools, helpers: int, acting: str
) -> None:
    task = team(helpers, acting=acting)
    names = ["aux", "aux2", "aux3"][:helpers]
    roles = ["helper", "helper2", "helper3"][:helpers]
    for problem in task.problems("train")[:3]:
        data = problem.data
        _, whole = await play(task, problem, tools)
        assert parts(whole) == dict.fromkeys(task.weights, 1.0), problem.id
        assert {"solved", "cooperates"} <= set(whole.tags)
        for role, name in zip(roles, names, strict=True):
            stub = f"{data[f'{name}_signature']}\n    return None"
            _, score = await play(task, problem, tools, **{role: stub})
            assert parts(score)["cooperation"] == 0.0, (problem.id, name)
            assert "cooperates" not in score.tags
            own = f"{data[f'gold_{name}']}\n\n{data['gold_main']}".replace(name, "mine")
            _, score = await play(task, problem, tools, main=own)  # main does this part itself
            assert parts(score)["cooperation"] == 0.0, (problem.id, name)


@pytest.mark.slow
async def test_a_helper_can_not_replace_anothers_function(tools: Tools) -> None:
    task = team(2)
    problem = task.problems("train")[0]
    both = f"{problem.data['gold_aux']}\n\n{problem.data['gold_aux2']}"
    _, score = await play(task, problem, tools, helper=both)
    assert parts(score)["cooperation"] == 0.0
    assert "another helper puts something in the place of aux2" in score.feedback


def test_usage_is_read_for_each_helper() -> None:
    main = "def f(x):\n    if aux2(x):\n        return 2 * x\n    return [aux(n) for n in x]"
    first, second, third = (USAGE.usage_of(main, "f", name) for name in ("aux", "aux2", "aux3"))
    assert (first.used, first.scheme) == (True, "coordinator")
    assert (second.used, second.scheme) == (True, "strategy_filter")
    assert not third.calls
    assert USAGE.usage_of("def f(x):\n    aux2 = len\n    return aux2(x)", "f", "aux2").shadowed
    assert not USAGE.usage_of("def f(x):\n    aux = len\n    return aux2(x)", "f", "aux2").shadowed


async def test_a_reviewer_reads_all_code_and_main_writes_again(tools: Tools) -> None:
    task = load_task("code_collaboration", options={"reviewer": True, "turns": 2})
    assert [spec.role for spec in task.agents] == ["helper", "main", "reviewer"]
    said = {"helper": block(CUBE), "main": block(SUM), "reviewer": "Call aux for each number."}
    seen, state = list[tuple[str, str]](), task.reset(CUBES, 0)
    while actors := task.to_act(state):
        seen += [(role, task.observe(state, role)) for role in actors]
        state = task.step(state, {role: said[role] for role in actors})
        state = task.told(state, await task.evaluate(state, tools))
    assert [role for role, _ in seen] == ["helper", "main", "reviewer", "main"] * 2
    reviewed, again = seen[2][1], seen[3][1]
    assert CUBE in reviewed
    assert SUM in reviewed
    assert "Call aux for each number." in again
    assert CUBE not in again
    assert "A reviewer" not in seen[5][1]  # the next turn begins without
    results = [text.count("Result of both") for _, text in seen]
    assert results == [0, 0, 1, 1, 1, 2, 1, 3]
    assert (await task.evaluate(state, tools)).total == 1.0


@pytest.mark.slow
async def test_the_contract_holds_with_several(tools: Tools) -> None:
    task = team(2, size=4, reviewer=True)
    findings = await check_task(task, tools.sandbox, seeds=(0,))
    assert [finding for finding in findings if not finding.ok] == []


def test_problems_with_one_part_are_refused() -> None:
    task = load_task("code_collaboration", options={"helpers": 2})
    with pytest.raises(ConfigError, match=r"without a part for aux2 .*: take options\.bank="):
        task.problems("train")


@pytest.mark.slow
def test_generated_problems_for_several_are_stable_and_apart() -> None:
    for helpers in (2, 3):
        train, test = (problems(split, 12, helpers=helpers) for split in ("train", "test"))
        assert problems("train", 6, helpers=helpers) == train[:6]
        assert len({one.id for one in (*train, *test)}) == len(train) + len(test)
        for one in train:
            assert f"aux{helpers}(" in one.data["main_goal"]
            assert one.data[f"aux{helpers}_goal"].startswith("Return")
