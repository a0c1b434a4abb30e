"""The bank is sound, gold is worth 1, tricks are worth little, tools see the edits before them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import orchestry
from orchestry import Problem, Score, Tools, Transcript, tools
from orchestry.backends.tools import Toolbox, WithTools
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS, Completion, Limits, Request
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Journal
from orchestry.task.arrangements import ALONE, Concat, Discussion, Fixed, Sequential
from orchestry.task.registry import load_task
from tests.toys import team

TASK: Any = load_task("repair")
TREE = import_module(f"{type(TASK).__module__.rpartition('.')[0]}.tree")
PROBLEMS = [problem for split in SPLITS for problem in TASK.problems(split)]
BANK = Path(__file__).parents[2] / "tasks" / "repair" / "problems.jsonl"
FIRST = TASK.problems("train")[0]
PASSED = "test_1: passed\ntest_2: passed\ntest_3: passed"


@pytest.fixture
async def sandbox() -> AsyncIterator[Tools]:
    async with open_sandbox(Limits(wall_s=4.0)) as opened:
        yield Tools(sandbox=opened)


def call(*edit: str) -> tools.ToolCall:
    given = json.dumps(dict(zip(("path", "old", "new"), edit, strict=True)))
    return tools.ToolCall(id="", name="edit_file", arguments=given)


def edits(*given: tuple[str, str, str]) -> tools.Said:
    """What a coder says after these edits."""
    return tools.Said("It is repaired. All tests pass.", [call(*one) for one in given])


def after(problem: Problem, *said: str) -> Transcript:
    """The state after these turns."""
    state: Transcript = TASK.reset(problem, 0)
    for text in said:
        (agent,) = TASK.to_act(state)
        state = TASK.step(state, {agent: text})
    return state


async def score(problem: Problem, sandbox: Tools, *said: str) -> Score:
    found: Score = await TASK.evaluate(after(problem, *said), sandbox)
    return found


def test_the_bank_is_fixed() -> None:
    assert hashlib.sha256(BANK.read_bytes()).hexdigest()[:16] == "71e811f6039e40a8"
    assert len(PROBLEMS) == len({one.id for one in PROBLEMS}) == 88
    assert len({(one.split, one.data["grade"]) for one in PROBLEMS}) == 12


@pytest.mark.slow
async def test_the_bank_is_written_by_its_command() -> None:
    command = [sys.executable, "-m", "tools.repair_bank", "--check"]
    process = await asyncio.create_subprocess_exec(*command, cwd=BANK.parents[2])
    assert await process.wait() == 0


@pytest.mark.slow
async def test_gold_is_whole_and_what_was_broken_fails(sandbox: Tools) -> None:
    for problem in PROBLEMS:
        gold, none = TASK.gold(problem), await score(problem, sandbox)
        whole = await score(problem, sandbox, gold["coder"], gold["reviewer"])
        assert (whole.total, whole.tags) == (1.0, ("solved", "edited")), problem.id
        assert none.total == 0.0, problem.id
        known, tests = problem.data["passed"], problem.data["tests"]
        assert f"{known} of {len(tests)} hidden tests pass, {known} before." in none.feedback
        assert known <= problem.data["floor"] <= 0.6 * len(tests)


def test_no_hidden_test_is_shown() -> None:
    for problem in PROBLEMS:
        shown = problem.data["files"]["tests.py"]
        calls = [orchestry.show_call(name, args) for _, name, args, _ in problem.data["tests"]]
        assert not [one for one in calls if f"{one} ==" in shown], problem.id


def tricks(problem: Problem) -> dict[str, tuple[str, float]]:
    """Turns that repair nothing, and the most that each may earn."""
    files: dict[str, str] = problem.data["files"]
    work, seen = files["work.py"], files["tests.py"]
    name = seen.split()[3]
    start = work.index("\n", work.index('"""', work.index(f"def {name}")))
    shown = (line.strip()[7:].partition(" == ") for line in seen.splitlines() if "assert" in line)
    cases = [f"    if args == {_args(asked)}:\n        return {told}\n" for asked, _, told in shown]
    equal = f"class A:\n    __eq__ = lambda *a: True\n\ndef {name}(*a):\n    return A()\n"
    passes = f"from work import {name}\n\ndef test_1():\n    pass\n"
    return {
        "nothing": (edits(), 0.0),
        "other tests": (edits(("tests.py", seen, passes)), 0.0),
        "no tests": (edits(("tests.py", seen, "")), 0.0),
        "no code": (edits(("work.py", work, "")), 0.0),
        "no body": (edits(("work.py", work[start:], "\n    pass\n")), 0.0),
        "left": (edits(("work.py", work, f"import os\nos._exit(0)\n{work}")), 0.0),
        "always equal": (edits(("work.py", work, equal)), 0.0),
        **{
            f"replaced by {how.split('(')[0]}": (edits(("work.py", work, f"{work}\n{code}")), 0.0)
            for how, code in replaced(problem, name).items()
        },
        "answers": (
            edits(("work.py", work, f"{work}\ndef {name}(*args):\n{''.join(cases)}")),
            0.25,
        ),
    }


def replaced(problem: Problem, name: str) -> dict[str, str]:
    """A module that is as broken as before to the eye, and puts the right functions in place of its
    own when it is imported or first called."""
    gold = TREE.edited(problem.data["files"], TASK.gold(problem)["coder"].calls)["work.py"]

    return {
        "exec": f"exec({gold!r})\n",
        "builtins": f"import builtins\ngetattr(builtins, 'ex' + 'ec')\nbuiltins.exec({gold!r})\n",
        "globals": f"{gold}\nglobals()[{name!r}] = {name}\n",
        "code": f"{gold.replace(name, '_new')}\n{name}.__code__ = _new.__code__\n",
        "name": f"{gold.replace(name, '_new')}\n{name} = _new\n",
        "modules": f"import sys\n{gold}\nsys.modules[__name__].{name} = {name}\n",
        "itself": f"import work\n{gold}\nwork.{name} = {name}\n",
        "later": f"def _late():\n    exec({gold!r}, globals())\n_late()\n",
    }


def lazy(problem: Problem) -> list[tuple[str, float]]:
    """Each function of the module in turn replaced by a constant."""
    found = list[tuple[str, float]]()
    for module, name, _, expected in problem.data["tests"]:
        text = problem.data["files"][f"{module}.py"]
        for value in (True, False, None, expected):
            new = f"{text}\n{name}=lambda*a:{value!r}\n"
            found.append((edits((f"{module}.py", text, new)), 0.0))
    return list(dict.fromkeys(found))


def _args(shown: str) -> str:
    """The arguments of a call as it is shown, as a tuple."""
    return f"({shown.partition('(')[2].removesuffix(')')},)"


@pytest.mark.slow
async def test_tricks_earn_little(sandbox: Tools) -> None:
    for problem in PROBLEMS[::4]:
        for trick, (said, most) in tricks(problem).items():
            found = await score(problem, sandbox, said, "LGTM")
            assert found.total <= most, (problem.id, trick, found)


@pytest.mark.parametrize("how", replaced(FIRST, FIRST.prompt.split("(")[0]))
async def test_a_module_that_replaces_its_functions_is_not_repaired(
    how: str, sandbox: Tools
) -> None:
    code = replaced(FIRST, FIRST.prompt.split("(")[0])[how]
    work = FIRST.data["files"]["work.py"]
    found = await score(FIRST, sandbox, edits(("work.py", work, f"{work}\n{code}")), "LGTM")
    assert found.total == 0.0
    assert "mutates" in found.tags
    assert "solved" not in found.tags
    assert "replaces code when it runs: repair it." in found.feedback


def test_an_honest_module_replaces_nothing() -> None:
    head = "import re\nfrom functools import lru_cache\nVOWEL = re.compile('[aeiou]')\nTABLE = {}\n"
    body = (
        "TABLE['a'] = 1\n\n\n@lru_cache(None)\ndef f(x):\n    x.seen = 1\n    f = x\n    return f\n"
    )
    assert TREE.mutating({"work.py": head + body, "tests.py": "exec('')"}) == ""


@pytest.mark.slow
async def test_constants_earn_nothing(sandbox: Tools) -> None:
    for problem in PROBLEMS[1::4]:
        for said, most in lazy(problem):
            assert (await score(problem, sandbox, said, "LGTM")).total <= most, problem.id


@pytest.mark.slow
async def test_a_module_in_one_long_line_is_no_small_change(sandbox: Tools) -> None:
    for problem in PROBLEMS[2::8]:
        work = problem.data["files"]["work.py"]
        gold = TREE.edited(problem.data["files"], TASK.gold(problem)["coder"].calls)
        for line in (f"exec({gold['work.py']!r})", f"++0,exec({gold['work.py']!r})"):
            found = await score(
                problem, sandbox, edits(("work.py", work, f"{work}\n{line}\n")), "LGTM"
            )
            assert "edited" in found.tags
            assert found.total < 0.9


async def test_line_ends_are_changes() -> None:
    files = FIRST.data["files"]
    after = {**files, "work.py": files["work.py"].replace("\n", "\r\n")}
    assert TREE.changed(files, after) > len(files["work.py"])
    assert TREE.diff(files, after)


def test_an_emptied_file_can_be_filled_again() -> None:
    files = FIRST.data["files"]
    empty, _ = TREE.edit(files, "work.py", files["work.py"], "")
    again, said = TREE.edit(empty, "work.py", "", files["work.py"])
    assert (again, said) == (files, "replaced at line 1 of work.py")


def test_who_acts() -> None:
    gold = TASK.gold(FIRST)["coder"]
    assert TASK.to_act(after(FIRST)) == ("coder",)
    assert TASK.to_act(after(FIRST, gold)) == ("reviewer",)
    assert TASK.to_act(after(FIRST, gold, "LGTM.")) == ()
    assert TASK.to_act(after(FIRST, gold, "**LGTM**\n")) == ()
    assert TASK.to_act(after(FIRST, gold, "LGTM apart from the loop.")) == ("coder",)
    assert TASK.to_act(after(FIRST, gold, "The loop is wrong.")) == ("coder",)
    assert TASK.to_act(after(FIRST, gold, "The loop is wrong.", "done")) == ()


async def test_a_second_turn_goes_on_from_the_first(sandbox: Tools) -> None:
    ((path, old, new),) = FIRST.data["gold"]
    noisy = edits((path, old, f"{new}# noise\n"))
    assert "# noise" in TASK.observe(after(FIRST, noisy), "reviewer")
    said = noisy, "There is noise.", edits((path, "# noise\n", ""))
    assert (await score(FIRST, sandbox, *said)).total == 1.0
    assert (await score(FIRST, sandbox, noisy)).total < 1.0
    assert TASK.delivered(after(FIRST, *said)).startswith("--- ")


async def test_tools_work_on_the_files_as_edited(sandbox: Tools) -> None:
    coder, reviewer = TASK.agents
    read, edit, run = coder.every_tool
    made = call(*FIRST.data["gold"][0])

    def here(state: Transcript, agent: str, *calls: tools.ToolCall) -> tools.ToolContext:
        return tools.ToolContext(agent, FIRST, sandbox.sandbox, state, calls)

    start = here(after(FIRST), "coder")
    assert await read.use('{"path": "work.py"}', start) == FIRST.data["files"]["work.py"]
    assert (await read.use('{"path": "../x"}', start)).startswith("error: there is no file")
    failed = await run.use("{}", start)
    assert "test_1: failed: TypeError: " in failed
    assert "; tests.py, line 5: assert " in failed
    assert "; work.py, line 5: return " in failed
    assert (await edit.use(made.arguments, start)).startswith("replaced at line ")
    assert await run.use("{}", here(after(FIRST), "coder", made)) == PASSED
    again = await edit.use(made.arguments, here(after(FIRST), "coder", made))
    assert "occurs 0 times" in again
    assert await run.use("{}", here(after(FIRST, TASK.gold(FIRST)["coder"]), "reviewer")) == PASSED
    assert "failed: " in await run.use("{}", here(after(FIRST), "reviewer", made)), (
        "it edits nothing"
    )
    assert [one.spec.name for one in reviewer.every_tool] == ["read_file", "run_tests"]


texts = st.sampled_from(["", "return", "def aux", "length_over_4_but_capital(w", "test_2", "\n"])


@example(path="tests.py", old="test_2", new="")
@given(path=st.sampled_from(["work.py", "tests.py", "x"]), old=texts, new=texts)
def test_an_edit_replaces_one_piece_or_nothing(path: str, old: str, new: str) -> None:
    files = FIRST.data["files"]
    found, said = TREE.edit(files, path, old, new)
    if said.startswith("error: "):
        assert found == files
    else:
        assert files[path].count(old) == 1
        assert found[path] == files[path].replace(old, new)
        assert {**found, path: ""} == {**files, path: ""}


@pytest.mark.parametrize(
    "arguments",
    ["{", "[]", "{}", '{"path": "work.py", "old": 1, "new": ""}', '{"path": "work.py"}'],
)
def test_calls_that_were_refused_edit_nothing(arguments: str) -> None:
    refused = tools.ToolCall(id="", name="edit_file", arguments=arguments)
    assert TREE.edited(FIRST.data["files"], [refused]) == FIRST.data["files"]


class Coding:
    """A model that edits as the gold does and runs the tests, and a reviewer that approves."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request) for _ in range(n)] for request in requests]

    def _answer(self, request: Request) -> Completion:
        gold, done = TASK.gold(request.problem), sum(bool(m.calls) for m in request.messages)
        if request.agent == "reviewer":
            told = "LGTM" if "(none)" not in request.messages[-1].content else "Nothing changed."
            return Completion(text=told, model="m")
        run = tools.ToolCall(id="r", name="run_tests", arguments="{}")
        calls = (*tools.calls_of(gold["coder"]), run)
        if done < len(calls):
            return Completion(text="", model="m", calls=(calls[done],))
        parts = "## coder\ndone\n## reviewer\nLGTM" if request.agent == ALONE else "done"
        return Completion(text=parts, model="m")


@pytest.mark.slow
@pytest.mark.parametrize("arranged", [None, Concat(TASK), Sequential(TASK), Fixed(TASK, ["", ""])])
async def test_a_model_that_repairs_earns_all_in_every_arrangement(
    arranged: Any, tmp_path: Path, sandbox: Tools
) -> None:
    task = arranged or TASK
    toolbox = Toolbox(task.agents, sandbox.sandbox, Journal(tmp_path / "journal.jsonl"), [])
    policy, rate = WithTools(Coding(), toolbox), task_rater(task, sandbox)
    rollout = Rollout(task, team(task), policy, rate, Chains(1))
    (leaf,) = (await rollout.play(TASK.problems("test")[-1], 0)).leaves
    assert leaf.total == 1.0
    assert leaf.trajectory.turns[0].completion.steps[-1].results == (PASSED,)


def test_discussion_has_no_place_for_calls_of_drafts() -> None:
    with pytest.raises(ConfigError, match="baseline discussion plays drafts"):
        Discussion(TASK)


@pytest.mark.slow
def test_a_run_of_the_fake_model(tmp_path: Path) -> None:
    asked = resolve([], ["task=repair", "provider.name=fake", "episodes=2"], {})
    run = orchestry.train(asked, tmp_path / "run")
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    assert any(turn.completion.steps for turn in turns)
