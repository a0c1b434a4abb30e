"""The winning trajectories of runs, as what each agent is to learn from them: its own answers.

Only runs on train are read, so that nothing is learned from problems that measure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

from orchestry.core.errors import ConfigError
from orchestry.core.seeds import derive
from orchestry.core.tools import ToolCall, ToolSpec
from orchestry.core.types import TASK_ERROR, Member, Message, Tokens, Turn
from orchestry.store.journal import last_words
from orchestry.store.records import EpisodeRecord, NodeRecord
from orchestry.store.run import Run, check_texts

By = Literal["reward", "advantage", "credit", "rating"]
BY: dict[By, str] = {
    "reward": "the trajectory's reward",
    "advantage": "its reward above the mean of its problem's trajectories",
    "credit": "the agent's credit for it",
    "rating": "a person's rating of it",
}
TOP = 0.2
"""The share of trajectories that win, as in `behaviors.top`."""
TIE = 1e-9
"""Rewards that differ by less are equal: their sums are rounded."""
_NO_ANSWER = ("too_long", "refusal")
"""Endings of answers that no model gave."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which trajectories win."""

    by: By = "reward"
    top: float = TOP
    """Share of the trajectories, for each agent."""
    min_reward: float = 0.0
    """A winner has at least this reward; one of 0 never wins, nor one whose worth is 0 or less."""
    seed: int = 0
    """Breaks ties."""

    def __post_init__(self) -> None:
        """Raises ConfigError for values out of range."""
        if self.by not in BY:
            raise ConfigError(f"by is '{self.by}': choose one of {', '.join(BY)}")
        if not 0.0 < self.top <= 1.0:
            raise ConfigError(f"top is {self.top:g}: give a share above 0, and 1 at most")
        if not 0.0 <= self.min_reward <= 1.0:
            raise ConfigError(f"min-reward is {self.min_reward:g}: give a reward in [0, 1]")


@dataclass(frozen=True, slots=True)
class Lesson:
    """One answer that an agent is to learn to give."""

    agent: str
    messages: tuple[Message, ...]
    """The prompt."""
    answer: str
    ended: bool
    """Whether it ended by itself; if not, it was cut, and its end is not to be learned."""
    tokens: Tokens | None
    """As local weights saw and drew it, if they did."""
    drawn: tuple[Message, ...]
    """The prompt of these tokens."""
    problem: str
    reward: float
    """Of its trajectory; in a preference, the mean value of the states after the answer."""
    credit: float | None
    """The agent's credit for its trajectory, if it was measured."""
    run: str
    """The run directory's name, or `gold`."""
    model: str
    """Who answered."""
    calls: tuple[ToolCall, ...] = ()
    """The tools that it calls, besides the answer or instead of one."""
    tools: tuple[ToolSpec, ...] = ()
    """What it might have called."""

    @property
    def key(self) -> Hashable:
        """What is learned, whatever ids a vendor gave to calls."""
        said = ((one.role, one.content, _named(one.calls)) for one in (*self.messages, self.said))
        return self.agent, tuple(said), self.tools

    @property
    def said(self) -> Message:
        """The answer as a message."""
        return Message(role="assistant", content=self.answer, calls=self.calls)


def _named(calls: Iterable[ToolCall]) -> tuple[tuple[str, str], ...]:
    return tuple((call.name, call.arguments) for call in calls)


class Keyed(Protocol):
    """What may be there twice."""

    @property
    def key(self) -> Hashable: ...


ItemT = TypeVar("ItemT", bound=Keyed)


@dataclass(frozen=True, slots=True)
class _Candidate:
    record: EpisodeRecord
    leaf: NodeRecord
    run: Run
    worth: float
    coin: int


def check_source(run: Run, task: str | None = None) -> None:
    """Raises ConfigError for a run that nothing may be learned from, or of another task."""
    check_texts(run)
    config, folder = run.config, run.folder
    splits = {str(config.get("split", "train")), *(one.split for one in run.episodes)} - {"train"}
    if splits:
        raise ConfigError(
            f"{folder} was played on {', '.join(sorted(splits))}, which measures what is learned: "
            "name runs on train"
        )
    if config.get("problem") is not None:
        raise ConfigError(f"{folder} was asked for an input of its own: name runs on train")
    if (name := config.get("baseline")) is not None:
        raise ConfigError(
            f"{folder} was played as baseline {name}, whose agents are not the team's: name runs "
            "of the team"
        )
    if task is not None and config.get("task") != task:
        raise ConfigError(
            f"{folder} is of task {config.get('task')}, and the team is of task {task}: name runs "
            "of one task"
        )


def winners(runs: Sequence[Run], choice: Choice) -> list[Lesson]:
    """Every agent's answers in its best trajectories, each once, the best trajectories first.

    Raises ConfigError if the runs have no trajectory to compare, or none that wins.
    """
    found = list[Lesson]()
    compared = 0
    for agent in _agents(runs):
        candidates = list(_candidates(runs, agent, choice))
        compared += len(candidates)
        candidates.sort(key=lambda one: (-one.worth, one.coin))
        for one in candidates[: math.ceil(choice.top * len(candidates))]:
            if _wins(one, choice):
                found += _lessons(one, agent)
    if not compared:
        raise ConfigError(
            f"nobody rated a trajectory of {named(runs)}: rate with `orchestry rate`, or choose "
            "another --by"
            if choice.by == "rating"
            else f"no credit was measured in {named(runs)}: choose another --by"
            if choice.by == "credit" and any(run.episodes for run in runs)
            else f"{named(runs)} has no finished trajectory: name other runs"
        )
    if not found:
        raise ConfigError(
            f"none of the best {choice.top:.0%} of trajectories of {named(runs)} has "
            f"{_needed(choice)}: lower --min-reward, raise --top, choose another --by, or name "
            "other runs"
        )
    return found


def _needed(choice: Choice) -> str:
    least = f"of at least {choice.min_reward:g}" if choice.min_reward > 0.0 else "above 0"
    return f"a reward {least}" + ("" if choice.by == "reward" else f" and {choice.by} above 0")


def named(runs: Sequence[Run]) -> str:
    """Their folders."""
    return ", ".join(str(run.folder) for run in runs)


def _agents(runs: Iterable[Run]) -> list[str]:
    """All agents that moved, in the order in which they first did."""
    return list(
        dict.fromkeys(
            turn.agent
            for run in runs
            for record in run.episodes
            for node in record.nodes
            for turn in node.turns
        )
    )


def _candidates(runs: Sequence[Run], agent: str, choice: Choice) -> Iterator[_Candidate]:
    """The finished trajectories with their worth for the agent."""
    for number, run in enumerate(runs):
        said = last_words(run.events) if choice.by == "rating" else {}
        for record in run.episodes:
            rated = {
                node: one.rating
                for (episode, node), one in said.items()
                if episode == record.episode and one.answers in ("", record.answers(node))
            }
            mean = record.mean_leaf_reward
            for leaf in record.leaves():
                worth: dict[By, float | None] = {
                    "reward": leaf.score.total,
                    "advantage": leaf.score.total - mean,
                    "credit": _credit(record, leaf.id, agent),
                    "rating": rated.get(leaf.id),
                }
                if (own := worth[choice.by]) is not None and TASK_ERROR not in leaf.score.tags:
                    coin = derive(choice.seed, "tie", number, record.episode, leaf.id)
                    yield _Candidate(record, leaf, run, own, coin)


def _credit(record: EpisodeRecord, leaf: str, agent: str) -> float | None:
    """The agent's credit; only the best and the worst trajectory of an episode have some."""
    found = (one.credit for one in record.credits if (one.leaf, one.agent) == (leaf, agent))
    return next(found, None)


def _wins(one: _Candidate, choice: Choice) -> bool:
    reward = one.leaf.score.total
    return reward >= choice.min_reward and reward > 0.0 and one.worth > TIE


def _lessons(one: _Candidate, agent: str) -> Iterator[Lesson]:
    run, reward = one.run.folder.absolute().name, one.leaf.score.total
    credit = _credit(one.record, one.leaf.id, agent)
    for turn in (turn for node in one.record.path(one.leaf.id) for turn in node.turns):
        if turn.agent == agent:
            found = lessons(turn, one.record.problem, run, reward)
            yield from (replace(each, credit=credit) for each in found)


def lessons(turn: Turn, problem: str, run: str, reward: float) -> Iterator[Lesson]:
    """What a turn teaches: its answer; of a move with tools each answer of the loop, with the calls
    and results before it in its prompt."""
    steps = turn.completion.steps
    for place, said in enumerate(turn.completion.answers):
        before = [message for step in steps[:place] for message in step.messages]
        shown = {"messages": (*turn.messages, *before), "completion": said}
        if (found := lesson(turn.model_copy(update=shown), problem, run, reward)) is not None:
            yield found


def lesson(turn: Turn, problem: str, run: str, reward: float) -> Lesson | None:
    """A turn's last answer as a lesson; None for one that no model gave, and where a call has no
    name, as weights may write it."""
    answer = turn.completion
    calls = [*answer.calls, *(call for one in turn.messages for call in one.calls)]
    empty = not (answer.text.strip() or answer.calls)
    if answer.failed or answer.stop in _NO_ANSWER or empty or not all(one.name for one in calls):
        return None
    return Lesson(
        agent=turn.agent,
        messages=turn.messages,
        answer=answer.text,
        ended=answer.stop in ("end", "calls"),
        tokens=answer.tokens,
        drawn=turn.messages,
        problem=problem,
        reward=reward,
        credit=None,
        run=run,
        model=answer.model,
        calls=answer.calls,
        tools=turn.tools,
    )


def bare(one: Lesson, team: Mapping[str, Member]) -> Lesson:
    """With the prompt of a team that has learned nothing: its system prompt and examples before the
    observation, which is a prompt's last message of a user; calls and results follow it. Raises as
    `of_team`."""
    one = of_team(one, team)
    member = team[one.agent]
    asked = max(n for n, message in enumerate(one.messages) if message.role == "user")
    system = [Message(role="system", content=member.system_prompt)] if member.system_prompt else []
    shown = [message for example in member.examples for message in example.messages]
    return replace(one, messages=(*system, *shown, *one.messages[asked:]))


def of_team(one: Lesson, team: Mapping[str, Member]) -> Lesson:
    """The lesson, with the agent's tools if it has some. Raises ConfigError for an agent that the
    team lacks, and for calls of tools that neither the run nor the team names."""
    if one.agent not in team:
        raise ConfigError(
            f"{one.run} has an agent {one.agent}, and the team is {', '.join(team)}: name runs of "
            "this team"
        )
    tools = one.tools or team[one.agent].tools
    if one.calls and not tools:
        raise ConfigError(
            f"{one.agent} calls tools in {one.run}, a run of an older orchestry that does not say "
            "what they are: play it again"
        )
    return replace(one, tools=tools)


def each_once(found: Iterable[ItemT]) -> list[ItemT]:
    """Equal answers to equal prompts count once; the first stays."""
    kept = dict[Hashable, ItemT]()
    for one in found:
        kept.setdefault(one.key, one)
    return list(kept.values())
