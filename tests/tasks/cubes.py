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
    "after the end": f"{HEAD}return {OWN}\n    return aux(numbers)",
    "over nothing": f"{HEAD}for n in ():\n        numbers = [aux(n)]\n    return {OWN}",
    "overwritten": f"{HEAD}cube = aux(1)\n    cube = {OWN} + 0 * aux(1)\n    return cube",
    "idle condition": f"{HEAD}if aux(len(numbers)):\n        pass\n    return {OWN}",
    "either way": f"{HEAD}return {OWN} if aux(len(numbers)) or True else None",
    "own aux": f"{CUBE}\n\n{SUM}",
    "own aux inside": f"{HEAD}aux = lambda n: n ** 3\n    return sum(aux(n) for n in numbers)",
    "globals": f"globals()['aux'] = lambda n: n ** 3\n\n{SUM}",
    "falls back": f"{HEAD}try:\n        return sum(aux(n) for n in numbers)\n"
    f"    except TypeError:\n        return {OWN}\n",
    "times nothing": f"{HEAD}return {OWN} + 0 * (aux(2) or 0)",
    "gate of two": f"{HEAD}return {OWN} if aux(2) == 8 and aux(3) == 27 else None",
    "hidden gate": f"def g(n=2):\n    two = n\n    return aux(two)\n\n{HEAD}two = 2\n"
    f"    return {OWN} if aux(two) == 8 and aux(n=3) == 27 else None",
    "gate by a second name": f"ask = aux\n{HEAD}two, three = 2, 3\n"
    f"    return {OWN} if ask(two) == 8 and ask(three) == 27 else None",
    "gate in a function": "def right(n, cube):\n    return aux(n) == cube\n\n"
    f"{HEAD}return {OWN} if right(2, 8) and right(3, cube=27) else None",
    "gate by a star": f"{HEAD}of = [2]\n    return {OWN} if aux(*of) == 8 else None",
    "gate by partial": "from functools import partial\n"
    f"ask, again = partial(aux, 2), partial(aux, 3)\n{HEAD}"
    f"return {OWN} if ask() == 8 and again() == 27 else None",
    "gate by a cache": "from functools import lru_cache\nask = lru_cache(aux)\n"
    f"{HEAD}return {OWN} if ask(2) == 8 and ask(3) == 27 else None",
    "gate bound to main": "from functools import partial\ndef g(two, three, numbers):\n"
    f"    return {OWN} if aux(two) == 8 and aux(three) == 27 else None\n\n"
    "sum_of_cubes = partial(g, 2, 3)",
    "gate in a factory": f"def outer(two, three):\n    return lambda numbers: {OWN} if "
    "aux(two) == 8 and aux(three) == 27 else None\n\nsum_of_cubes = outer(2, 3)",
    "gate in a decorator": "def gated(do):\n    def inner(numbers):\n"
    "        return do(numbers) if aux(2) == 8 and aux(3) == 27 else None\n    return inner\n\n"
    f"@gated\n{HEAD}return {OWN}",
    "asserts": f"{HEAD}assert aux(2) == 8\n    return {OWN}",
    "gate": f"{HEAD}return {OWN} if aux(2) == 8 else None",
    "code object": f"{HEAD}if len(aux.__code__.co_code) < 9:\n        return None\n"
    f"    return {OWN} + 0 * aux(1)",
    "inspects": f"import inspect\n{HEAD}if len(inspect.getsource(aux)) < 9:\n        return None\n"
    f"    return {OWN} + 0 * aux(1)",
}


CHECKED = CUBES.model_copy(
    update={
        "data": {key: CUBES.data[key] for key in ("entry_point", "signature")}
        | {
            "check": "def check(candidate):\n"
            + "\n".join(f"    assert candidate(*{a!r}) == {e!r}" for a, e in CUBES.data["tests"])
        }
    }
)
"""The same as a data set has it: without a gold pair."""


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
