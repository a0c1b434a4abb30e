"""Moves that are made of several calls: agents that infer what others will do, and that plan.

A task is wrapped, as for a baseline, so that every backend, search and credit plays it as it plays
any task. Agents that act simultaneously think at the same time, one call after the other, and then
act together. No agent sees another's thoughts.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from orchestry.core.config import AgentConfig, RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.thoughts import ask_belief, ask_step
from orchestry.core.types import Part, Problem, Score, Tools
from orchestry.task import prose
from orchestry.task.arrangements import Gathered, Wrapped
from orchestry.task.base import BaseTask
from orchestry.task.code import extract_code, parse_code
from orchestry.task.guard import Play
from orchestry.task.programs.agent_task import AgentTask

PART = "infer_accuracy_"
"""The part of the reward of an agent's inferences, before its role."""
MOST_WORDS = 12
"""An inference is compared with so many words of what the partners did, the most frequent ones: one
line can't foretell more."""
LINE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Thinking(Gathered):
    """`answers` holds the thoughts of the moves that are being prepared."""

    open: tuple[tuple[str, str], ...] = ()
    """Agents and their inferences that no partner has acted on yet."""
    right: tuple[tuple[str, float], ...] = ()
    """Agents and the accuracy of each of their inferences that could be compared."""

    def of(self, agent: str) -> tuple[str, ...]:
        """The agent's thoughts of this move, oldest first."""
        return tuple(text for who, text in self.answers if who == agent)


class Thoughtful(Wrapped):
    """The task, with the calls before an action that the agents' settings ask for."""

    def __init__(self, task: BaseTask[Any], agents: Mapping[str, AgentConfig]) -> None:
        super().__init__(task)
        own = {spec.role: agents.get(spec.role, AgentConfig()) for spec in task.agents}
        bonus = {f"{PART}{role}": one.infer_bonus for role, one in own.items() if one.infer}
        parts = {**task.part_weights, **bonus}
        vars(self).update(own=own, part_weights=parts, weights=parts)

    own: Mapping[str, AgentConfig]

    def reset(self, problem: Problem, seed: int) -> Thinking:
        return Thinking(problem, self.task.reset(problem, seed))

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return self._thinking(_known(state)) or self.task.to_act(state.inner)

    def _thinking(self, state: Thinking) -> tuple[str, ...]:
        """Who has a call to make before the next action."""
        acting = self.task.to_act(state.inner)
        return tuple(role for role in acting if len(state.of(role)) < len(self._steps(role)))

    def _steps(self, role: str) -> tuple[str, ...]:
        """The instructions of the calls before the agent's action."""
        own = self.own[role]
        others = [one for one in self.own if one != role]
        return (*([ask_belief(others)] if own.infer else []), *map(ask_step, own.chain))

    def observe(self, state: Gathered, agent: str) -> str:
        """The task's observation, the agent's own thoughts, and what it is to write now."""
        thoughts, steps = _known(state).of(agent), self._steps(agent)
        inferred = self.own[agent].infer
        told = [
            f"You believe:\n{text}" if inferred and not i else f"You wrote before:\n{text}"
            for i, text in enumerate(thoughts)
        ]
        now = [steps[len(thoughts)]] if len(thoughts) < len(steps) else []
        if told and not now:
            now = ["Now act: give your answer as you were asked to above."]
        return "\n\n".join([self.task.observe(state.inner, agent), *told, *now])

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Thinking:
        state = _known(state)
        if thinking := self._thinking(state):
            said = ((role, self._kept(state, role, actions.get(role, ""))) for role in thinking)
            return replace(state, answers=(*state.answers, *said))
        lines = ((role, state.of(role)[0]) for role in actions if self.own[role].infer)
        found, left = list[tuple[str, float]](), list[tuple[str, str]]()
        for role, line in (*state.open, *lines):
            done = [text for other, text in actions.items() if other != role]
            if done:
                found.append((role, accuracy(line, done, state.problem.prompt)))
            else:
                left.append((role, line))
        inner, right = self.task.step(state.inner, actions), (*state.right, *found)
        return replace(state, inner=inner, answers=(), open=tuple(left), right=right)

    def _kept(self, state: Thinking, role: str, text: str) -> str:
        """What is kept of a thought: of an inference its first line."""
        inferring = self.own[role].infer and not state.of(role)
        if not inferring:
            return text.strip()
        return next((line.strip() for line in text.splitlines() if line.strip()), "")[:LINE_CHARS]

    def told(self, state: Gathered, score: Score) -> Thinking:
        """See BaseTask: once per action, before the thoughts about the next one."""
        state = _known(state)
        if state.answers:
            return state
        return replace(state, inner=self.task.told(state.inner, score))

    async def evaluate(self, state: Gathered, tools: Tools) -> Score:
        """The task's score, with the accuracy of each agent that infers as a further part."""
        score = await super().evaluate(state, tools)
        right = _known(state).right
        more = list[Part]()
        for role, own in self.own.items():
            if own.infer:
                mine = [value for who, value in right if who == role]
                value = fmean(mine) if mine else 0.0
                more.append(Part(name=f"{PART}{role}", value=value, weight=own.infer_bonus))
        return score.model_copy(update={"parts": (*score.parts, *more)})


def _known(state: Gathered) -> Thinking:
    if not isinstance(state, Thinking):
        raise TypeError(f"a state of {type(state).__name__}, not of Thinking")
    return state


def thoughtful(config: RunConfig, task: BaseTask[Any]) -> BaseTask[Any]:
    """The task with the thoughts that the agents' settings ask for; the task itself if none do.

    Raises ConfigError for an agent that infers in a team of one.
    """
    own = [config.agents.get(spec.role, AgentConfig()) for spec in task.agents]
    if not any(one.infer or one.chain for one in own):
        return task
    if isinstance(task, AgentTask):
        raise ConfigError(
            f"agents.ROLE.infer and chain are for tasks that prompt their agents, and task "
            f"{task.name} is played by a program: leave them out"
        )
    if len(own) < 2 and own[0].infer:
        raise ConfigError(
            f"agents.{task.agents[0].role}.infer: task {task.name} has one agent, so there is no "
            "partner to infer: leave it out"
        )
    return Thoughtful(task, config.agents)


def check_bonus(task: BaseTask[Any], problem: Problem) -> None:
    """Raises ConfigError for a bonus that could never be earned, since nobody acts at the same time
    as the agent or after it."""
    if not isinstance(task, Thoughtful):
        return
    play = Play(task, problem, task.reset(problem, 0), lambda _: "")
    for _ in play:
        pass
    compared = {role for role, _ in _known(play.state).right}
    for role, own in task.own.items():
        if own.infer_bonus and role not in compared:
            raise ConfigError(
                f"agents.{role}.infer_bonus={own.infer_bonus:g}: nobody acts at the same time as "
                f"{role} or after it, so its inferences can't be compared: leave the bonus out"
            )


# --- how right an inference was -------------------------------------------------------------------


def accuracy(line: str, actions: Sequence[str], prompt: str) -> float:
    """How well a line foretells what partners wrote, in [0, 1].

    F1 between the line's content words and those of the actions, without the words of the
    problem's prompt, which say nothing about a partner. Of code, the names that it defines and
    calls count. Of an action, MOST_WORDS words count at most.
    """
    known = set(_content(prompt))
    said = set(_content(line)) - known
    done = Counter[str]()
    for text in actions:
        names = _names(text)
        done.update(word for word in _content(" ".join(names) if names else text))
    left = [word for word, _ in done.most_common() if word not in known][:MOST_WORDS]
    both = len(said.intersection(left))
    return 2.0 * both / (len(said) + len(left)) if both else 0.0


def _names(text: str) -> list[str]:
    """What the code of an answer defines and calls; [] if it has no code that defines a function or
    a class."""
    tree = parse_code(extract_code(text, ""))
    nodes = [*ast.walk(tree)] if tree else []
    defined = [n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    functions = [n.func for n in nodes if isinstance(n, ast.Call)] if defined else []
    return defined + [
        f.id if isinstance(f, ast.Name) else f.attr
        for f in functions
        if isinstance(f, ast.Name | ast.Attribute)
    ]


def _content(text: str) -> list[str]:
    """The stems of its content words of three letters or more."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)
    return prose.content([word for word in prose.words(apart) if len(word) > 2])
