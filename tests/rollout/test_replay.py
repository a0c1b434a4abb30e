"""Replays on scripted policies and through the real gateway: what they ask, cost and find."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript
from orchestry.core.config import CreditConfig, FakeConfig
from orchestry.core.seeds import derive
from orchestry.core.types import ROOT, Limits, Member, NodeId, Policy, Request, Tree
from orchestry.models.fake import FakeProvider
from orchestry.rollout.replay import Credited, Replays, give_credit
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Beam, Chains, Schedule
from orchestry.rollout.tree import best_leaf, episode_record
from orchestry.rollout.values import StateValues
from orchestry.sandbox import open_sandbox
from orchestry.store.records import CreditRecord
from tests.models.scripted import Run
from tests.toys import Duo, Pair, Scripted, Words, team

TOOLS = Tools(sandbox=open_sandbox(Limits()))
BEAM = Beam(k=4, width=2)


class Encore(Duo):
    """Two rounds of Duo; the reward is the share of rounds in which both agreed."""

    name: ClassVar[str] = "encore"

    def to_act(self, state: Pair) -> tuple[str, ...]:
        return () if len(state.said) == 4 else ("left", "right")

    def step(self, state: Pair, actions: Mapping[str, str]) -> Pair:
        return replace(state, said=(*state.said, *sorted(actions.items())))

    async def evaluate(self, state: Pair, tools: Tools) -> Score:
        texts = [text for _, text in state.said]
        same = sum(a == b for a, b in zip(texts[::2], texts[1::2], strict=True))
        return self.score(quality=same / 2)


class Until(TeamTask):
    """One agent speaks until it says nothing, eight times at most; how often decides the reward."""

    name: ClassVar[str] = "until"
    agents: ClassVar[tuple[AgentSpec, ...]] = (AgentSpec(role="speaker"),)

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(id=split, prompt="speak", split=split)]

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        said = state.said
        return () if len(said) == 8 or (said and not said[-1][1]) else ("speaker",)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        return self.score(quality=len(state.said) / 8)


def letters(request: Request) -> str:
    """Between none and four 'a's, by seed, agent and sample."""
    return "a" * (derive(request.seed, request.agent, request.sample_index) % 5)


def rollout_of(task: Any, policy: Policy, schedule: Schedule = BEAM) -> Rollout[Any]:
    members: dict[str, Member] = team(task)
    return Rollout(task, members, policy, task_rater(task, TOOLS), schedule)


async def credited(
    rollout: Rollout[Any], share: float, seed: int = 1
) -> tuple[Tree[Any], Credited]:
    tree = await rollout.play(rollout.task.problems("train")[0], seed)
    return tree, await give_credit(rollout, tree, CreditConfig(share=share))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([Words, Duo, Encore, Until]),
    st.floats(0, 1),
    st.integers(0, 1000),
    st.sampled_from([BEAM, Beam(k=2, width=1, joint="cross"), Chains(3)]),
)
def test_the_share_is_never_passed_and_credits_add_up(
    task: type[Any], share: float, seed: int, schedule: Schedule
) -> None:
    policy = Scripted(letters)
    rollout = rollout_of(task(), policy, schedule)
    tree, found = asyncio.run(credited(rollout, share, seed))
    assert policy.calls == len(tree.answers) + found.calls
    assert found.calls <= share * len(tree.answers)
    again = asyncio.run(credited(rollout, share, seed))[1]
    assert again == found
    for leaf in {record.leaf for record in found.records}:
        rows = [record for record in found.records if record.leaf == leaf]
        assert [row.agent for row in rows] == [spec.role for spec in rollout.task.agents]
        assert all(-1 <= row.low <= row.high <= 1 for row in rows)
        assert abs(sum(row.credit for row in rows)) <= 1.0 + 1e-9


async def test_who_makes_no_difference_to_the_best_chain_gets_no_credit() -> None:
    """The best of four was drawn with luck, so its own return must not tell what the states on its
    way were worth."""
    rollout, found = rollout_of(Words(), Scripted(letters), Chains(4)), list[CreditRecord]()
    for seed in range(200):
        tree, one = await credited(rollout, 1.0, seed)
        found += [record for record in one.records if record.leaf == str(best_leaf(tree).id)]
    means = {
        role: fmean(record.credit for record in found if record.agent == role)
        for role in ("writer", "reviewer", "refactorer")
    }
    assert abs(means["writer"]) < 0.02
    assert abs(means["reviewer"]) < 0.02
    assert means["refactorer"] > 0.1


def test_go_on_keeps_to_its_calls_and_says_which_plays_are_not_over() -> None:
    rollout = rollout_of(Words(), Scripted(letters))
    tree = asyncio.run(rollout.play(rollout.task.problems("train")[0], 1))
    starts = [tree.root.trajectory] * 2
    whole = asyncio.run(rollout.go_on(starts, [1, 2], 6))
    assert [len(end.turns) for end in whole] == [3, 3]
    cut = asyncio.run(rollout.go_on(starts, [1, 2], 5))
    assert [len(end.turns) for end in cut] == [3, 2]
    assert [rollout.actors(end) for end in cut] == [(), ("refactorer",)]
    assert cut[0] == whole[0]


async def test_one_replay_number_is_one_seed_whatever_the_state() -> None:
    policy = Scripted(letters)
    rollout = rollout_of(Words(), policy)
    tree = await rollout.play(rollout.task.problems("train")[0], 1)
    searched = {request.seed for batch in policy.batches for request in batch}
    before = len(policy.batches)
    siblings = list(dict.fromkeys(tree.groups[0].children))[:2]
    replays = Replays(rollout, tree)
    await replays.play([*siblings, siblings[0]], 100)
    stages = policy.batches[before:]
    assert [len(stage) for stage in stages] == [3, 3]
    for stage in stages:
        first, second, again = (request.seed for request in stage)
        assert first == second != again
        assert not {first, again} & searched
    assert {state: len(found) for state, found in replays.returns.items()} == {
        siblings[0]: 2,
        siblings[1]: 1,
    }


async def test_agents_at_once_are_told_apart_for_nothing() -> None:
    """The left always says x, the right mostly y: the best leaf is the right's merit."""

    def answer(request: Request) -> str:
        return "x" if request.agent == "left" or request.sample_index == 3 else "y"

    policy = Scripted(answer)
    _, found = await credited(rollout_of(Duo(), policy), share=0.0)
    assert policy.calls == 8
    assert found.calls == 0
    best = {r.agent: r.credit for r in found.records[:2]}
    assert best == {"left": pytest.approx(0.0), "right": pytest.approx(0.75)}
    worst = {r.agent: r.credit for r in found.records[2:]}
    assert worst == {"left": pytest.approx(0.0), "right": pytest.approx(-0.25)}


async def test_cross_and_aligned_samples_mix_to_the_same_credits() -> None:
    found = []
    for joint in ("aligned", "cross"):
        schedule = Beam(k=4, width=2, joint=joint)
        tree, credit = await credited(rollout_of(Duo(), Scripted(letters), schedule), 0.0, seed=3)
        best = {r.agent: round(r.credit, 9) for r in credit.records[:2]}
        found.append((tree.nodes[NodeId.of(credit.records[0].leaf)].number, best))
    assert found[0] == found[1]


async def test_extra_joint_samples_join_the_mix() -> None:
    rollout = rollout_of(Duo(), Scripted(letters))
    tree = await rollout.play(rollout.task.problems("train")[0], 1)
    replays = Replays(rollout, tree)
    await replays.play([ROOT, ROOT], 4)
    leaf = tree.leaves[0]
    mixes = await replays.mix([leaf.id])
    assert len(mixes[leaf.id]) == 6**2
    own = {mix.scores[-1] for mix in mixes[leaf.id]}
    assert own == {leaf.number}


async def test_unfinished_joint_stages_telescope() -> None:
    tree, found = await credited(rollout_of(Encore(), Scripted(letters)), share=0.0, seed=5)
    leaf = found.records[0].leaf
    replays = Replays(rollout_of(Encore(), Scripted(letters)), tree)
    mixes = await replays.mix([NodeId.of(leaf)])
    assert len(mixes) == 2
    total = sum(record.credit for record in found.records if record.leaf == leaf)
    root = StateValues(tree, {}).known(ROOT).mean
    assert total == pytest.approx(tree.nodes[NodeId.of(leaf)].number - root, abs=0.25)


async def test_other_methods_ask_for_nothing() -> None:
    for method in ("siblings", "equal"):
        policy = Scripted(letters)
        rollout = rollout_of(Words(), policy)
        tree = await rollout.play(rollout.task.problems("train")[0], 1)
        found = await give_credit(rollout, tree, CreditConfig(method=method, share=1.0))
        assert policy.calls == len(tree.answers)
        assert found.calls == 0
        assert len(found.records) in (3, 6)


async def test_credit_goes_through_the_gateway_and_a_resume_asks_nothing(tmp_path: Path) -> None:
    run, records = Run(tmp_path), []
    for _ in range(2):
        async with run.open(FakeProvider(FakeConfig(), seed=0)) as gateway:
            task = Words()
            members = {role: replace(m, model="fake-1") for role, m in team(task).items()}
            rollout = Rollout(task, members, gateway, task_rater(task, TOOLS), BEAM)
            tree, found = await credited(rollout, share=1.0)
            records.append(episode_record(tree, 0, found.records, found.calls))
            usage = gateway.usage()
    assert records[0] == records[1]
    assert records[0].credit_calls > 0
    calls = dict.fromkeys(("act", "credit"), 0)
    for row in usage:
        calls[row.purpose] += row.calls
    answered = [event for event in run.events if event.kind == "answered"]
    assert calls["act"] == len(tree.answers)
    assert 0 < calls["credit"] <= records[0].credit_calls
    assert len(answered) == sum(calls.values())
