"""Checks the rules that every backend relies on, by playing a task with hostile answers.

`orchestry tasks check NAME` prints the findings, and a task's own tests may call `check_task`. It
finds faults but can't prove their absence: it tries a few seeded answers.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Literal

from orchestry.core.errors import ConfigError, Endless, SandboxError, TaskFault, reason
from orchestry.core.types import SPLITS, Problem, Sandbox, Score, Split, Tools
from orchestry.task.arrangements import Wrapped
from orchestry.task.base import BaseTask, rubric_fault
from orchestry.task.code import shorten
from orchestry.task.fuzz import fuzz
from orchestry.task.guard import MAX_STAGES, Play, evaluated, said, tells
from orchestry.task.programs.agent_task import AgentTask
from orchestry.task.toolcheck import silent_tools, tool_findings

FEW = 20
"""Prompts are checked in this many first stages of a game; a game may never end."""
MAX_GOLD = 200
FUZZED = 6
IDLE = 12
"""Problems on which nobody does any work."""
PLAYABLE = ("frozen state", "roles", "starts", "ends")
EVALUATIONS_AT_ONCE = 4
SHOWN = 300
"""Characters of a score's feedback in a finding."""
LONG_ENOUGH = 20
"""A gold answer of at least this many characters does not occur in a prompt by accident."""
IDLE_PAY = 0.1
"""What answers without any work may earn in the mean, before the check warns."""
PAID = ": a team may learn to do that instead of the work; pay only for what exceeds it"

CHECKED = {
    "splits": "train, dev and test have problems, and no problem is in two of them",
    "stable problems": "a second load gives the same problems in the same order",
    "pure": "reset, to_act, observe, step and told give equal answers to equal arguments",
    "frozen state": "states are hashable, and step leaves the old one as it was",
    "roles": "to_act names agents of the team, each once",
    "starts": "to_act names somebody in the first state",
    "ends": f"to_act returns () within {MAX_STAGES} stages, whatever is answered",
    "observations": "observe returns text",
    "total": "evaluate gives a total in [0, 1] at every state met",
    "any answer": "no answer, however odd, makes the task raise",
    "deterministic": "evaluating a state again gives the same score",
    "gold": "gold answers score 1.0",
    "nothing": "empty answers",
    "prompt": "answers that repeat what the agent sees",
    "other gold": "the gold answers of another problem",
    "no leak": "no agent is shown the gold answer",
    "graded": "graded answers can be played, and none scores more than the first",
    "rubric": "the judge's rubric is a text of a readable length, or left out",
    "tools": "every tool has a docstring, and a call of one without effects shows no bug",
}

_SCORED = ("total", "any answer", "deterministic", "nothing", "prompt", "other gold")
"""The rules about scores."""

HOSTILE = (
    "",
    "\n \t\n",
    "yes",
    "def f(x):\n    return x\n",
    "```python\ndef f(x):\n    return x\n```",
    "```python\nprint('half",
    "```\n```\n```",
    "\x00 NUL \x1b[31m\u202eright to left\u2028 Ünïcödé 漢字 🙂",
    '{"score": 1e999, "open": [',
    "word " * 5_000,
)
"""Bad answers that models really give."""

_Answer = Callable[[str], str]
"""From an agent's role to its text."""

_Idle = Callable[[Problem, str, str], str]
"""From a problem, a role and what it sees to its text."""

Mark = Literal["ok", "warn", "not tried", "FAIL"]

Met = tuple[Problem, Any]
"""A state reached in a game, and its problem."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule: its text, whether it holds, and the first counterexample."""

    rule: str
    mark: Mark
    detail: str
    cases: tuple[str, ...] = ()
    """All counterexamples, including the first."""
    trace: str = ""
    """The first traceback, if something raised."""

    @property
    def ok(self) -> bool:
        """Whether no counterexample was found; also where none was looked for."""
        return self.mark != "FAIL"


@dataclass(slots=True)
class _Case:
    """The findings about one task."""

    task: BaseTask[Any]
    faults: dict[str, list[str]] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    """What could not be checked."""
    tried: dict[str, tuple[Mark, str]] = field(default_factory=dict)
    """The rules that something was tried for, with the mark and text of each that holds."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why nothing was tried for a rule."""

    def holds(self, *rules: str) -> None:
        """Notes that the rules were put to a test; those that broke are among `faults`."""
        for rule in rules:
            self.tried[rule] = ("ok", CHECKED[rule])

    def earns(self, rule: str, totals: Mapping[str, float]) -> None:
        """Notes what answers without any work earn, per problem."""
        mean, best = fmean(totals.values()), max(totals, key=totals.__getitem__)
        most = f"{totals[best]:.2f} at most (problem '{best}')"
        text = f"{CHECKED[rule]} earn {mean:.2f} in the mean, {most}"
        paid = mean > IDLE_PAY
        self.tried[rule] = ("warn", f"{text}{PAID}") if paid else ("ok", text)

    def fail(self, rule: str, detail: str, error: BaseException | None = None) -> None:
        if rule not in self.faults and error is not None:
            self.traces[rule] = "".join(traceback.format_exception(error))
        self.faults.setdefault(rule, []).append(detail)

    @contextmanager
    def blaming(
        self, rule: str, what: str, passing: type[Exception] = SandboxError
    ) -> Iterator[None]:
        """An exception in the task's code counts against `rule`; not its fault are `passing`."""
        try:
            yield
        except passing:
            raise
        except Exception as raised:
            cause = raised.__cause__ if isinstance(raised, TaskFault) else None
            error = cause or raised
            self.fail(rule, f"{what} raised {type(error).__name__}: {reason(error)}", error)

    def untried(self, rules: Sequence[str], why: str) -> None:
        """Notes that nothing could be tried for the rules."""
        for rule in rules:
            self.tried.pop(rule, None)
            self.reasons[rule] = why

    def broken(self) -> str:
        """The rule that keeps the task from being played, else the first that it breaks; ''."""
        return next((rule for rule in (*PLAYABLE, *self.faults) if rule in self.faults), "")

    def findings(self) -> list[Finding]:
        return [self._finding(rule) for rule in CHECKED]

    def _finding(self, rule: str) -> Finding:
        cases = tuple(self.faults.get(rule, ()))
        if cases:
            more = f" (and {len(cases) - 1} more)" if len(cases) > 1 else ""
            return Finding(rule, "FAIL", f"{cases[0]}{more}", cases, self.traces.get(rule, ""))
        if rule not in self.tried:
            why = self.reasons.get(rule, f"the task breaks '{self.broken()}'")
            return Finding(rule, "not tried", f"since {why}")
        mark, text = self.tried[rule]
        notes = "".join(f"; not called: {note}" for note in self.notes.get(rule, ()))
        return Finding(rule, mark, f"{text}{notes}")


async def check_task(
    task: BaseTask[Any],
    sandbox: Sandbox,
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    problems_per_split: int = 1,
) -> list[Finding]:
    """Plays the task with odd, empty and gold answers; returns one finding per rule, in a fixed
    order.

    Every role gives every kind of odd answer (`fuzz`), on FUZZED problems in turn. Per seed, one
    game of hostile answers is played on each of `problems_per_split` evenly spread problems of a
    split; their graded answers are played too. Gold is played on every problem, or on 200 evenly
    spread ones. Raises SandboxError if the sandbox itself fails, and ConfigError for options with
    which the task has no problems.
    """
    case = _Case(task)
    case.holds("rubric", *(() if any(agent.tools for agent in task.agents) else ("tools",)))
    if fault := rubric_fault(task):
        case.fail("rubric", fault)
    for fault in silent_tools(task):
        case.fail("tools", fault)
    splits = _check_problems(case)
    sampled = [p for split in splits.values() for p in _spread(split, problems_per_split)]
    deck = _deal(seeds[0])
    tools = Tools(sandbox=sandbox)
    games = [
        await _play(case, tools, p, seed, lambda _: next(deck)) for p in sampled for seed in seeds
    ]
    await _check_totals(case, tools, games)
    everything = [problem for split in splits.values() for problem in split]
    golds = await _check_gold(case, tools, _spread(everything, MAX_GOLD), seeds[0])
    for problem in sampled:
        await _check_graded(case, tools, problem, seeds[0])
    if everything and not any(rule in case.faults for rule in PLAYABLE):
        await _check_idle(case, tools, _spread(everything, IDLE), golds, seeds[0])
        await _check_any_answer(case, tools, _spread(everything, FUZZED), seeds[0])
    for game in games[:1]:
        case.holds("tools")
        with case.blaming("tools", "calling tools"):
            async for found in tool_findings(task, tools, game):
                if found.fault:
                    case.fail("tools", found.text)
                else:
                    case.notes.setdefault("tools", []).append(found.text)
    if isinstance(task, AgentTask):  # no program was started, so no score was its own
        case.untried(_SCORED, "its program gives the score")
    return case.findings()


# --- problems -----------------------------------------------------------------------------------


def _check_problems(case: _Case) -> dict[Split, list[Problem]]:
    """The problems by split, as far as they can be loaded."""
    options = case.task.options.model_dump(exclude_unset=True)
    own = case.task.task if isinstance(case.task, Wrapped) else case.task
    again = type(own)(own.part_weights, options)
    splits: dict[Split, list[Problem]] = {}
    home: dict[str, Split] = {}
    for split in SPLITS:
        # options that leave no problems are no fault of the task
        case.holds("splits")
        with case.blaming("splits", f"problems('{split}')", passing=ConfigError):
            splits[split] = list(case.task.problems(split))
            if not splits[split]:
                case.fail("splits", f"problems('{split}') is empty")
            case.holds("stable problems")
            if splits[split] != list(again.problems(split)):
                case.fail("stable problems", f"problems('{split}') differ on a second load")
        for problem in splits.get(split, []):
            if problem.split != split:
                case.fail("splits", f"problems('{split}') has {problem.id} of '{problem.split}'")
            if problem.id in home:
                case.fail("splits", f"id '{problem.id}' is in {home[problem.id]} and in {split}")
            home[problem.id] = split
    return splits


def _spread(problems: Sequence[Problem], count: int) -> list[Problem]:
    """At most `count` of them, evenly spread, the first included."""
    if len(problems) <= count:
        return list(problems)
    return [problems[index * len(problems) // count] for index in range(count)]


# --- playing ------------------------------------------------------------------------------------


def _deal(seed: int) -> Iterator[str]:
    """Endless hostile answers: all of them once, then again in a new order."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(HOSTILE, len(HOSTILE))


async def _play(
    case: _Case, tools: Tools, problem: Problem, seed: int, answer: _Answer, rule: str = "pure"
) -> list[Met]:
    """Plays one game, checking purity; returns all states. An exception counts against `rule`."""
    states: list[Met] = []
    with case.blaming(rule, f"playing problem '{problem.id}'"):
        task, most = case.task, FEW if "ends" in case.faults else MAX_STAGES
        state = _twice(case, f"reset of '{problem.id}'", lambda: task.reset(problem, seed))
        play = _Watched(task, problem, state, answer, most, case=case)
        states.append((problem, state))
        try:
            for _ in play:
                play.state = await _tell(case, tools, problem, play.state)
                states.append((problem, play.state))
        except Endless:
            case.fail("ends", f"problem '{problem.id}' has not ended after {MAX_STAGES} stages")
            return states[:FEW]
        case.holds("starts", "ends")
        if not play.stage and "roles" not in case.faults:
            case.fail("starts", f"problem '{problem.id}' is over before anybody acts")
        return states
    return states[:FEW]


@dataclass(slots=True)
class _Watched(Play[Any]):
    """A game whose steps are checked."""

    case: _Case = field(kw_only=True)

    def actors(self) -> tuple[str, ...]:
        found = _actors(self.case, self.state)
        if self.stage < FEW:  # a prompt that quotes all messages grows with every stage
            _look(self.case, self.state, found)
        return found

    def step(self, texts: Mapping[str, str]) -> Any:
        """Steps twice; the given state must not change."""
        before = _hash(self.case, self.state)
        after = _twice(self.case, "step", lambda: self.task.step(self.state, dict(texts)))
        self.case.holds("frozen state")
        if _hash(self.case, self.state) != before:
            self.case.fail("frozen state", "step changed the state that it was given")
        return after


def _twice(case: _Case, what: str, call: Callable[[], Any]) -> Any:
    """The result of a call that must return the same again."""
    first = call()
    case.holds("pure")
    if first != call():
        case.fail("pure", f"{what} gives another answer the second time")
    return first


def _actors(case: _Case, state: Any) -> tuple[str, ...]:
    """The roles that move, without unknown ones."""
    task = case.task
    named = _twice(case, "to_act", lambda: task.to_act(state))
    team = {agent.role for agent in task.agents}
    case.holds("roles")
    if not isinstance(named, tuple) or not team.issuperset(named) or len({*named}) < len(named):
        case.fail("roles", f"to_act gave {named!r}, the team is {sorted(team)}")
        return ()
    return named


def _look(case: _Case, state: Any, actors: Sequence[str]) -> None:
    for role in actors:
        seen = _twice(case, f"observe for '{role}'", partial(case.task.observe, state, role))
        case.holds("observations")
        if not isinstance(seen, str):
            case.fail("observations", f"observe for '{role}' gave a {type(seen).__name__}")


async def _tell(case: _Case, tools: Tools, problem: Problem, state: Any) -> Any:
    """The state in which a rollout's agents act; they may know its score."""
    if not tells(case.task) or not _actors(case, state):
        return state
    (score,) = await _evaluate(case, tools, [(problem, state)])
    if score is None:
        return state
    return _twice(case, "told", lambda: case.task.told(state, score))


def _hash(case: _Case, state: Any) -> int:
    try:
        return hash(state)
    except TypeError as error:
        case.fail("frozen state", f"{type(state).__name__} can't be hashed: {error}")
        return 0


# --- scoring ------------------------------------------------------------------------------------


async def _evaluate(
    case: _Case, tools: Tools, states: Sequence[Met], rule: str = "total"
) -> list[Score | None]:
    """The scores; None if evaluate raised or returned an invalid score, which counts against
    `rule`."""
    slots = asyncio.Semaphore(EVALUATIONS_AT_ONCE)

    async def one(problem: Problem, state: Any) -> Score | None:
        async with slots:
            try:
                score = await evaluated(case.task, problem, state, tools)
                case.holds(rule)
                return score
            except TaskFault as fault:
                case.fail(rule, said(fault), fault)
        return None

    return list(await asyncio.gather(*(one(*item) for item in states)))


async def _check_totals(case: _Case, tools: Tools, games: Sequence[Sequence[Met]]) -> None:
    """Scores every state, and each game's last state twice."""
    await _evaluate(case, tools, [met for game in games for met in game[:-1]])
    ends = [game[-1] for game in games if game]
    scores = zip(
        await _evaluate(case, tools, ends), await _evaluate(case, tools, ends), strict=True
    )
    for (problem, _), (first, second) in zip(ends, scores, strict=True):
        if first is not None:
            case.holds("deterministic")
        if first != second:
            case.fail("deterministic", f"problem '{problem.id}' scored {first} and then {second}")


async def _check_gold(
    case: _Case, tools: Tools, problems: Sequence[Problem], seed: int
) -> dict[str, Mapping[str, str]]:
    """The gold answers, by problem."""
    golds: dict[str, Mapping[str, str]] = {}
    ends: list[Met] = []
    for problem in problems:
        with case.blaming("gold", f"gold of problem '{problem.id}'"):
            if (gold := case.task.gold(problem)) is not None:
                golds[problem.id] = gold
                await _check_leak(case, tools, problem, gold, seed)
                ends += (await _play(case, tools, problem, seed, gold.__getitem__, "gold"))[-1:]
    for (problem, _), score in zip(ends, await _evaluate(case, tools, ends, "gold"), strict=True):
        if score is not None and score.total < 1.0 - 1e-9:
            parts = ", ".join(f"{part.name} {part.value:g}" for part in score.parts)
            said = f": {shorten(score.feedback, SHOWN)}" if score.feedback else ""
            worth = f"scores {score.total:g} ({parts}){said}"
            case.fail("gold", f"gold of problem '{problem.id}' {worth}")
    if problems and not golds and "gold" not in case.faults:
        case.untried(("gold", "no leak", "other gold"), "no problem has a gold answer")
    return golds


async def _check_idle(
    case: _Case,
    tools: Tools,
    problems: Sequence[Problem],
    golds: Mapping[str, Mapping[str, str]],
    seed: int,
) -> None:
    """What a team earns without any work: above 0, that is learned first."""
    others = {one.id: _other_gold(one.id, golds) for one in problems}
    say: dict[str, _Idle] = {
        "nothing": lambda problem, role, seen: "",
        "prompt": lambda problem, role, seen: seen,
        "other gold": lambda problem, role, seen: others[problem.id].get(role, ""),
    }
    if golds and not any(others.values()):
        case.untried(("other gold",), "all problems have the same gold answer")
    for rule, idle in say.items():
        asked = [one for one in problems if rule != "other gold" or others[one.id]]
        ends = [end for one in asked if (end := _idle(case, rule, one, seed, idle)) is not None]
        scores = zip(ends, await _evaluate(case, tools, ends, rule), strict=True)
        totals = {problem.id: score.total for (problem, _), score in scores if score is not None}
        if totals:
            case.earns(rule, totals)
        solved = (
            [name for name, total in totals.items() if total >= 1.0] if rule == "nothing" else []
        )
        for name in solved:  # in a game, some problem may ask for no move
            if name in golds or len(solved) == len(totals):
                case.fail(rule, f"empty answers score 1.0 on problem '{name}'")


def _idle(case: _Case, rule: str, problem: Problem, seed: int, idle: _Idle) -> Met | None:
    """The end of a game of such answers."""
    with case.blaming("any answer", f"playing {CHECKED[rule]} on problem '{problem.id}'"):
        task = case.task

        def answer(role: str) -> str:
            return idle(problem, role, task.observe(play.state, role))

        play = Play(task, problem, task.reset(problem, seed), answer)
        for _ in play:
            pass
        return problem, play.state
    return None


def _other_gold(name: str, golds: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """The next problem's gold that is not this problem's too; empty if there is none."""
    order = [*golds]
    start = order.index(name) if name in golds else 0
    turned = (golds[one] for one in order[start:] + order[:start] if one != name)
    return next((gold for gold in turned if gold != golds.get(name)), {})


async def _check_graded(case: _Case, tools: Tools, problem: Problem, seed: int) -> None:
    """`judge check` treats the scores of these answers as the truth, and the first as the best."""
    answers: list[Mapping[str, str]] = []
    with case.blaming("graded", f"graded of problem '{problem.id}'"):
        answers = list(case.task.graded(problem))
        if not answers and case.task.gold(problem) is not None:
            case.fail("graded", f"problem '{problem.id}' has gold and no graded answer")
    if not answers:
        case.reasons["graded"] = "no problem has a graded answer"
    ends: list[Met] = []
    for place, answer in enumerate(answers):
        if fault := _unplayable(case, answer):
            case.fail("graded", f"answer {place} {fault} ({problem.id})")
            return
        ends += (await _play(case, tools, problem, seed, answer.__getitem__, "graded"))[-1:]
    scores = await _evaluate(case, tools, ends, "graded")
    totals = [score.total for score in scores if score is not None]
    if len(totals) == len(answers) > 0 and max(totals) > totals[0] + 1e-9:
        place = totals.index(max(totals))
        worth = f"answer {place} scores {totals[place]:g}, the first {totals[0]:g}"
        case.fail("graded", f"{worth}, on problem '{problem.id}'")


async def _check_any_answer(
    case: _Case, tools: Tools, problems: Sequence[Problem], seed: int
) -> None:
    with case.blaming("any answer", "playing odd answers"):
        case.holds("any answer")
        for found in await fuzz(case.task, tools, problems, seed):
            case.fail("any answer", str(found), found.fault)


def _unplayable(case: _Case, answer: object) -> str:
    """Why this is no answer of the team; '' if it is."""
    if not isinstance(answer, Mapping):
        return f"is a {type(answer).__name__}, no mapping from role to text"
    for agent in case.task.agents:
        if not isinstance(answer.get(agent.role), str):
            return f"has no text for '{agent.role}'"
    return ""


async def _check_leak(
    case: _Case, tools: Tools, problem: Problem, gold: Mapping[str, str], seed: int
) -> None:
    """If no agent has said anything, a gold answer in a prompt came from the task."""
    for _, state in await _play(case, tools, problem, seed, lambda _: ""):
        for role in _actors(case, state):
            seen = case.task.observe(state, role)
            case.holds("no leak")
            shown = [who for who, text in gold.items() if len(text) >= LONG_ENOUGH and text in seen]
            if shown:
                case.fail("no leak", f"'{role}' sees the gold of '{shown[0]}' ({problem.id})")
