"""Contrasts: an agent's move in a good and in a bad trajectory of the same problem.

They depend only on committed episodes and people's ratings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from orchestry.core.tools import told_call
from orchestry.core.types import Message, NodeId, Turn
from orchestry.store.records import EpisodeRecord, NodeRecord

NO_RATINGS: Mapping[tuple[int, str], float] = {}


@dataclass(frozen=True, slots=True)
class Side:
    """One trajectory, and one move of the agent in it."""

    episode: int
    leaf: str
    value: float
    """The trajectory's value, in [0, 1]: a person's rating if there is one."""
    saw: str
    """The last user message of the agent's turn, and the results that a program told it since."""
    answered: str
    """What may serve as an example: '' where a program's tools led to it or are called by it."""
    told: str
    """The answer, and the calls of tools that led to it or are its answer."""
    feedback: str
    """The task's feedback on the whole work, and the judge's on the agent's move."""
    tags: tuple[str, ...]
    credit: float | None
    """The agent's credit; None if none was recorded."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One agent's move in a winner, and in the worst trajectory of the same problem."""

    agent: str
    problem: str
    winner: Side
    loser: Side

    @property
    def gap(self) -> float:
        """The winner's value minus the loser's; above 0."""
        return self.winner.value - self.loser.value


@dataclass(frozen=True, slots=True)
class Leaf:
    """A trajectory's last node, and its value: a person's rating if there is one."""

    record: EpisodeRecord
    node: NodeRecord
    value: float

    @property
    def place(self) -> tuple[int, NodeId]:
        return self.record.episode, self.node.place


def contrasts(
    records: Sequence[EpisodeRecord],
    agent: str,
    top: float,
    ratings: Mapping[tuple[int, str], float] = NO_RATINGS,
) -> tuple[Contrast, ...]:
    """The agent's moves in the `top` share of all leaf trajectories (at least one), each against
    its move in the worst leaf of the same problem; widest gap first.

    `ratings` has a person's number in [0, 1] by episode and leaf, which replaces the value. Among
    leaves of equal value, those with a worse leaf on the same problem come first, because they
    teach more. Pairs of equal value or with equal moves, and repetitions, are skipped.
    """
    leaves = [leaf for record in records for leaf in leaves_of(record, ratings)]
    worst = _worst(leaves)
    ranked = sorted(leaves, key=lambda x: (-x.value, worst[x.record.problem].value, x.place))
    winners = ranked[: max(1, round(top * len(ranked)))]
    found = dict[tuple[str, str, str], Contrast]()
    for winner in winners:
        contrast = _contrast(agent, winner, worst[winner.record.problem])
        if contrast is not None:
            key = (contrast.problem, contrast.winner.told, contrast.loser.told)
            found.setdefault(key, contrast)
    return tuple(sorted(found.values(), key=lambda contrast: -contrast.gap))


def varied(found: Sequence[Contrast], count: int) -> tuple[Contrast, ...]:
    """At most `count` contrasts: the first of every problem, then the second, and so on."""
    seen = dict[str, int]()
    ranked = list[tuple[int, int]]()
    for place, contrast in enumerate(found):
        seen[contrast.problem] = seen.get(contrast.problem, 0) + 1
        ranked.append((seen[contrast.problem], place))
    return tuple(found[place] for _, place in sorted(ranked)[:count])


def leaves_of(record: EpisodeRecord, ratings: Mapping[tuple[int, str], float]) -> list[Leaf]:
    """The leaf trajectories with a value."""
    found = []
    for node in record.leaves():
        value = ratings.get((record.episode, node.id), node.value)
        if value is not None:
            found.append(Leaf(record, node, value))
    return found


def _worst(leaves: Sequence[Leaf]) -> dict[str, Leaf]:
    """The leaf with the lowest value per problem, over all its episodes; the first, if tied."""
    worst = dict[str, Leaf]()
    for leaf in sorted(leaves, key=lambda leaf: (leaf.value, leaf.place)):
        worst.setdefault(leaf.record.problem, leaf)
    return worst


def _contrast(agent: str, winner: Leaf, loser: Leaf) -> Contrast | None:
    """None if both have the same value, or differ only in another agent's part."""
    if winner.value <= loser.value:
        return None
    moves = zip_longest(_moves(winner, agent), _moves(loser, agent))
    for good, bad in moves:
        if good is None or bad is None:  # one of the trajectories ended earlier
            return None
        if good[1].completion.action != bad[1].completion.action:
            sides = _side(agent, winner, *good), _side(agent, loser, *bad)
            return Contrast(agent, winner.record.problem, *sides)
    return None


def _moves(leaf: Leaf, agent: str) -> list[tuple[NodeRecord, Turn]]:
    path = leaf.record.path(leaf.node.id)
    return [(node, turn) for node in path for turn in node.turns if turn.agent == agent]


def _side(agent: str, leaf: Leaf, node: NodeRecord, turn: Turn) -> Side:
    credit = next(
        (c.credit for c in leaf.record.credits if (c.agent, c.leaf) == (agent, leaf.node.id)), None
    )
    saw, results = _saw(turn.messages)
    said = dict.fromkeys(text for text in (leaf.node.score.feedback, node.judge_feedback) if text)
    return Side(
        episode=leaf.record.episode,
        leaf=leaf.node.id,
        value=leaf.value,
        saw="\n".join([saw, *results]),
        answered="" if results or turn.completion.calls else turn.completion.text,
        told=turn.completion.told,
        feedback="\n".join(said),
        tags=leaf.node.score.tags,
        credit=credit,
    )


def _saw(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The last user message, and the calls with their results after it."""
    last = max((n for n, one in enumerate(messages) if one.role == "user"), default=None)
    if last is None:
        return "", []
    calls = {call.id: call for one in messages for call in one.calls}
    later = [one for one in messages[last + 1 :] if one.call in calls]
    return messages[last].content, [told_call(calls[one.call], one.content) for one in later]
