"""Pruning by property, and what schedules cost: best of n gets at least the calls of the beam."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.types import Limits, NodeId, Tools
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Beam, Candidate, Chains, Joint, Schedule, best_of_n, prune
from orchestry.sandbox import open_sandbox
from orchestry.task.base import BaseTask
from tests.toys import Duo, Scripted, Words, team

LEVELS = st.sampled_from([0.0, 0.5, 1.0])
POOLS = st.lists(st.tuples(st.sampled_from("pqr"), LEVELS), min_size=1, max_size=12).map(
    lambda rows: [Candidate(NodeId((p, i)), v) for i, (p, v) in enumerate(rows)]
)


@given(POOLS, st.integers(1, 12), st.integers())
def test_the_beam_keeps_the_best(pool: list[Candidate], width: int, seed: int) -> None:
    kept = prune(pool, width, seed)
    assert len(kept) == len(set(kept)) == min(width, len(pool))
    value = {candidate.id: candidate.value for candidate in pool}
    out = [value[c.id] for c in pool if c.id not in kept]
    assert not out or max(out) <= min(value[id] for id in kept)
    assert kept == prune(pool, width, seed)


@given(POOLS, st.integers(1, 12), st.integers())
def test_pruning_does_not_depend_on_the_other_values_of_ids(
    pool: list[Candidate], width: int, seed: int
) -> None:
    assert set(prune(pool, width, seed, exploration=1.0)) <= {candidate.id for candidate in pool}


def test_ties_are_kept_diverse_in_their_parents() -> None:
    pool = [Candidate(NodeId((parent, i)), 1.0) for parent in "abc" for i in range(4)]
    for seed in range(20):
        kept = prune(pool, 3, seed)
        assert {id[0] for id in kept} == {"a", "b", "c"}


def test_ties_are_broken_by_seed() -> None:
    pool = [Candidate(NodeId(("a", i)), 1.0) for i in range(4)]
    assert {prune(pool, 1, seed)[0] for seed in range(40)} == {
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("a", 3),
    }


def test_full_exploration_reaches_the_worst() -> None:
    pool = [Candidate(NodeId(("a", 0)), 1.0), Candidate(NodeId(("a", 1)), 0.0)]
    greedy = {prune(pool, 1, seed)[0] for seed in range(40)}
    curious = {prune(pool, 1, seed, exploration=1.0)[0] for seed in range(40)}
    assert greedy == {("a", 0)}
    assert curious == {("a", 0), ("a", 1)}


@given(st.integers(1, 8), st.integers(1, 8), POOLS)
def test_no_stage_draws_more_than_k_times_width(k: int, width: int, pool: list[Candidate]) -> None:
    beam = Beam(k, width)
    live = min(len(pool), k * width)
    assert live <= beam.samples(1, live) * live <= k * width or beam.samples(1, live) == k
    assert len(beam.prune(pool, 0)) <= k * width


def test_pruning_waits_while_all_siblings_tie() -> None:
    beam = Beam(k=3, width=2)
    tied = [Candidate(NodeId((p, i)), v) for p, v in (("a", 1.0), ("b", 0.5)) for i in range(3)]
    assert len(beam.prune(tied, 0)) == 6
    told = [*tied[:-1], Candidate(NodeId(("b", 2)), 0.7)]
    assert len(beam.prune(told, 0)) == 2


def test_a_pool_of_only_children_is_pruned_by_value() -> None:
    beam = Beam(k=2, width=1)
    pool = [Candidate(NodeId(("a", 0)), 0.1), Candidate(NodeId(("b", 0)), 0.9)]
    assert beam.prune(pool, 0) == [("b", 0)]


def test_after_a_tie_the_next_stage_spreads_the_same_calls() -> None:
    beam = Beam(k=4, width=2)
    assert beam.samples(0, 1) == 4
    assert beam.samples(1, 2) * 2 == 8
    assert beam.samples(2, 8) * 8 == 8


def test_chains_never_branch_after_the_root() -> None:
    chains = Chains(5)
    assert chains.samples(0, 1) == 5
    assert chains.samples(1, 5) == 1
    pool = [Candidate(NodeId((i,)), i / 5) for i in range(5)]
    assert chains.prune(pool, 0) == [(i,) for i in range(5)]


async def calls(task: BaseTask[Any], schedule: Schedule) -> int:
    """Samples of one episode in which no two answers are equal and none is as good as another."""
    number = count()
    policy = Scripted(lambda request: "a" * (next(number) % 10) + f" {next(number)}")
    async with open_sandbox(Limits()) as sandbox:
        rate = task_rater(task, Tools(sandbox))
        await Rollout(task, team(task), policy, rate, schedule).play(task.problems("train")[0], 0)
    return policy.calls


@pytest.mark.parametrize("joint", ["aligned", "cross"])
@pytest.mark.parametrize(("k", "width"), [(1, 1), (3, 2), (4, 3)])
@pytest.mark.parametrize("task", [Duo(), Words()], ids=["duo", "words"])
async def test_best_of_n_gets_what_the_beam_draws(
    task: BaseTask[Any], k: int, width: int, joint: Joint
) -> None:
    beam = Beam(k, width, joint=joint)
    chains = best_of_n(beam, task, task.problems("train")[0])
    spent, given = await calls(task, beam), await calls(task, chains)
    a_chain = await calls(task, best_of_n(Beam(1, 1), task, task.problems("train")[0]))
    assert spent <= given < spent + a_chain
