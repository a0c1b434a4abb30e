"""One problem of code collaboration, the sum of cubes, with a team that works and tricks on it."""

from __future__ import annotations

from typing import Any

from orchestry import BaseTask, Problem, Score, Tools
from orchestry.core.types import SPLITS
from orchestry.task.registry import load_task

TASK: BaseTask[Any] = load_task("code_collaboration")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
CUBES = PROBLEMS["sum_of_cubes"]
CUBE = "def aux(n):\n    return n ** 3"
SUM = "def sum_of_cubes(numbers):\n    return sum(aux(n) for n in numbers)"
OWN = "sum(n ** 3 for n in numbers)"
HEAD = "def sum_of_cubes(numbers):\n    "
TRICKS = {
    "comment": f"{HEAD}# aux(n)\n    return {OWN}",
    "text": f"{HEAD}'aux(n)'\n    return {OWN}",
    "unused": f"{HEAD}cube = aux(2)\n    return {OWN}",
    "bare call": f"{HEAD}aux(2)\n    return {OWN}",
    "dead code": f"{HEAD}if False:\n        return aux(2)\n    return {OWN}",
    "own aux": f"{CUBE}\n\n{SUM}",
    "own aux inside": f"{HEAD}aux = lambda n: n ** 3\n    return sum(aux(n) for n in numbers)",
    "globals": f"globals()['aux'] = lambda n: n ** 3\n\n{SUM}",
    "falls back": f"{HEAD}try:\n        return sum(aux(n) for n in numbers)\n"
    f"    except TypeError:\n        return {OWN}\n",
    "times nothing": f"{HEAD}return {OWN} + 0 * (aux(2) or 0)",
    "gate of two": f"{HEAD}return {OWN} if aux(2) == 8 and aux(3) == 27 else None",
    "hidden gate": f"def g(n=2):\n    two = n\n    return aux(two)\n\n{HEAD}two = 2\n"
    f"    return {OWN} if aux(two) == 8 and aux(n=3) == 27 else None",
    "asserts": f"{HEAD}assert aux(2) == 8\n    return {OWN}",
    "gate": f"{HEAD}return {OWN} if aux(2) == 8 else None",
    "code object": f"{HEAD}if len(aux.__code__.co_code) < 9:\n        return None\n"
    f"    return {OWN} + 0 * aux(1)",
    "inspects": f"import inspect\n{HEAD}if len(inspect.getsource(aux)) < 9:\n        return None\n"
    f"    return {OWN} + 0 * aux(1)",
}


def task(**options: Any) -> BaseTask[Any]:
    return load_task("code_collaboration", options=options)


def block(code: str) -> str:
    return f"Here it is:\n\n```python\n{code}\n```\nIt works."


def after(helper: str, main: str, problem: Problem = CUBES) -> Any:
    """The state in which both have answered once."""
    return TASK.step(TASK.reset(problem, 0), {"helper": helper, "main": main})


async def scored(tools: Tools, helper: str, main: str, problem: Problem = CUBES) -> Score:
    return await TASK.evaluate(after(block(helper), block(main), problem), tools)


def parts(score: Score) -> dict[str, float]:
    return {part.name: part.value for part in score.parts}
