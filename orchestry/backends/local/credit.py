"""Per-agent credit by replay: what a joint action returned beside what would have come of it, had
one agent alone acted otherwise.

The difference is that agent's advantage. Its baseline does not depend on its own action, so the
gradient's mean is that of the team's return, without the noise of what the others did: the
counterfactual advantage of COMA (arXiv 1705.08926, equation 4), its expectation taken by replays
instead of a critic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestry.core.seeds import derive
from orchestry.core.types import NodeId, Trajectory, Tree, Turn
from orchestry.rollout.rollout import Rollout

Counterfactuals = Mapping[tuple[NodeId, str], Sequence[float]]
"""By the state that a joint action led to, and an agent of it: the final scores, in [0, 1], of the
plays in which that agent acted otherwise."""


@dataclass(frozen=True, slots=True)
class _Move:
    """A joint action that was played, and other actions of each agent in the same state."""

    state: Trajectory[Any]
    child: NodeId
    turns: tuple[Turn, ...]
    others: tuple[tuple[Turn, ...], ...]


async def counterfactuals(rollout: Rollout[Any], tree: Tree[Any]) -> Counterfactuals:
    """For every joint action of a finished tree of aligned chains.

    What else an agent might have done is what its siblings did in the same state; without siblings
    it is asked once more. The others' actions stay, and the play goes on to its end under
    seeds that all plays of a joint action have in common.
    """
    rollout = replace(rollout, purpose="credit", judge=None)
    starts, seeds, owners = list[Trajectory[Any]](), list[int](), list[tuple[NodeId, str]]()
    for move in await _moves(rollout, tree):
        for place, turns in enumerate(move.others):
            agent = move.turns[place].agent
            for number, turn in enumerate(turns):
                mixed = (*move.turns[:place], turn, *move.turns[place + 1 :])
                start = rollout.child(move.state, 0, mixed)
                starts.append(
                    replace(start, id=move.state.id.child(f"{move.child[-1]}.{agent}.{number}"))
                )
                seeds.append(derive(move.state.seed, "otherwise", move.child))
                owners.append((move.child, agent))
    await rollout.score_for_agents(starts, range(len(starts)))  # as the real plays were
    ends = await rollout.go_on(starts, seeds)
    scores = defaultdict[tuple[NodeId, str], list[float]](list)
    for owner, score in zip(owners, await rollout.rate(ends), strict=True):
        scores[owner].append(score.total)
    return scores


async def _moves(rollout: Rollout[Any], tree: Tree[Any]) -> list[_Move]:
    """All joint actions; those without siblings with one new action per agent, drawn together."""
    alone = [group for group in tree.groups if len(group.children) == 1]
    drawn = iter(
        await _drawn(
            rollout, [(tree.nodes[g.parent].trajectory, a) for g in alone for a in g.agents]
        )
    )
    found = list[_Move]()
    for group in tree.groups:
        state = tree.nodes[group.parent].trajectory
        played = [node.trajectory.turns[-len(group.agents) :] for node in tree.siblings(group)]
        for place, (child, turns) in enumerate(zip(group.children, played, strict=True)):
            siblings = played[:place] + played[place + 1 :]
            others = (
                tuple(zip(*siblings, strict=True))
                if siblings
                else tuple((next(drawn),) for _ in group.agents)
            )
            found.append(_Move(state, child, turns, others))
    return found


async def _drawn(rollout: Rollout[Any], asked: Sequence[tuple[Trajectory[Any], str]]) -> list[Turn]:
    requests = [
        rollout.request(state, agent, derive(state.seed, "otherwise", state.id))
        for state, agent in asked
    ]
    answers = await rollout.policy.sample(requests, 1) if requests else []
    return [
        Turn(agent=request.agent, messages=request.messages, completion=answer)
        for request, (answer,) in zip(requests, answers, strict=True)
    ]
