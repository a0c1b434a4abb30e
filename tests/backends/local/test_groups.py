"""Groups of different sizes and trees of samples: the gradient's mean is that of equal groups and
of chains, by enumeration of all that can be drawn.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestry
from orchestry import AgentSpec, Problem, Score, TeamTask, Tools, Transcript
from orchestry.backends.local.batch import Batch, gather
from orchestry.backends.local.groups import LEAST, allocate, group_sizes, variances
from orchestry.backends.local.magrpo import Baseline
from orchestry.core.types import Completion, Limits, Part, Request, Tokens, Tree
from orchestry.engine.estimate import estimate
from orchestry.engine.run import resume
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Branching, Chains, Schedule
from orchestry.sandbox import open_sandbox
from orchestry.store.records import EpisodeRecord, NodeRecord
from tests.backends.letters import EVERY, TASK, artefacts, config, learned, write_task
from tests.toys import team

TOOLS = Tools(sandbox=open_sandbox(Limits()))
History = tuple[int, ...]
Gradient = dict[History, float]


class Bits(TeamTask):
    """One agent writes 0 or 1 in every round; `TABLE` says what the score is after each."""

    name: ClassVar[str] = "bits"
    agents: ClassVar[tuple[AgentSpec, ...]] = (AgentSpec(role="a"),)
    TABLE: ClassVar[Mapping[str, float]] = {}

    def problems(self, split: Any) -> Sequence[Problem]:
        return [Problem(id=str(n), prompt=str(n), split=split) for n in range(2)]

    def observe(self, state: Transcript, agent: str) -> str:
        return state.problem.id + "".join(text for _, text in state.said)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        value = self.TABLE[self.observe(state, "a")]
        return Score(parts=(Part(name="value", value=value),))


class Once(Bits):
    """A bandit for each of two problems."""

    TABLE: ClassVar[Mapping[str, float]] = {"00": 0.1, "01": 0.9, "10": 0.4, "11": 0.7}


class Twice(Bits):
    """Two turns, in which the worth of the second bit depends on the first."""

    rounds: ClassVar[int] = 2
    TABLE: ClassVar[Mapping[str, float]] = {
        "00": 0.2,
        "01": 0.5,
        "000": 0.1,
        "001": 0.9,
        "010": 0.6,
        "011": 0.3,
    }


CHANCE = {"0": 0.3, "1": 0.6, "00": 0.25, "01": 0.7}
"""Of a 1, by what is seen; the logit of each is a parameter."""


class Dealt:
    """A policy that answers what it is dealt, in order."""

    def __init__(self, bits: Iterator[int]) -> None:
        self.bits = bits

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request) for _ in range(n)] for request in requests]

    def _answer(self, request: Request) -> Completion:
        bit = next(self.bits)
        seen = tuple(ord(letter) for letter in request.messages[-1].content)
        tokens = Tokens(prompt_ids=seen, ids=(bit,), logprobs=(-1.0,))
        return Completion(text=str(bit), model="m", tokens=tokens)


def played(task: Any, ways: Sequence[Schedule], bits: Iterator[int]) -> list[Tree[Any]]:
    """Each problem by its schedule, with these answers."""

    async def all_of_them() -> list[Tree[Any]]:
        found = []
        for problem, way in zip(task.problems("train"), ways, strict=False):
            rollout = Rollout(task, team(task), Dealt(bits), task_rater(task, TOOLS), way)
            found.append(await rollout.play(problem, 1))
        return found

    return asyncio.run(all_of_them())


def gradient(batch: Batch) -> Gradient:
    """Of minus the loss, by the logit of what each history saw."""
    found = defaultdict[History, float](float)
    for one in batch.samples:
        p = CHANCE["".join(map(chr, one.prompt_ids))]
        found[one.prompt_ids] += one.advantage * (one.ids[0] - p) / batch.actions["a"]
    return found


def chance(trees: Sequence[Tree[Any]]) -> float:
    """Of all that was drawn."""
    turns = [
        node.trajectory.turns[-1]
        for t in trees
        for node in t.nodes.values()
        if node.id.parent is not None
    ]
    ones = [(CHANCE[turn.messages[-1].content], turn.completion.text == "1") for turn in turns]
    return prod(p if one else 1.0 - p for p, one in ones)


def expected(
    task: Any,
    ways: Sequence[Schedule] | Callable[[Sequence[int]], Sequence[Schedule]],
    draws: int,
    **how: Any,
) -> Gradient:
    """The mean gradient over all that can be drawn; `ways` may depend on what is drawn."""
    total, mass = defaultdict[History, float](float), 0.0
    for bits in product((0, 1), repeat=draws):
        chosen = ways(bits) if callable(ways) else ways
        trees = played(task, chosen, iter(bits))
        weight = chance(trees)
        used = sum(len(tree.nodes) - 1 for tree in trees)
        weight /= 2 ** (draws - used)  # the bits that nobody drew
        mass += weight
        for history, value in gradient(gather(trees, **how)).items():
            total[history] += weight * value
    assert mass == pytest.approx(1.0)
    return dict(total)


def close(one: Gradient, other: Gradient) -> bool:
    return all(one[key] == pytest.approx(other[key], abs=1e-12) for key in one | other)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_groups_of_any_sizes_have_the_mean_gradient_of_equal_ones(baseline: Baseline) -> None:
    plain = expected(Once(), [Chains(3), Chains(3)], 6, baseline=baseline)
    sizes = [Chains(2), Chains(4)]
    found = expected(Once(), sizes, 6, baseline=baseline, shares=True, like=3)
    assert close(found, plain)
    naive = expected(Once(), sizes, 6, baseline=baseline)
    assert not close(naive, plain), "the larger group would count twice"
    of_bandit = {(ord("0"),): 0.3 * 0.7 * 0.8, (ord("1"),): 0.6 * 0.4 * 0.3}
    scale = 0.5 * (2 / 3 if baseline == "mean" else 1.0)
    assert close(plain, {key: scale * value for key, value in of_bandit.items()})


def test_sizes_by_a_groups_own_samples_would_turn_the_gradient() -> None:
    """Going on only where the first two differ."""

    def by_looking(bits: Sequence[int]) -> list[Schedule]:
        return [Chains(2 if bits[0] == bits[1] else 4), Chains(2)]

    plain = expected(Once(), [Chains(4), Chains(2)], 6, baseline="leave_one_out", shares=True)
    looked = expected(Once(), by_looking, 6, baseline="leave_one_out", shares=True)
    first, second = (looked[key] / plain[key] for key in sorted(plain))
    assert second == pytest.approx(1.0)
    assert abs(first - 1.0) > 0.1


@pytest.mark.parametrize("grouping", ["history", "turn"])
def test_a_trees_default_baseline_weighs_stages_and_states_alike(grouping: Any) -> None:
    """The mean over a group holds a share of the action's own return: half of it in the first
    stage's group of 2, a quarter in the second one's group of 4, which is how large a group of
    equal histories may be by chance too."""
    how = {"rewards": "final", "grouping": grouping, "baseline": "mean", "shares": True}
    found = expected(Twice(), [Branching(2, 2)], 6, like=2, **how)
    chains = expected(Twice(), [Chains(2)], 4, rewards="final", baseline="mean")
    assert close(found, chains)
    assert close(found, {key: value / 4 for key, value in exact(turns=False).items()})
    assert not close(expected(Twice(), [Branching(2, 2)], 6, **how), chains)


@pytest.mark.slow
@pytest.mark.parametrize("rewards", ["turns", "final", "differences"])
@pytest.mark.parametrize("grouping", ["history", "turn"])
def test_a_trees_mean_gradient_is_the_policy_gradient(rewards: Any, grouping: Any) -> None:
    how = {"rewards": rewards, "grouping": grouping, "baseline": "leave_one_out", "shares": True}
    found = expected(Twice(), [Branching(2, 2)], 6, **how)
    assert close(found, {key: value / 2 for key, value in exact(rewards == "turns").items()})


def exact(turns: bool) -> Gradient:
    """The gradient of the mean return, by the logits, written out."""

    def worth(history: str) -> float:
        own = Twice.TABLE.get(history, 0.0) if turns or len(history) == 3 else 0.0
        return own + (after(history) if len(history) < 3 else 0.0)

    def after(history: str) -> float:
        p = CHANCE[history]
        return p * worth(history + "1") + (1 - p) * worth(history + "0")

    reach = {"0": 1.0, "00": 1 - CHANCE["0"], "01": CHANCE["0"]}
    return {
        tuple(map(ord, h)): r * CHANCE[h] * (1 - CHANCE[h]) * (worth(h + "1") - worth(h + "0"))
        for h, r in reach.items()
    }


def test_chains_grouped_by_history_learn_less_than_a_tree() -> None:
    """Of two chains, the second actions have a sibling only where the first ones agree."""
    how: dict[str, Any] = {"grouping": "history", "rewards": "final", "baseline": "leave_one_out"}
    chains = expected(Twice(), [Chains(2)], 4, **how)
    whole = exact(turns=False)
    for late in ("00", "01"):
        key = tuple(map(ord, late))
        assert abs(chains[key]) < 0.8 * abs(whole[key] / 2)


def test_the_return_of_a_state_is_the_mean_over_what_was_drawn_in_it() -> None:
    """Not over the leaves below it: a branch that ends early counts as much as its sibling."""

    class Short(Bits):
        rounds = 3
        TABLE: ClassVar[Mapping[str, float]] = {
            "00": 0.2,
            "01": 0.0,
            "010": 0.8,
            "011": 0.0,
            "0110": 0.3,
            "0111": 0.1,
        }

        def to_act(self, state: Transcript) -> tuple[str, ...]:
            return () if state.last("a") == "0" else super().to_act(state)

    trees = played(Short(), [Branching(2, 3)], iter([0, 1, 0, 1, 0, 1]))
    found = gather(trees, rewards="final", grouping="history")
    advantages = {
        "".join(map(chr, s.prompt_ids)) + str(s.ids[0]): s.advantage for s in found.samples
    }
    assert advantages["01"] == pytest.approx(((0.8 + 0.2) / 2 - 0.2) / 2)
    assert advantages["010"] == pytest.approx((0.8 - 0.2) / 2)
    assert advantages["0110"] == pytest.approx((0.3 - 0.1) / 2)
    weighed = gather(trees, rewards="final", grouping="history", shares=True)
    times = [s.advantage / f.advantage for s, f in zip(weighed.samples, found.samples, strict=True)]
    shares = [1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 8]
    assert times == pytest.approx([6 * share / sum(shares) for share in shares])


VARIANCES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4)


@given(VARIANCES, st.integers(3, 5))
def test_sizes_add_up_and_leave_the_least_variance(variances_P: list[float], mean: int) -> None:
    total = mean * len(variances_P)
    sizes = allocate(variances_P, total)
    assert sum(sizes) == total
    assert min(sizes) >= LEAST

    def left(found: Sequence[int]) -> float:
        return sum(v / (n - 1) for v, n in zip(variances_P, found, strict=True))

    ways = product(range(LEAST, total), repeat=len(sizes) - 1)
    whole = ((*way, total - sum(way)) for way in ways)
    best = min((left(way) for way in whole if way[-1] >= LEAST), default=left(sizes))
    assert left(sizes) == pytest.approx(best)


def record(episode: int, problem: str, rewards: Sequence[float]) -> EpisodeRecord:
    nodes = [
        NodeRecord(
            id=str(n),
            parent="root",
            turns=(),
            value=reward,
            source="leaf",
            survived=True,
            score=Score(parts=(Part(name="value", value=reward),)),
        )
        for n, reward in enumerate(rewards)
    ]
    return EpisodeRecord(
        episode=episode,
        problem=problem,
        split="train",
        seed=0,
        best="0",
        reward=max(rewards),
        mean_leaf_reward=sum(rewards) / len(rewards),
        calls=0,
        usd=0.0,
        input_tokens=0,
        output_tokens=0,
        nodes=tuple(nodes),
        groups=(),
    )


def test_solved_and_hopeless_problems_get_few_samples() -> None:
    problems = [Problem(id=name, prompt="", split="train") for name in ("all", "none", "some")]
    assert group_sizes(problems, [], 4) == [4, 4, 4]
    flat = [record(n, name, [0.5] * 4) for n, name in enumerate(("all", "none", "some"))]
    assert group_sizes(problems, flat, 4) == [4, 4, 4], "nothing tells them apart"
    seen = [
        record(n, name, rewards)
        for n, (name, rewards) in enumerate(
            2 * [("all", [1.0] * 4), ("none", [0.0] * 4), ("some", [0.0, 0.0, 1.0, 1.0])]
        )
    ]
    sizes = group_sizes(problems, seen, 4)
    assert sizes[2] > 4 > sizes[0] == sizes[1]
    random.Random(0).shuffle(seen)
    assert group_sizes(problems, seen, 4) == sizes, "the order of finishing is not seen"
    new = [*problems, Problem(id="new", prompt="", split="train")]
    assert sorted(variances(new, seen))[2] == variances(new, seen)[3], "a new one is as usual"


TURNS = TASK.replace(
    "return () if state.said else ROLES", "return () if len(state.said) > 3 else ROLES"
)
TURNS = TURNS.replace("replace(state, said=tuple", "replace(state, said=state.said + tuple")
TURNS = TURNS.replace(
    "return state.problem.prompt\n", 'return state.problem.prompt + "".join(state.said)\n'
)


@pytest.mark.usefixtures("one_thread")
def test_a_run_with_group_sizes_says_them(model: str, tasks: Path, tmp_path: Path) -> None:
    run = orchestry.train(
        config(model, tasks, "learn.group_size=auto", "episodes=12"), tmp_path / "run"
    )
    sizes = [event.state["group_sizes"] for event in learned(run)]
    assert sizes[0] == [4] * EVERY
    assert [sum(each) for each in sizes] == [4 * EVERY] * 3
    assert any(min(each) < 4 < max(each) for each in sizes[1:])
    for event, each in zip(learned(run), sizes, strict=True):
        block = run.episodes[EVERY * (event.update - 1) : EVERY * event.update]
        assert [len(list(episode.leaves())) for episode in block] == each


def test_a_dry_run_counts_the_samples_of_groups_and_trees(model: str, tmp_path: Path) -> None:
    tasks = write_task(tmp_path / "tasks", TURNS)
    auto = estimate(config(model, tasks, "learn.group_size=auto", "learn.group_mean=5"))
    assert auto.calls == 2 * EVERY * 2 * 2 * 5  # episodes, agents, stages, samples
    sets = ("search.branch=tree", "learn.group_size=3")
    plain = estimate(config(model, tasks, *sets))
    assert plain.calls == 2 * EVERY * 2 * (3 + 9)
    evaluated = estimate(config(model, tasks, *sets, "learn.evaluate_every=1"))
    assert evaluated.calls == plain.calls + 3 * 4 * 2 * 2 * 3  # three times four dev problems


@pytest.mark.usefixtures("one_thread")
def test_a_run_of_trees_counts_its_stages_alike_with_either_baseline(
    model: str, tmp_path: Path
) -> None:
    """Then the two gradients differ by one factor, (k - 1) / k."""
    tasks = write_task(tmp_path / "tasks", TURNS)
    norms = list[Mapping[str, float]]()
    for baseline in ("mean", "leave_one_out"):
        sets = ("search.branch=tree", "learn.group_size=2", f"learn.baseline={baseline}")
        chosen = config(model, tasks, *sets, f"episodes={EVERY}")
        (update,) = learned(orchestry.train(chosen, tmp_path / baseline))
        norms.append(update.state["norms"])
    mean, others = norms
    assert mean == pytest.approx({agent: norm / 2 for agent, norm in others.items()}, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_run_of_trees_goes_on_as_if_it_had_not_stopped(model: str, tmp_path: Path) -> None:
    tasks = write_task(tmp_path / "tasks", TURNS)
    sets = ("search.branch=tree", "learn.grouping=history", "learn.group_size=2")
    whole = orchestry.train(config(model, tasks, *sets, "episodes=12"), tmp_path / "whole")
    assert {len(list(episode.leaves())) for episode in whole.episodes} == {4}
    assert all(len(episode.groups) == 3 for episode in whole.episodes)
    assert all(event.state["samples"] > 0 for event in learned(whole))
    part = orchestry.train(config(model, tasks, *sets, "episodes=6"), tmp_path / "part")
    resume(part.folder, {"episodes": 12})
    assert artefacts(part.folder) == artefacts(whole.folder)
