"""Preference pairs: the better and the worse answers of one agent to one prompt.

The samples of one state are at hand in every search tree and in every group of a local run; what
the search found below each of them says which answer was better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestry.core.errors import ConfigError
from orchestry.core.seeds import derive
from orchestry.core.tools import ToolSpec
from orchestry.core.types import TASK_ERROR, Message
from orchestry.ext.distil.winners import TIE, Choice, Lesson, lesson, named
from orchestry.store.records import EpisodeRecord, GroupRecord, NodeRecord
from orchestry.store.run import Run

_Prompt = tuple[str, tuple[Message, ...], tuple[ToolSpec, ...]]
"""An agent, what it saw, and what it might call."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers of an agent to one prompt. Their `reward` is the mean value of the states that
    they led to."""

    better: Lesson
    worse: Lesson

    @property
    def agent(self) -> str:
        """Whose they are."""
        return self.better.agent

    @property
    def key(self) -> Hashable:
        """What is learned."""
        return self.better.key, self.worse.key

    @property
    def problem(self) -> str:
        """The problem's id."""
        return self.better.problem

    @property
    def run(self) -> str:
        """Where they were given."""
        return self.better.run

    @property
    def model(self) -> str:
        """Who gave the better one."""
        return self.better.model

    @property
    def reward(self) -> float:
        """Of the better one."""
        return self.better.reward


def preferences(
    runs: Sequence[Run], choice: Choice, shown: Callable[[Lesson], Lesson]
) -> list[Preference]:
    """The best answer with the worst, the second best with the second worst, and so on, for each
    agent in each state; those with the largest differences first.

    `choice.top` is the share of an agent's pairs; `shown` gives a lesson the prompt that is to be
    learned. Raises ConfigError if there is no pair.
    """
    found: dict[str, list[tuple[float, int, Preference]]] = {}
    for number, run in enumerate(runs):
        for record in run.episodes:
            for place, pair in enumerate(_pairs(run, record, shown)):
                if pair.reward >= choice.min_reward:
                    gap = pair.better.reward - pair.worse.reward
                    coin = derive(choice.seed, "tie", number, record.episode, place)
                    found.setdefault(pair.agent, []).append((-gap, coin, pair))
    if not found:
        raise ConfigError(
            f"{named(runs)} has no two answers to one prompt of which one led to more: lower "
            "--min-reward, name runs with several samples per state, or choose --method sft"
        )
    return [
        pair
        for mine in found.values()
        for _, _, pair in sorted(mine, key=lambda one: one[:2])[: math.ceil(choice.top * len(mine))]
    ]


def _pairs(
    run: Run, record: EpisodeRecord, shown: Callable[[Lesson], Lesson]
) -> Iterator[Preference]:
    """The pairs of one episode."""
    nodes, name = {node.id: node for node in record.nodes}, run.folder.absolute().name
    for group in record.groups:
        lessons = [shown(one) for one in _answers(record, group, nodes, name)]
        by_prompt: dict[_Prompt, dict[Hashable, list[Lesson]]] = {}
        for one in lessons:
            answers = by_prompt.setdefault((one.agent, one.messages, one.tools), {})
            answers.setdefault(one.key, []).append(one)
        for answers in by_prompt.values():
            ranked = sorted((_mean(equal) for equal in answers.values()), key=lambda o: -o.reward)
            for better, worse in zip(ranked[: len(ranked) // 2], ranked[::-1], strict=False):
                if better.reward - worse.reward > TIE:
                    yield Preference(better, worse)


def _answers(
    record: EpisodeRecord, group: GroupRecord, nodes: dict[str, NodeRecord], run: str
) -> Iterator[Lesson]:
    """Every sample of the group, with the value of the state that it led to; none that led to a
    state that could not be scored."""
    unscored = _unscored(nodes)
    for child, value in zip(group.children, group.values, strict=True):
        if child in unscored:
            continue
        for turn in nodes[child].turns:
            if (found := lesson(turn, record.problem, run, value)) is not None:
                yield found


def _unscored(nodes: dict[str, NodeRecord]) -> set[str]:
    """The states that the task could not score, and those before them, into whose values its 0
    went."""
    found = set[str]()
    for node in nodes.values():
        place: str | None = node.id if TASK_ERROR in node.score.tags else None
        while place is not None and place not in found:
            found.add(place)
            place = nodes[place].parent
    return found


def _mean(equal: Sequence[Lesson]) -> Lesson:
    """Samples with one answer as one lesson, with their mean value."""
    return replace(equal[0], reward=math.fsum(one.reward for one in equal) / len(equal))
