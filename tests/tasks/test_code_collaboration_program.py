"""The two codes become one program, whatever way they define their functions, and its stubs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from orchestry import Tools
from tests.tasks.cubes import CUBE, CUBES, SUM, TASK, after, block, parts, scored, task

PROGRAM = import_module("orchestry_tasks.code_collaboration.program")
PROMISES = [
    "def aux(n): ...",
    "# already defined\ndef aux(n):\n    pass",
    'def aux(n):\n    """The cube of n."""',
    "@staticmethod\ndef aux(n):\n    raise NotImplementedError",
    'def aux(n):\n    """Cube."""\n    raise NotImplementedError("by another")',
]


@pytest.mark.parametrize("promise", PROMISES)
async def test_main_may_repeat_the_promise_of_aux(tools: Tools, promise: str) -> None:
    for answer in (block(f"{promise}\n\n{SUM}"), f"{block(promise)}\n\n{block(SUM)}"):
        score = await TASK.evaluate(after(block(CUBE), answer), tools)
        assert score.total == 1.0, score.feedback
        assert "shadowed" not in score.tags


@pytest.mark.parametrize("acting", ["joint", "sequential"])
async def test_main_may_repeat_the_aux_that_it_saw(tools: Tools, acting: str) -> None:
    team = task(acting=acting)
    copied = f"{CUBE.replace(':', ':  # already defined', 1)}\n\n{SUM}"
    state = team.reset(CUBES, 0)
    answers = {"helper": block(CUBE), "main": block(copied)}
    while actors := team.to_act(state):
        state = team.step(state, {role: answers[role] for role in actors})
    score = await team.evaluate(state, tools)
    assert parts(score)["cooperation"] == (acting == "sequential")
    other = CUBE.replace("3", "2")
    assert PROGRAM.without_promise(f"{other}\n\n{SUM}", CUBE) == f"{other}\n\n{SUM}"


@pytest.mark.parametrize(
    "helper",
    [
        "from functools import partial\n\naux = partial(pow, exp=3)",
        "class Cube:\n    def __call__(self, n):\n        return n ** 3\n\naux = Cube()",
        "if True:\n    def aux(n):\n        return n ** 3",
        "try:\n    from cubes import cube as aux\nexcept ImportError:\n    aux = lambda n: n ** 3",
        "def cube(n):\n    return n ** 3\n\naux = cube",
        "aux: object = lambda n: n ** 3",
    ],
)
@pytest.mark.slow
async def test_any_way_to_define_aux_is_one(tools: Tools, helper: str) -> None:
    assert (await scored(tools, helper, SUM)).total == 1.0


async def test_what_is_only_a_value_defines_nothing(tools: Tools) -> None:
    assert "no_helper" in (await scored(tools, "aux = 3", SUM)).tags


HALVES = [
    ("", SUM, 0.5, 0.5, {"no_helper"}),
    (CUBE, "", 0.5, 0.5, {"no_main"}),
    (CUBE, "def sum_of_cubes(numbers) return", 0.5, 0.5, {"no_main", "syntax_error"}),
    ("def help(n):\n    return n", SUM, 0.5, 1.0, {"no_helper"}),
    ("async def aux(n):\n    return n", SUM, 0.5, 1.0, {"no_helper"}),
    ("aux = lambda n: n", SUM, 1.0, 1.0, set[str]()),
    (CUBE, f"if True:\n    {SUM.replace(chr(10), chr(10) + '    ')}", 1.0, 1.0, {"solved"}),
    (CUBE, f"{CUBE}\n{SUM}", 1.0, 1.0, {"shadowed", "solved"}),
]


async def test_structure_and_syntax(tools: Tools) -> None:
    known = {"no_helper", "no_main", "syntax_error", "shadowed", "solved"}
    for helper, main, structure, syntax, tags in HALVES:
        score = await scored(tools, helper, main)
        found = parts(score)
        assert (found["structure"], found["syntax"]) == (structure, syntax), (helper, main)
        assert set(score.tags) & known == tags, (helper, main)


async def test_what_the_problem_defines_stands_before_the_helper(tools: Tools) -> None:
    """As in HumanEval, whose prompts import what their signatures name."""
    problem = CUBES.model_copy(update={"data": {**CUBES.data, "preamble": "POWER = 3"}})
    helper = "from __future__ import annotations\n\ndef aux(n: Any):\n    return n ** POWER"
    main = f"from __future__ import annotations\n{SUM}"
    assert (await scored(tools, helper, main, problem)).total == 1.0


def test_stubs_keep_the_helpers_parameters() -> None:
    helper = "K = 2\n\ndef aux(a, /, b=K, *rest, c, d=1, **more):\n    return a"
    program = PROGRAM.Program(helper, "def f():\n    return aux(1, c=2)")
    names: dict[str, Any] = {}
    for text in program.stubbed():
        names = {}
        exec(compile(text, "stub", "exec"), names)
        names["aux"](1, 2, 3, c=4, e=5)
    assert names["aux"](7, c=1) == 1  # frozen at what it gave first
    assert len(program.stubbed()) == 6


def test_a_frozen_helper_may_call_itself() -> None:
    helper = "def aux(n):\n    return 1 if n == 0 else n * aux(n - 1)"
    names: dict[str, Any] = {}
    exec(compile(PROGRAM.Program(helper, "").stubbed()[-1], "stub", "exec"), names)
    assert names["aux"].__qualname__ == names["aux"].__name__ == "aux"
    assert [names["aux"](n) for n in (4, 5)] == [24, 24]
