"""Gold is worth 1, tricks are no cooperation, agents see their own part, any text is scored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestry import BaseTask, Problem, Score, Tools
from orchestry.errors import ConfigError
from orchestry.registry import load_task
from orchestry.services.sandbox import open_sandbox
from orchestry.testing import HOSTILE, check_task
from orchestry.types import SPLITS, Limits

TASK: BaseTask[Any] = load_task("code_collaboration")
REWARD = import_module("orchestry_tasks.code_collaboration.reward")
OUTCOME = import_module("orchestry_tasks.code_collaboration.outcome")
PROGRAM = import_module("orchestry_tasks.code_collaboration.program")
USAGE = import_module("orchestry_tasks.code_collaboration.usage")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
FIXTURES = Path(__file__).parents[1] / "fixtures" / "humaneval"
CUBES = PROBLEMS["sum_of_cubes"]
CUBE = "def aux(n):\n    return n ** 3"
SUM = "def sum_of_cubes(numbers):\n    return sum(aux(n) for n in numbers)"
OWN = "sum(n ** 3 for n in numbers)"
HEAD = "def sum_of_cubes(numbers):\n    "


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    async with open_sandbox(Limits()) as sandbox:
        yield Tools(sandbox=sandbox)


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


# --- gold ---------------------------------------------------------------------------------------


async def gold_is_worth_one(problem: Problem, tools: Tools) -> None:
    gold, *others = [
        await TASK.evaluate(TASK.step(TASK.reset(problem, 0), answer), tools)
        for answer in TASK.graded(problem)
    ]
    assert parts(gold) == dict.fromkeys(TASK.weights, 1.0)
    assert {"solved", "cooperates"} <= set(gold.tags)
    totals = [score.total for score in others]
    assert totals[:2] == [0.75, 0.75]  # aux in main's own code; all work in aux
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0.0
    assert not any("cooperates" in score.tags for score in others)


@pytest.mark.parametrize("name", ["newest_version", "count_primes_between", "total_gap"])
async def test_gold_is_worth_one_and_teams_that_do_not_cooperate_less(
    tools: Tools, name: str
) -> None:
    await gold_is_worth_one(PROBLEMS[name], tools)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
async def test_all_gold_is_worth_one(tools: Tools, name: str) -> None:
    await gold_is_worth_one(PROBLEMS[name], tools)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"acting": "sequential", "turns": 2}, {"turns": 3, "feedback": "levels"}]
)
async def test_the_task_keeps_the_contract(tools: Tools, options: Mapping[str, Any]) -> None:
    findings = await check_task(task(**options), tools.sandbox)
    assert [finding for finding in findings if not finding.ok] == []


# --- the reward ---------------------------------------------------------------------------------

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


async def test_tricks_are_no_cooperation(tools: Tools) -> None:
    scores = await asyncio.gather(*(scored(tools, CUBE, main) for main in TRICKS.values()))
    for trick, score in zip(TRICKS, scores, strict=True):
        assert parts(score)["cooperation"] == 0.0, trick
        assert "cooperates" not in score.tags, trick
        assert "No cooperation: " in score.feedback, trick


async def test_a_helper_that_does_it_all_is_no_cooperation(tools: Tools) -> None:
    helper = f"def aux(numbers):\n    return {OWN}"
    score = await scored(tools, helper, f"{HEAD}return aux(numbers)")
    assert parts(score) == {"structure": 1.0, "syntax": 1.0, "tests": 1.0, "cooperation": 0.0}


@pytest.mark.parametrize(
    "body", ["return 1 * aux(numbers) + 0", "r = aux(numbers)\n    return r if r == r else 0"]
)
async def test_a_wrapper_in_disguise_is_no_cooperation(tools: Tools, body: str) -> None:
    score = await scored(tools, f"def aux(numbers):\n    return {OWN}", f"{HEAD}{body}")
    assert parts(score)["tests"] == 1.0
    assert parts(score)["cooperation"] == 0.0
    assert "aux alone passes as many tests" in score.feedback


@pytest.mark.parametrize("body", ["return aux(numbers)[0]", "return -aux(numbers)"])
async def test_a_wrapper_that_aux_packs_for_remains(tools: Tools, body: str) -> None:
    """No run tells it from two that share the work; the README says so."""
    value = f"[{OWN}]" if "[0]" in body else f"-{OWN}"
    score = await scored(tools, f"def aux(numbers):\n    return {value}", f"{HEAD}{body}")
    assert score.total == 1.0


async def test_an_aux_that_lacks_one_case_does_not_make_main_a_partner(tools: Tools) -> None:
    helper = f"def aux(numbers):\n    return {OWN} if numbers else None"
    main = f"{HEAD}if not numbers:\n        return 0\n    return aux(numbers)"
    score = await scored(tools, helper, main)
    assert parts(score)["tests"] == 1.0
    assert parts(score)["cooperation"] < 0.4


async def test_the_runs_own_limits_hold_for_cooperation_too() -> None:
    """A helper that nests deeper than Python's default allows, where the run allows it."""
    deep = "def aux(n, left=1500):\n    return aux(n, left - 1) if left else n ** 3"
    async with open_sandbox(Limits(recursion=3000)) as sandbox:
        score = await scored(Tools(sandbox=sandbox), deep, SUM)
    assert score.total == 1.0


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
async def test_any_way_to_define_aux_is_one(tools: Tools, helper: str) -> None:
    assert (await scored(tools, helper, SUM)).total == 1.0


async def test_what_is_only_a_value_defines_nothing(tools: Tools) -> None:
    assert "no_helper" in (await scored(tools, "aux = 3", SUM)).tags


async def test_tricks_count_for_no_scheme(tools: Tools) -> None:
    """Where running shows no cooperation, what the code looks like says nothing."""
    score = await scored(tools, CUBE, TRICKS["falls back"])
    assert {tag for tag in score.tags if tag.startswith("scheme")} == {"scheme_none"}
    works = await scored(tools, CUBE, SUM)
    assert "scheme_coordinator" in works.tags
    fails = await scored(tools, "def aux(n):\n    return 0", SUM)
    assert "scheme_coordinator" in fails.tags


async def test_a_main_that_knows_its_helpers_name_for_it_gains_nothing(tools: Tools) -> None:
    """A second name tells a stub from the helper without a call."""
    main = f"{HEAD}return {OWN} + 0 * aux(1) if aux is same else None"
    score = await scored(tools, f"{CUBE}\n\nsame = aux", main)
    assert parts(score)["cooperation"] == 0.0


@pytest.mark.slow
async def test_a_main_that_dawdles_gains_nothing(tools: Tools) -> None:
    """Where the runs with stubs have less time than the honest one had, a slow main looks as if
    it needed its helper."""
    idle = "for _ in range(2 * 10 ** 6):\n        pass\n    "
    score = await scored(tools, CUBE, f"{HEAD}{idle}return {OWN} + 0 * len(str(aux(1)))")
    assert parts(score)["cooperation"] == 0.0


async def test_cooperation_grows_with_what_the_helper_is_needed_for(tools: Tools) -> None:
    """Main cubes small numbers by itself; the more of them, the less it needs aux."""
    found = []
    for most in (0, 2, 4, 20):
        main = f"{HEAD}return sum(n ** 3 if abs(n) < {most} else aux(n) for n in numbers)"
        found.append(parts(await scored(tools, CUBE, main))["cooperation"])
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0.0


async def test_two_empty_functions_earn_half(tools: Tools) -> None:
    score = await scored(tools, "def aux(n):\n    pass", f"{HEAD}pass")
    assert parts(score) == {"structure": 1.0, "syntax": 1.0, "tests": 0.0, "cooperation": 0.0}


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


async def test_constants_pass_no_tests(tools: Tools) -> None:
    for value in ("0", "27", "8", "None", "True"):
        score = await scored(tools, CUBE, f"{HEAD}return {value}")
        assert parts(score)["tests"] == 0.0


async def test_what_was_taken_is_in_the_feedback_and_no_right_answer_is(tools: Tools) -> None:
    score = await scored(tools, CUBE, f"{HEAD}return 5 + sum(aux(n) for n in numbers)")
    told, *taken = score.feedback.split("\n\n")
    assert "The program passes 0 of 11 tests." in told
    assert "First failure: sum_of_cubes([]) wrongly returned 5." in told
    assert f"Code taken from helper:\n{CUBE}" in taken
    assert "It works" not in score.feedback


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


NUMBERS = st.floats(0.0, 1.0)


@given(honest=NUMBERS, stubbed=st.lists(NUMBERS), better=NUMBERS)
def test_cooperation_falls_with_the_best_stub(
    honest: float, stubbed: list[float], better: float
) -> None:
    found = REWARD.cooperation(honest, stubbed)
    assert 0.0 <= found <= 1.0
    assert not stubbed or REWARD.cooperation(honest, [*stubbed, better]) <= found
    assert REWARD.cooperation(honest, [*stubbed, honest]) == 0.0


CODES = st.one_of(
    st.text(),
    st.text("()[]{}:=\n \t'\"`#*defrtunaxlmb_0\\", max_size=80),
    st.sampled_from([*HOSTILE, CUBE, SUM, *TRICKS.values()]),
    st.sampled_from(["(" * 9999, "-" * 99999 + "1", "x" + "+1" * 9999, "def aux(a, *, b): pass"]),
)


@settings(max_examples=100, deadline=None)
@given(helper=CODES, main=CODES)
def test_any_text_has_pure_parts_in_range(helper: str, main: str) -> None:
    program = after(helper, main).program
    for value in (REWARD.structure(program, "sum_of_cubes"), REWARD.syntax(program)):
        assert value in (0.0, 0.5, 1.0)
    usage = USAGE.usage_of(program.main, "sum_of_cubes")
    assert isinstance(REWARD.objection(program, "sum_of_cubes", usage), str)
    assert isinstance(PROGRAM.without_promise(main, helper), str)
    assert all(isinstance(text, str) for text in program.stubbed())


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(helper=CODES, main=CODES)
async def test_any_text_is_scored(tools: Tools, helper: str, main: str) -> None:
    score = await TASK.evaluate(after(helper, main), tools)
    assert 0.0 <= score.total <= 1.0
    assert all(0.0 <= part.value <= 1.0 for part in score.parts)


async def test_weights_come_from_the_config(tools: Tools) -> None:
    only = load_task("code_collaboration", weights=dict.fromkeys(("structure", "syntax"), 0.0))
    score = await only.evaluate(after(block(CUBE), block(f"{HEAD}return {OWN}")), tools)
    assert score.total == 0.5  # tests without cooperation
    with pytest.raises(ConfigError, match=r"coop"):
        load_task("code_collaboration", weights={"coop": 1.0})


# --- who sees what ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"turns": 0}, {"turns": "many"}, {"acting": "both"}, {"feedback": "all"}, {"turn": 2}]
)
def test_wrong_options_are_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}"):
        task(**wrong)


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


CHECKED = """
def check(candidate):
    assert candidate([]) == 0, "empty (list)"
    assert candidate([3]) == 27
    assert candidate([1, -1, 4]) == 64
    assert candidate([2, 2]) == 16
"""


async def test_a_data_sets_own_test_is_run_and_its_asserts_are_told_to_nobody(
    tools: Tools,
) -> None:
    data = {key: CUBES.data[key] for key in ("entry_point", "signature", "gold_main", "gold_aux")}
    problem = CUBES.model_copy(update={"data": {**data, "check": CHECKED}})
    gold = await scored(tools, CUBE, SUM, problem)
    assert (gold.total, "solved" in gold.tags) == (1.0, True)
    empty = await scored(tools, CUBE, f"{HEAD}return 0", problem)
    assert parts(empty)["tests"] == 0.0  # which is what a constant passes
    assert "sum_of_cubes([3]) returned a wrong value" in empty.feedback
    assert "27" not in empty.feedback
    broken = await scored(tools, "def aux(n):\n    raise KeyError(n)", SUM, problem)
    assert "sum_of_cubes([3]) failed: KeyError." in broken.feedback
    alone = await scored(tools, CUBE, f"{HEAD}aux(1)\n    return {OWN}", problem)
    assert parts(alone)["cooperation"] == 0.0


async def test_a_data_set_is_played_like_the_own_bank(tools: Tools) -> None:
    loaded = task(bank="humaneval", path=str(FIXTURES / "humaneval.jsonl"))
    problems = [problem for split in SPLITS for problem in loaded.problems(split)]
    assert problems
    for problem in problems:
        state = loaded.reset(problem, 0)
        assert problem.data["signature"] in loaded.observe(state, "main")
        assert problem.data["aux_signature"] in loaded.observe(state, "helper")
        assert loaded.gold(problem) is None
        assert loaded.graded(problem) == []
        score = await scored(tools, "", problem.data["reference"], problem)
        assert parts(score) == {"structure": 0.5, "syntax": 0.5, "tests": 1.0, "cooperation": 0.0}


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("not so: assert candidate(')(', [1]) == 'x'", "f(')(', [1]) returned a wrong value"),
        (
            "assert abs(candidate(2) - 4) < 1: the candidate gave no value: E: a\nb",
            "f(2) failed: an exception",
        ),
        ("not so: assert total == 4", "f returned a wrong value"),
        ("not so: assert candidate(", "f returned a wrong value"),
    ],
)
def test_a_failed_assert_is_told_without_what_is_right(why: str, said: str) -> None:
    assert OUTCOME.unasserted("f", why) == said


def test_a_result_never_shows_the_others_code_by_way_of_an_error() -> None:
    trace = "ValueError: no\nline 2, in aux: return secret_of_helper(n)"
    assert OUTCOME.plain("error", trace) == "ValueError"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("raise ValueError('psst')", "ValueError"),
        ("raise type('psst', (Exception,), {})", "an exception"),
        ("raise type('no answer: psst', (Exception,), {})", "an exception"),
        ("raise MemoryError('psst')", "not enough memory"),
        ("while True:\n        pass", "no answer in time"),
        ("return 'psst' * 10 ** 6", "it returned too much"),
        ("return object()", "it returned what can't be compared"),
        ("return 1 / 0", "ZeroDivisionError"),
        ("import os; os._exit(3)", "it ended its process"),
    ],
)
async def test_an_exception_passes_no_word_between_the_agents(
    tools: Tools, raised: str, told: str
) -> None:
    main = f"{HEAD}return [aux(n) for n in [1, *numbers]]"
    score = await scored(tools, f"def aux(n):\n    {raised}", main)
    first, *_ = score.feedback.split("\n\n")
    assert first.endswith(f"First failure: sum_of_cubes([]) failed: {told}.")
    assert "psst" not in first
    assert "First failure in full: " in score.feedback
    assert "line" not in first


def test_equal_code_is_an_equal_state_whatever_was_said_around_it() -> None:
    assert after(block(CUBE), SUM) == after(f"Sure!\n{CUBE}", block(SUM))
    assert replace(after(CUBE, SUM), results=("told",)) != after(CUBE, SUM)
    assert [*chain.from_iterable(after(CUBE, SUM).codes)] == ["helper", CUBE, "main", SUM]
