"""Baselines, by name: a schedule of calls, or another way to play the task.

A baseline is a schedule or a wrapped task over the same rollout. The wrapped ones are those of
MAGRPO (arXiv 2508.04652, section 5); problems and reward stay.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from orchestry.core.config import AgentConfig, Arrangement, RunConfig
from orchestry.core.errors import ConfigError, reason
from orchestry.core.tools import Said, calls_of, named_once
from orchestry.core.types import AgentSpec, Problem, Score, Split, Tools
from orchestry.task.base import BaseTask
from orchestry.task.guard import Play, evaluated
from orchestry.task.programs.agent_task import AgentTask

BASELINES: Mapping[str, str] = {
    "fixed": "one model alone, which writes every agent's part in one answer",
    "best_of_n": "the untrained team's best of n trajectories, at as many calls as the search",
    "concat": "each agent answers once, in parallel; no agent sees what another wrote",
    "sequential": "agents that would act simultaneously act in order and read the earlier answers",
    "discussion": "each agent drafts, reads the others' drafts, and answers once more",
    "single": "one model alone, asked the problem itself; no part of the work is another's",
}
"""By name, in a line."""
ARRANGEMENTS: tuple[str, ...] = get_args(Arrangement)
ONE_MODEL = ("fixed", "single")
"""Those in which one agent answers, once."""
ALONE = "alone"
"""That agent's role."""
NO_PARTS = "no_parts"
"""The tag of an answer without any heading."""
SYSTEM = (
    "You do the work of a whole team alone, and write every part yourself: {roles}. Begin each "
    "part with its heading. Each text below is about its own part: what it leaves to others is "
    "yours too, in their parts.\n\n{parts}"
)
SINGLE = (
    "You do the work of a whole team alone. Its goals:\n\n{goals}\n\nAnswer with what the team "
    "would hand over in the end, and nothing else."
)
ASK = (
    "Your draft:\n{own}\n\nThe drafts of the rest of your team:\n\n{others}\n\nNow write your "
    "final answer in the same form as your draft. Fit it to what the others wrote."
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The task's own state, and the answers not yet passed to it, oldest first."""

    problem: Problem
    inner: Any
    answers: tuple[tuple[str, str], ...] = ()

    def by(self, agent: str) -> str:
        """The agent's last answer, or ''."""
        return next((text for who, text in reversed(self.answers) if who == agent), "")

    def shown(self, besides: str) -> str:
        """The other agents' answers, as shown to an agent."""
        return "\n\n".join(f"{who} wrote:\n{text}" for who, text in self.answers if who != besides)


def unwrapped(state: Any) -> Any:
    """The task's own state in a state of any arrangement."""
    while isinstance(state, Gathered):
        state = state.inner
    return state


class Wrapped(BaseTask[Gathered]):
    """Collects answers first, then plays the task with them; the task scores them.

    Until the task gets an answer, a state has the score of the task's first state.
    """

    def __init__(self, task: BaseTask[Any]) -> None:
        # The task has its options and weights already; they are copied to the instance.
        vars(self).update(
            task=task,
            name=task.name,
            agents=task.agents,
            weights=task.weights,
            solved=task.solved,
            schemes=task.schemes,
            judged=task.judged,
            rubric=task.rubric,
            part_weights=task.part_weights,
            team_parts=task.team_parts,
            options=task.options,
        )

    task: BaseTask[Any]

    def problems(self, split: Split) -> Sequence[Problem]:
        return self.task.problems(split)

    def reset(self, problem: Problem, seed: int) -> Gathered:
        return Gathered(problem, self.task.reset(problem, seed))

    @abstractmethod
    def to_act(self, state: Gathered) -> tuple[str, ...]: ...

    def observe(self, state: Gathered, agent: str) -> str:
        return self.task.observe(state.inner, agent)

    @abstractmethod
    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered: ...

    async def evaluate(self, state: Gathered, tools: Tools) -> Score:
        return await evaluated(self.task, state.problem, state.inner, tools)

    async def unfit(self, problem: Problem, tools: Tools) -> str:
        return await self.task.unfit(problem, tools)

    def delivered(self, state: Gathered) -> str:
        return self.task.delivered(state.inner)

    def single(self) -> AgentSpec | None:
        return self.task.single()

    def fixed(self) -> AgentSpec | None:
        return self.task.fixed()

    def over(self, state: Gathered) -> bool:
        """Whether the task's own state is final."""
        return not self.task.to_act(state.inner)


def _played(task: BaseTask[Any], state: Gathered, answers: Mapping[str, str]) -> Gathered:
    """The task's state after each agent gave its one answer at all its turns; what it called was
    called once. Raises as Play does."""
    left = dict(answers)

    def said(agent: str) -> str:
        text = left.get(agent, "")
        left[agent] = str(text)
        return text

    play = Play(task, state.problem, state.inner, said)
    for _ in play:
        pass
    return replace(state, inner=play.state)


def _roles(agents: Sequence[AgentSpec]) -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(spec.role for spec in agents)


class Concat(Wrapped):
    """All agents act simultaneously in the first state; the task then plays their answers in its
    own order.

    No agent sees another's text, even if the task would show it, and no agent is told a score.
    """

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return () if self.over(state) else _roles(self.agents)

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        return _played(self.task, state, actions)


class Sequential(Wrapped):
    """The answers of a joint action are collected one by one, then given to the task together.

    A task whose agents already act in order is played unchanged.
    """

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        moved = {agent for agent, _ in state.answers}
        waiting = [agent for agent in self.task.to_act(state.inner) if agent not in moved]
        return tuple(waiting[:1])

    def observe(self, state: Gathered, agent: str) -> str:
        asked = self.task.observe(state.inner, agent)
        if not state.answers:
            return asked
        return f"{asked}\n\nWritten before you, by the rest of your team:\n\n{state.shown(agent)}"

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        state = replace(state, answers=(*state.answers, *actions.items()))
        if self.to_act(state):
            return state
        return replace(state, inner=self.task.step(state.inner, dict(state.answers)), answers=())

    def told(self, state: Gathered, score: Score) -> Gathered:
        """See BaseTask: only between two joint actions, as in the task."""
        return state if state.answers else replace(state, inner=self.task.told(state.inner, score))


class Discussion(Wrapped):
    """Two simultaneous stages: drafts, which all agents read, then the answers for the task."""

    def __init__(self, task: BaseTask[Any]) -> None:
        super().__init__(task)
        if able := [spec.role for spec in task.agents if spec.tools]:
            raise ConfigError(
                f"baseline discussion plays drafts, and what agents with tools ({', '.join(able)}) "
                "call for a draft is done already: choose another baseline"
            )

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return () if self.over(state) else _roles(self.agents)

    def observe(self, state: Gathered, agent: str) -> str:
        asked = self.task.observe(state.inner, agent)
        if not state.answers:
            return asked
        return f"{asked}\n\n{ASK.format(own=state.by(agent), others=state.shown(agent))}"

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        if not state.answers:
            return replace(state, answers=tuple(actions.items()))
        return _played(self.task, state, actions)


class Alone(Wrapped):
    """One agent acts once; unless the task says otherwise, with the tools of all and their limits
    of calls together."""

    def __init__(self, task: BaseTask[Any], own: AgentSpec | None, prompt: str) -> None:
        """`own`: the agent as the task has it; None: `prompt` is its prompt."""
        super().__init__(task)
        alone = own or AgentSpec(
            role=ALONE,
            system_prompt=prompt,
            tools=named_once(ALONE, [one for spec in task.agents for one in spec.tools]),
            max_calls=sum(spec.max_calls for spec in task.agents if spec.tools) or 1,
        )
        agents = (alone.model_copy(update={"role": ALONE}),)
        vars(self).update(agents=agents, team=_roles(task.agents))

    team: tuple[str, ...]

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return () if self.over(state) else (ALONE,)

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        ended = _played(self.task, state, self.shares(actions[ALONE]))
        return replace(ended, answers=tuple(actions.items()))

    @abstractmethod
    def shares(self, answer: str) -> dict[str, str]:
        """What of the answer each agent of the team says."""


class Fixed(Alone):
    """The answer is divided among the roles by headings."""

    def __init__(self, task: BaseTask[Any], prompts: Sequence[str]) -> None:
        """`prompts`: the run's system prompts of the task's agents, in order."""
        team = _roles(task.agents)
        parts = (f"{heading(who)}\n{text}" for who, text in zip(team, prompts, strict=True))
        prompt = SYSTEM.format(roles=", ".join(team), parts="\n\n".join(parts))
        super().__init__(task, task.fixed(), prompt)

    def observe(self, state: Gathered, agent: str) -> str:
        told = self.task.observe_fixed(state.problem)
        if not told:
            asked = {role: self.task.observe(state.inner, role) for role in self.team}
            alike = len(set(asked.values())) == 1
            parts = (f"{heading(role)}\n{text}" for role, text in asked.items())
            told = asked[self.team[0]] if alike else "\n\n".join(parts)
        wanted = "\n".join(f"{heading(role)}\n..." for role in self.team)
        return f"{told}\n\nAnswer with these parts, each under its heading:\n\n{wanted}"

    def shares(self, answer: str) -> dict[str, str]:
        return shared_out(answer, self.team)

    async def evaluate(self, state: Gathered, tools: Tools) -> Score:
        """As the task says; an answer without headings gets a tag, since it may explain the
        score."""
        score = await super().evaluate(state, tools)
        if not state.answers or headings(self.team).search(state.by(ALONE)):
            return score
        return score.model_copy(update={"tags": (*score.tags, NO_PARTS)})


class Single(Alone):
    """The agent is asked the problem itself, and its answer is scored without `team_parts`."""

    def __init__(self, task: BaseTask[Any]) -> None:
        goals = (f"{spec.role}: {spec.goal or spec.system_prompt}" for spec in task.agents)
        super().__init__(task, task.single(), SINGLE.format(goals="\n".join(goals)))
        names, given = task.team_parts, task.part_weights
        weights = {name: weight for name, weight in given.items() if name not in names}
        if not any(weights.values()):
            raise ConfigError(
                f"baseline single is scored without {', '.join(names)}, which only a team can "
                f"earn, and all other weights of {task.name} are zero: give one of them some"
            )
        vars(self).update(weights=weights, part_weights=weights, schemes=())
        if names:
            vars(self).update(rubric="")  # it says what good teamwork is

    def observe(self, state: Gathered, agent: str) -> str:
        return self.task.observe_single(state.problem)

    def shares(self, answer: str) -> dict[str, str]:
        """All of it for each; or their parts, if there is a heading for every one of them."""
        found = {match[1].lower() for match in headings(self.team).finditer(answer)}
        whole = found < {role.lower() for role in self.team}
        return dict.fromkeys(self.team, answer) if whole else shared_out(answer, self.team)

    def delivered(self, state: Gathered) -> str:
        return ""  # its answer

    async def evaluate(self, state: Gathered, tools: Tools) -> Score:
        answer = state.by(ALONE) if state.answers else None
        score = await evaluated(self.task, state.problem, state.inner, tools, single=answer)
        left = tuple(part for part in score.parts if part.name in self.part_weights)
        return score.model_copy(update={"parts": left})


def heading(role: str) -> str:
    """What begins a part."""
    return f"## {role}"


def headings(team: Sequence[str]) -> re.Pattern[str]:
    """Finds the lines that begin a part; the role is its group."""
    names = "|".join(re.escape(role) for role in sorted(team, key=len, reverse=True))
    return re.compile(rf"^[ \t#*]*({names})[ \t*:#]*$", re.IGNORECASE | re.MULTILINE)


def shared_out(answer: str, team: Sequence[str]) -> dict[str, str]:
    """Each agent's part: the text under its heading (the last one, if there are several).

    A heading is a line with only the role, besides #, *, : and white space. An answer without
    headings goes to every role, because its part, such as a function, may be anywhere in it. Calls
    of tools are every role's.
    """
    pieces = headings(team).split(answer)
    if len(pieces) == 1:
        return dict.fromkeys(team, answer)
    by_name = {role.lower(): role for role in team}
    found = dict.fromkeys(team, "")
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        found[by_name[name.lower()]] = text.strip("\n")
    calls = calls_of(answer)
    return {role: Said(text, calls) for role, text in found.items()} if calls else found


_WRAPPERS: dict[str, Callable[[BaseTask[Any]], Wrapped]] = {
    "concat": Concat,
    "sequential": Sequential,
    "discussion": Discussion,
}


def arranged(config: RunConfig, task: BaseTask[Any]) -> tuple[RunConfig, BaseTask[Any]]:
    """The task in the arrangement that `config.baseline` names, and the config that fits it.

    Raises ConfigError for a task with one agent.
    """
    if config.baseline is None:
        return config, task
    if isinstance(task, AgentTask):
        raise ConfigError(
            f"task {task.name} is played by a program, which can't be arranged anew as baseline "
            f"{config.baseline}: leave out `baseline` (search.strategy=single plays one rollout)"
        )
    if len(task.agents) < 2:
        raise ConfigError(
            f"task {task.name} has one agent, and baseline {config.baseline} is of a team: leave "
            "out `baseline`"
        )
    if config.baseline in ONE_MODEL:
        prompts = [config.system_prompt(spec) for spec in task.agents]
        alone = Single(task) if config.baseline == "single" else Fixed(task, prompts)
        return _alone(config, alone), alone
    return config, _WRAPPERS[config.baseline](task)


def check_first_state(config: RunConfig, task: BaseTask[Any], problem: Problem) -> None:
    """Raises ConfigError if a baseline needs an observation that the task can't give."""
    if config.baseline is None:
        return
    state = task.reset(problem, 0)
    for agent in task.to_act(state):
        try:
            task.observe(state, agent)
        except Exception as error:  # a task's code may raise anything
            raise ConfigError(
                f"baseline {config.baseline} asks agents before anyone has answered, and observe "
                f"of task {task.name} raises {type(error).__name__} there ({reason(error)}): let "
                "it take a state without answers, or play other baselines"
            ) from error


def _alone(config: RunConfig, task: Alone) -> RunConfig:
    """The single agent: the team's settings, with its token limits added up.

    Raises ConfigError if the agents have different models or temperatures.
    """
    if set(config.agents) == {ALONE}:  # resolved by orchestry 0.1
        return config
    own = [config.agents.get(role, AgentConfig()).max_tokens for role in task.team]
    most = sum(tokens or config.sampling.max_tokens for tokens in own)
    agent = AgentConfig(
        model=_own(config, task.team, "model", config.provider.model),
        provider=_own(config, task.team, "provider", config.provider),
        max_tokens=most,
        temperature=_own(config, task.team, "temperature", config.sampling.temperature),
        system_prompt=task.agents[0].system_prompt,
    )
    return config.model_copy(update={"agents": {**config.agents, ALONE: agent}})


def _own(config: RunConfig, team: Sequence[str], key: str, usual: Any) -> Any:
    """The setting's value if all agents share it; None if that is the default."""
    own = [getattr(config.agents.get(role, AgentConfig()), key) for role in team]
    each = [usual if value is None else value for value in own]
    found = [one for place, one in enumerate(each) if one not in each[:place]]
    if len(found) > 1:
        named = ", ".join(sorted(map(_said, found)))
        raise ConfigError(
            f"baseline {config.baseline} is one model alone, and the agents have more than one "
            f"{key} ({named}): play the other baselines, or leave out agents.*.{key}"
        )
    return None if found == [usual] else found[0]


def _said(one: Any) -> str:
    """A setting's value, for a message."""
    return "the default" if one is None else one.name if hasattr(one, "name") else str(one)
