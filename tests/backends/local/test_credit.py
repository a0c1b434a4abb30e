"""Credit by replay: an agent's advantage is what its own action added, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry import Score, Tools, Transcript
from orchestry.backends.local.batch import Batch, gather
from orchestry.backends.local.credit import Counterfactuals, counterfactuals
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.types import Completion, Request, Tree
from orchestry.engine.run import prepare
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from tests.backends.local.test_batch import TOOLS, Rounds, Spelled
from tests.toys import Duo, Pair, team

GROUP = 4


class Counted(Duo):
    """The reward is a weighted count of the letters of each agent."""

    worth: ClassVar[Mapping[str, float]] = {"left": 1.0, "right": 0.0}

    async def evaluate(self, state: Pair, tools: Tools) -> Score:
        said = {role: len(text) for role, text in state.said}
        return self.score(quality=sum(self.worth[r] * n for r, n in said.items()) / 8)


class Product(Duo):
    """Each agent's letters count as often as the other's."""

    async def evaluate(self, state: Pair, tools: Tools) -> Score:
        left, right = (len(text) for _, text in state.said)
        return self.score(quality=left * right / 64)


def played(task: Any, seed: int = 1) -> tuple[Tree[Any], Counterfactuals, Rollout[Any]]:
    rollout = Rollout(task, team(task), Spelled(), task_rater(task, TOOLS), Chains(GROUP))

    async def both() -> tuple[Tree[Any], Counterfactuals]:
        tree = await rollout.play(task.problems("train")[0], seed)
        return tree, await counterfactuals(rollout, tree)

    return *asyncio.run(both()), rollout


def batch(tree: Tree[Any], credits: Counterfactuals) -> Batch:
    return gather([tree], rewards="final", skip=False, credits=[credits])


@given(st.integers(0, 10_000))
def test_an_agent_that_changes_nothing_has_no_advantage_at_all(seed: int) -> None:
    """By the joint return it would have that of its partner's luck."""
    tree, credits, _ = played(Counted(), seed)
    samples = batch(tree, credits).samples
    assert {s.advantage for s in samples if s.agent == "right"} == {0.0}
    left = [len(s.ids) - 1 for s in samples if s.agent == "left"]
    others = [(fsum(left) - n) / (GROUP - 1) for n in left]
    expected = [(n - other) / 8 for n, other in zip(left, others, strict=True)]
    found = [s.advantage for s in samples if s.agent == "left"]
    assert found == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 10_000))
def test_the_partners_action_stays_as_it_was(seed: int) -> None:
    """Over all pairs by hand: what this action adds, beside this very action of the partner."""
    tree, credits, _ = played(Product(), seed)
    samples = batch(tree, credits).samples
    said = {
        role: [len(s.ids) - 1 for s in samples if s.agent == role] for role in ("left", "right")
    }
    for role, partner in (("left", "right"), ("right", "left")):
        found = [s.advantage for s in samples if s.agent == role]
        for g, advantage in enumerate(found):
            others = [said[role][j] * said[partner][g] / 64 for j in range(GROUP) if j != g]
            mine = said[role][g] * said[partner][g] / 64
            assert advantage == pytest.approx(mine - sum(others) / len(others), abs=1e-12)


def test_where_an_agent_has_no_siblings_it_is_asked_again_and_the_play_goes_on() -> None:
    """Rounds: writer, reviewer, refactorer, twice; only the writer's first move has siblings."""
    task = Rounds()
    tree, credits, rollout = played(task, seed=3)
    joint = [(child, group.agents) for group in tree.groups for child in group.children]
    assert set(credits) == {(child, agent) for child, agents in joint for agent in agents}
    for group in tree.groups:
        for child in group.children:
            for agent in group.agents:
                assert len(credits[child, agent]) == max(1, len(group.children) - 1)
    # The last move of a chain: the score is that of the other text, read off by playing it.
    last = max((leaf.id for leaf in tree.leaves), key=len)
    state = tree.nodes[last.path[-2]].trajectory
    (agent,) = rollout.actors(state)
    again = asyncio.run(counterfactuals(rollout, tree))
    assert again == credits  # common seeds: a replay is a function of the run's seed
    assert len(credits[last, agent]) == 1


class Told(Rounds):
    """Each agent is told what the state was worth before it acts."""

    def told(self, state: Transcript, score: Score) -> Transcript:
        return replace(state, said=(*state.said, ("told", f"{score.total:.1f}")))

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        return super().to_act(replace(state, said=tuple(s for s in state.said if s[0] != "told")))


class Heard(Spelled):
    """Keeps the prompts of replays."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        self.prompts += [r.messages[-1].content for r in requests if r.purpose == "credit"]
        return await super().sample(requests, n)


def test_agents_are_told_in_a_replay_what_they_are_told_in_a_play() -> None:
    """Of the other action too, which no play has scored."""
    task, policy = Told(), Heard()
    rollout = Rollout(task, team(task), policy, task_rater(task, TOOLS), Chains(GROUP))

    async def both() -> None:
        await counterfactuals(rollout, await rollout.play(task.problems("train")[0], 1))

    asyncio.run(both())
    moves = [prompt.count(" wrote:") - prompt.count("told wrote:") for prompt in policy.prompts]
    assert max(moves) > 2
    assert [prompt.count("told wrote:") for prompt in policy.prompts] == moves


def test_batches_of_joint_returns_are_what_they_were() -> None:
    tree, _, _ = played(Counted())
    assert gather([tree]).actions == {"left": GROUP, "right": GROUP}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["learn.rewards=turns"], r"learn\.rewards=turns: set it to final"),
        (["learn.discount=0.9"], r"learn\.discount=0\.9: set it to 1\.0"),
        (["learn.baseline=leave_one_out"], r"learn\.baseline=leave_one_out: set it"),
        (["learn.normalise=true"], r"learn\.normalise=True: set it to False"),
        (["search.joint=cross"], r"needs aligned joint actions: leave out search\.joint"),
    ],
)
def test_what_does_not_go_with_replays_is_refused(sets: list[str], message: str) -> None:
    pytest.importorskip("torch")
    replays = ["backend=local", "task=tldr", "learn.credit=replay"]
    with pytest.raises(ConfigError, match=message):
        prepare(resolve([], [*replays, *sets]))
