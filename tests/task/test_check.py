"""The conformance check passes whole tasks, and finds each fault under its own rule."""

from __future__ import annotations

import ast
import asyncio
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from orchestry import tools
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS, AgentSpec, Call, Limits, Problem, Score, Split, Tools
from orchestry.sandbox import open_sandbox
from orchestry.task.arrangements import Sequential
from orchestry.task.base import BaseTask, TeamTask, Transcript
from orchestry.task.check import CHECKED, IDLE_PAY, check_task
from orchestry.task.registry import load_task


class Doubling(TeamTask):
    """A whole task: the coder's function is really run, after a planner's word."""

    name = "doubling"
    agents = (AgentSpec(role="planner"), AgentSpec(role="coder"))

    def problems(self, split: Split) -> Sequence[Problem]:
        return tuple(
            Problem(
                id=f"{split}-{n}", prompt=f"Write f(x): x times {n}.", data={"n": n}, split=split
            )
            for n in (2, 3)
        )

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        code = f"def f(x):\n    return x * {problem.data['n']}\n"
        return {"planner": "Multiply.", "coder": code}

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        calls = [Call(args=(5,)), Call(args=(7,))]
        results = await tools.sandbox.run(state.last("coder"), "f", calls)
        right = [5 * state.problem.data["n"], 7 * state.problem.data["n"]]
        passed = sum(r.value == want for r, want in zip(results, right, strict=True))
        return self.score(quality=passed / 2)


@dataclass(frozen=True, slots=True)
class Bids:
    """A joint action, once."""

    problem: Problem
    bids: tuple[str, ...] = ()


class Auction(BaseTask[Bids]):
    """A whole task with agents that act at once and no gold answers."""

    name = "auction"
    agents = (AgentSpec(role="left"), AgentSpec(role="right"))

    def problems(self, split: Split) -> Sequence[Problem]:
        return (Problem(id=split, prompt="Bid.", split=split),)

    def reset(self, problem: Problem, seed: int) -> Bids:
        return Bids(problem)

    def to_act(self, state: Bids) -> tuple[str, ...]:
        return () if state.bids else ("left", "right")

    def observe(self, state: Bids, agent: str) -> str:
        return f"{state.problem.prompt} You are {agent}."

    def step(self, state: Bids, actions: Mapping[str, str]) -> Bids:
        return replace(state, bids=(actions["left"], actions["right"]))

    async def evaluate(self, state: Bids, tools: Tools) -> Score:
        return self.score(quality=float(state.bids == ("1", "2")))


async def broken_rules(task: BaseTask[Any]) -> dict[str, str]:
    """The rules that the task breaks, with the details."""
    async with open_sandbox(Limits()) as sandbox:
        findings = await check_task(task, sandbox)
    assert [finding.rule for finding in findings] == [*CHECKED]
    return {finding.rule: finding.detail for finding in findings if not finding.ok}


@pytest.mark.parametrize("task", [Doubling(), Auction()], ids=lambda task: task.name)
async def test_a_whole_task_breaks_no_rule(task: BaseTask[Any]) -> None:
    assert await broken_rules(task) == {}


@pytest.mark.slow
async def test_the_bundled_task_breaks_no_rule() -> None:
    assert await broken_rules(load_task("code_review")) == {}


async def test_graded_answers_come_best_first() -> None:
    broken = type("Broken", (Doubling,), {"graded": worst_first})
    found = await broken_rules(broken())
    assert [*found] == ["graded"]
    assert "scores 1, the first 0, on problem 'train-2'" in found["graded"]


class Place(BaseModel):
    x: float
    kind: Literal["in", "out"]
    near: Place | None = None


def with_tools(*given: Any) -> BaseTask[Any]:
    coder = AgentSpec(role="coder", tools=given)
    found: BaseTask[Any] = type(
        "WithTools", (Doubling,), {"agents": (AgentSpec(role="planner"), coder)}
    )()
    return found


async def test_a_tool_without_a_docstring_is_named() -> None:
    def silent() -> str:
        return ""

    broken = with_tools(silent, tools.python)
    assert await broken_rules(broken) == {"tools": "'silent' of 'coder' has no docstring"}


async def test_a_tool_is_called_with_arguments_of_its_schema() -> None:
    heard = list[Any]()

    def look(
        place: Place, depth: Annotated[int, Field(ge=3)], here: tools.ToolContext, name: str = "x"
    ) -> str:
        """Looks something up."""
        heard.append((place, depth, here.agent, name))
        states.append(here.state)
        raise KeyError(name)

    states = list[Any]()
    asked = with_tools(tools.tool(look, effects=False))
    assert await broken_rules(asked) == {}
    assert heard == [(Place(x=1.0, kind="in"), 3, "coder", "x")]
    assert [asked.to_act(state) for state in states] == [("coder",)], "where it acts"
    assert await broken_rules(Sequential(asked)) == {}
    assert isinstance(states[1], Transcript), "the task's own, as in a run"


def mistaken(text: str) -> str:
    """Counts words."""
    return text.spilt()  # type: ignore[attr-defined,no-any-return]


async def endless() -> None:
    """Waits."""
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (tools.tool(mistaken, effects=False), "raised AttributeError: 'str' object"),
        (tools.tool(endless, effects=False, timeout_s=0.05), "took more than 0.05 s"),
    ],
)
async def test_a_tool_that_fails_is_a_finding(given: tools.Tool, said: str) -> None:
    found = await broken_rules(with_tools(given))
    assert [*found] == ["tools"]
    assert said in found["tools"]
    assert "called with {" in found["tools"]


class Known(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def of_the_list(cls, name: str) -> str:
        if name != "tea":
            raise ValueError("only tea is known")
        return name


async def test_a_tool_that_refuses_made_up_arguments_is_said_not_to_have_been_called() -> None:
    def look(one: Known) -> str:
        """Looks something up."""
        raise AssertionError("it is not called")

    async with open_sandbox(Limits()) as sandbox:
        found = await check_task(with_tools(tools.tool(look, effects=False)), sandbox)
    (rule,) = (one for one in found if one.rule == "tools")
    assert rule.ok
    assert "; not called: 'look' of 'coder' refused {'one': {'name': '1'}} (" in rule.detail
    assert "only tea is known" in rule.detail


async def test_options_without_problems_are_no_fault_of_the_task() -> None:
    task = load_task("code_collaboration", options={"helpers": 2})
    with pytest.raises(ConfigError, match=r"take options\.bank=generated"):
        await broken_rules(task)


async def test_a_silent_tool_is_named_where_nothing_can_be_played() -> None:
    def silent() -> str:
        return ""

    def raising(self: Any, problem: Problem, seed: int) -> Transcript:
        raise ZeroDivisionError

    broken: Any = type("Broken", (type(with_tools(silent)),), {"reset": raising})()
    assert "tools" in await broken_rules(broken)


async def test_a_tool_with_effects_is_not_called() -> None:
    def send(text: str) -> str:
        """Sends a mail."""
        raise AssertionError("a check sends nothing")

    assert await broken_rules(with_tools(send)) == {}


def constant(total: float) -> Callable[..., Any]:
    async def evaluate(self: TeamTask, state: Transcript, tools: Tools) -> Score:
        return self.score(quality=total)

    return evaluate


COUNTER = itertools.count()


async def growing(self: TeamTask, state: Transcript, tools: Tools) -> Score:
    return self.score(quality=1 - 1 / (2 + next(COUNTER)))


async def needs_answers(self: TeamTask, state: Transcript, tools: Tools) -> Score:
    return self.score(quality=0.5 / len(state.said))


async def no_gold(self: Doubling, state: Transcript, tools: Tools) -> Score:
    gold = self.gold(state.problem) or {}
    return self.score(quality=0.5 / (dict(state.said) != gold))


async def no_silence(self: Doubling, state: Transcript, tools: Tools) -> Score:
    return self.score(quality=0.5 / ({text for _, text in state.said} != {""}))


def fragile(self: Doubling, state: Transcript, tools: Tools) -> Score:
    """No coroutine; and it knows no code that can't be written down."""
    with suppress(SyntaxError, ValueError, MemoryError):
        ast.dump(ast.parse(state.last("coder")))
    return self.score(quality=0.5)


def one(self: TeamTask, split: Split) -> Sequence[Problem]:
    return (Problem(id="same", prompt="Say yes.", split=split),)


def drawn(self: TeamTask, split: Split) -> Sequence[Problem]:
    return (Problem(id=f"{split}{next(COUNTER)}", prompt="Say yes.", split=split),)


def leaky(self: TeamTask, state: Transcript, agent: str) -> str:
    gold = self.gold(state.problem)
    assert gold is not None
    return f"Write f. For example:\n{gold['coder']}"


def mutable(self: TeamTask, problem: Problem, seed: int) -> Any:
    return Transcript(problem, said=[])  # type: ignore[arg-type]


def mutating(self: TeamTask, state: Transcript, actions: Mapping[str, str]) -> Transcript:
    object.__setattr__(state, "said", (*state.said, *actions.items()))
    return state


def worst_first(self: Doubling, problem: Problem) -> Sequence[Mapping[str, str]]:
    return TeamTask.graded(self, problem)[::-1]


def silent(self: Doubling, problem: Problem) -> Sequence[Mapping[str, str]]:
    return [{"coder": "def f(x): return x"}]


def counting(self: Doubling, state: Transcript, score: Score) -> Transcript:
    return replace(state, said=(*state.said, ("told", str(next(COUNTER)))))


def telling(self: Doubling, state: Transcript, score: Score) -> Transcript:
    """What evaluate gave of the planner's word alone, and the answer."""
    gold = self.gold(state.problem) or {}
    return replace(state, said=((f"{score.total:g} {gold['coder']}", ""), *state.said[1:]))


def heard(self: Doubling, state: Transcript, agent: str) -> str:
    return "".join(who for who, _ in state.said)


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "same id in all splits": ({"problems": one}, "splits", "id 'same' is in train and in dev"),
    "no problems": ({"problems": lambda *_: ()}, "splits", "problems('train') is empty"),
    "problems raise": ({"problems": lambda *_: 1 / 0}, "splits", "raised ZeroDivisionError"),
    "problems drawn anew": ({"problems": drawn}, "stable problems", "second load"),
    "observe counts": ({"observe": lambda *_: str(next(COUNTER))}, "pure", "observe for 'planner'"),
    "observe raises": ({"observe": lambda *_: 1 / 0}, "pure", "raised ZeroDivisionError"),
    "observe gives none": ({"observe": lambda *_: None}, "observations", "gave a NoneType"),
    "observe leaks": ({"observe": leaky}, "no leak", "'planner' sees the gold of 'coder'"),
    "lists in state": ({"reset": mutable}, "frozen state", "can't be hashed"),
    "step in place": ({"step": mutating}, "frozen state", "step changed the state"),
    "stranger": ({"to_act": lambda *_: ("boss",)}, "roles", "to_act gave ('boss',)"),
    "twice": ({"to_act": lambda *_: ("coder", "coder")}, "roles", "gave ('coder', 'coder')"),
    "over at once": ({"to_act": lambda *_: ()}, "starts", "is over before anybody acts"),
    "endless": ({"to_act": lambda *_: ("coder",)}, "ends", "after 1000 stages"),
    "NaN": ({"evaluate": constant(float("nan"))}, "total", "a total of nan"),
    "too much": ({"evaluate": constant(1.5)}, "total", "a total of 1.5"),
    "partial": ({"evaluate": needs_answers}, "total", "raised ZeroDivisionError"),
    "gold alone": ({"evaluate": no_gold}, "gold", "evaluate raised ZeroDivisionError"),
    "nothing alone": ({"evaluate": no_silence}, "nothing", "evaluate raised ZeroDivisionError"),
    "fragile": ({"evaluate": fragile}, "any answer", "raised RecursionError"),
    "moody": ({"evaluate": growing}, "deterministic", "scored"),
    "generous": ({"evaluate": constant(1.0)}, "nothing", "empty answers score 1.0"),
    "mean": ({"evaluate": constant(0.5)}, "gold", "scores 0.5 (quality 0.5)"),
    "no graded": ({"graded": lambda *_: ()}, "graded", "has gold and no graded answer"),
    "graded raises": ({"graded": lambda *_: 1 / 0}, "graded", "raised ZeroDivisionError"),
    "graded is none": ({"graded": lambda *_: None}, "graded", "raised TypeError"),
    "graded texts": ({"graded": lambda *_: ["x"]}, "graded", "answer 0 is a str, no mapping"),
    "graded for one": ({"graded": silent}, "graded", "answer 0 has no text for 'planner'"),
    "told counts": ({"told": counting}, "pure", "told gives another answer"),
    "told raises": ({"told": lambda *_: 1 / 0}, "pure", "raised ZeroDivisionError"),
    "told leaks": ({"told": telling, "observe": heard}, "no leak", "'coder' sees the gold of"),
    "blank rubric": ({"rubric": " \n"}, "rubric", "rubric is blank: write what good work is"),
    "long rubric": ({"rubric": "x" * 10_001}, "rubric", "10,001 characters: shorten it to 10,000"),
    "no text as rubric": ({"rubric": 3}, "rubric", "rubric is a int: make it a text"),
    "gold of one": ({"gold": lambda *_: {"coder": ""}}, "gold", "raised KeyError: 'planner'"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_found_under_its_rule(fault: str) -> None:
    methods, rule, detail = FAULTS[fault]
    cheap = {} if "evaluate" in methods or "gold" in methods else {"evaluate": constant(0.5)}
    broken = type("Broken", (Doubling,), {**cheap, **methods})
    found = await broken_rules(broken())
    assert detail in found[rule]


CHEAPEST = ("nothing", "prompt", "other gold")


async def marks(task: BaseTask[Any]) -> dict[str, str]:
    """Each rule's mark."""
    async with open_sandbox(Limits()) as sandbox:
        return {finding.rule: finding.mark for finding in await check_task(task, sandbox)}


@pytest.mark.parametrize(
    ("methods", "tried"),
    [
        ({"problems": lambda *_: 1 / 0}, {"splits", "rubric", "tools"}),
        ({"problems": lambda *_: ()}, {"splits", "stable problems", "rubric", "tools"}),
        (
            {"reset": lambda *_: 1 / 0},
            {"splits", "stable problems", "pure", "any answer", "gold", "graded"}
            | {"rubric", "tools"},
        ),
        (
            {"to_act": lambda *_: ("boss",)},
            {*CHECKED} - {"any answer", "frozen state", "observations", "no leak"} - {*CHEAPEST},
        ),
    ],
)
async def test_a_rule_that_was_not_tried_is_not_called_kept(
    methods: dict[str, Any], tried: set[str]
) -> None:
    broken = type("Broken", (Doubling,), {"evaluate": constant(0.5), **methods})
    found = await marks(broken())
    assert {rule for rule, mark in found.items() if mark != "not tried"} == tried


async def test_rules_about_gold_are_not_tried_without_any() -> None:
    found = await marks(Auction())
    untried = {rule for rule, mark in found.items() if mark == "not tried"}
    assert untried == {"gold", "no leak", "graded", "other gold"}
    assert set(found.values()) == {"ok", "not tried"}


def coded(task: Doubling, problem: Problem) -> str:
    gold = task.gold(problem)
    assert gold is not None
    return gold["coder"]


class Paying(Doubling):
    """Pays so much for the gold, for the cheapest answers, and for all others."""

    paid: Mapping[str, float]

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        code = state.last("coder")
        golds = {coded(self, one) for split in SPLITS for one in self.problems(split)}
        if code == coded(self, state.problem):
            return self.score(quality=1.0)
        kind = "nothing" if not code else "prompt" if state.problem.prompt in code else "else"
        return self.score(quality=self.paid["other gold" if code in golds else kind])


@settings(max_examples=15, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys((*CHEAPEST, "else"), st.floats(0, 0.99))))
def test_what_the_cheapest_answers_earn_is_said_and_warned_of(paid: dict[str, float]) -> None:
    task = type("Paying", (Paying,), {"paid": paid})()
    findings = {
        one.rule: one for one in asyncio.run(check_task(task, open_sandbox(Limits()), seeds=(0,)))
    }
    for rule in CHEAPEST:
        assert f"earn {paid[rule]:.2f} in the mean" in findings[rule].detail
        assert findings[rule].mark == ("warn" if paid[rule] > IDLE_PAY else "ok")
        assert findings[rule].ok


async def test_one_problem_that_nothing_solves_is_a_fault_if_it_has_gold() -> None:
    async def evaluate(self: TeamTask, state: Transcript, tools: Tools) -> Score:
        return self.score(quality=float(state.problem.id in ("dev", "dev-2")))

    found = await broken_rules(type("Broken", (Doubling,), {"evaluate": evaluate})())
    assert found["nothing"] == "empty answers score 1.0 on problem 'dev-2'"
    assert await broken_rules(type("Lucky", (Auction,), {"evaluate": evaluate})()) == {}


BUNDLED = Path(__file__).parents[2] / "tasks"
PAID_FOR = {
    "bucket_brigade": ["nothing", "prompt"],
    "code_collaboration": ["other gold"],
    "house_style": ["prompt"],
}
"""Bundled tasks that pay for no work. Their READMEs say why."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(one.parent.name for one in BUNDLED.glob("*/task.py")))
async def test_a_bundled_task_pays_for_no_work_only_with_a_reason(name: str) -> None:
    async with open_sandbox(Limits()) as sandbox:
        findings = await check_task(load_task(name), sandbox, seeds=(0,))
    assert [one.rule for one in findings if one.mark == "warn"] == PAID_FOR.get(name, [])
    said = (BUNDLED / name / "README.md").read_text(encoding="utf-8")
    assert re.search(r"`orchestry tasks check[^`]*` warns", said) or name not in PAID_FOR
