"""From episodes to samples: played by real rollouts over scripted tokens, and built by hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from statistics import fmean
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import AgentSpec, BaseTask, Problem, Score, Tools, Transcript
from orchestry.backends.local.batch import Grouping, _Rewards, gather
from orchestry.backends.local.magrpo import group_advantages, returns
from orchestry.core.errors import LearnError
from orchestry.core.seeds import derive
from orchestry.core.types import (
    ROOT,
    Completion,
    Group,
    Judgement,
    Limits,
    NodeId,
    Part,
    Request,
    Siblings,
    Tokens,
    Trajectory,
    Tree,
    Turn,
    Value,
)
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Beam, Chains, Schedule
from orchestry.sandbox import open_sandbox
from tests.toys import Duo, Pair, Words, team

TOOLS = Tools(sandbox=open_sandbox(Limits()))


class Spelled:
    """A policy that draws letters and records them: a token a character, and an end."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request, index) for index in range(n)] for request in requests]

    def _answer(self, request: Request, index: int) -> Completion:
        rng = random.Random(derive(request.seed, index))
        text = "a" * rng.randrange(8)
        ids = (*(ord(letter) for letter in text), 0)
        tokens = Tokens(
            prompt_ids=tuple(ord(letter) for letter in request.messages[-1].content),
            ids=ids,
            logprobs=tuple(-rng.random() for _ in ids),
        )
        return Completion(text=text, model="m", tokens=tokens)


class Rounds(Words):
    """Two rounds of the in-order task; the episode ends early once the writer says nothing."""

    name: ClassVar[str] = "rounds"
    rounds: ClassVar[int] = 2

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        if state.said and not state.last("writer"):
            return ()
        return super().to_act(state)


class Trio(Duo):
    """Three agents act at once, twice; the reward is the number of letters, weighed by agent."""

    name: ClassVar[str] = "trio"
    agents: ClassVar[tuple[AgentSpec, ...]] = tuple(AgentSpec(role=role) for role in "xyz")

    def to_act(self, state: Pair) -> tuple[str, ...]:
        return () if len(state.said) == 6 else ("x", "y", "z")

    def step(self, state: Pair, actions: Mapping[str, str]) -> Pair:
        return replace(state, said=(*state.said, *sorted(actions.items())))

    def observe(self, state: Pair, agent: str) -> str:
        return f"{agent} after {state.said}"

    async def evaluate(self, state: Pair, tools: Tools) -> Score:
        lengths = {who: len(text) for who, text in state.said[-3:]}
        both = lengths["x"] * lengths["y"]
        return self.score(quality=(both + 3 * lengths["z"]) / (49 + 21))


def play(task: Any, schedule: Schedule, seed: int = 1) -> Tree[Any]:
    rollout = Rollout(task, team(task), Spelled(), task_rater(task, TOOLS), schedule)
    return asyncio.run(rollout.play(task.problems("train")[0], seed))


def paths(tree: Tree[Any]) -> list[list[Trajectory[Any]]]:
    """The states of each chain after the first, by leaf, in the order of the chains' samples."""
    ends = sorted(leaf.id for leaf in tree.leaves)
    return [[tree.nodes[id].trajectory for id in end.path[1:]] for end in ends]


def total(node: Trajectory[Any]) -> float:
    assert node.score is not None
    return node.score.total


Key = tuple[str, tuple[int, ...], tuple[int, ...], tuple[float, ...]]


def paid(scores_T: list[float], rewards: _Rewards) -> list[float]:
    """Each stage's reward."""
    if rewards == "differences":
        return [after - before for before, after in pairwise((0.0, *scores_T))]
    return scores_T if rewards == "turns" else [0.0] * (len(scores_T) - 1) + scores_T[-1:]


def written_out(
    tree: Tree[Any], rewards: _Rewards = "turns", discount: float = 1.0
) -> list[tuple[Key, float]]:
    """Every action of aligned chains beside its advantage, by equation 1 as it is written."""
    found, chains = list[tuple[Key, float]](), paths(tree)
    returned = [returns(paid(list(map(total, chain)), rewards), discount) for chain in chains]
    for stage in range(max(map(len, chains))):
        here = [c for c in range(len(chains)) if stage < len(chains[c])]
        advantages_G = group_advantages([returned[c][stage] for c in here])
        for c, advantage in zip(here, advantages_G, strict=True):
            before = len(chains[c][stage - 1].turns) if stage else 0
            for turn in chains[c][stage].turns[before:]:
                tokens = turn.completion.tokens
                assert tokens is not None
                found.append(
                    ((turn.agent, tokens.prompt_ids, tokens.ids, tokens.logprobs), advantage)
                )
    return found


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([Words, Rounds, Duo, Trio]),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.sampled_from(["differences", "turns", "final"]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_samples_are_those_of_the_written_out_formula(
    task: Any, k: int, seed: int, rewards: _Rewards, discount: float
) -> None:
    tree = play(task(), Chains(k), seed)
    expected = written_out(tree, rewards, discount)
    batch = gather([tree], rewards=rewards, discount=discount)
    found = [((s.agent, s.prompt_ids, s.ids, s.logprobs), s.advantage) for s in batch.samples]
    if rewards == "differences":  # computed without the sum, which rounds otherwise
        everything = gather([tree], rewards=rewards, discount=discount, skip=False).samples
        found = [((s.agent, s.prompt_ids, s.ids, s.logprobs), s.advantage) for s in everything]
        assert [key for key, _ in sorted(found)] == [key for key, _ in sorted(expected)]
        own = [advantage for _, advantage in sorted(expected)]
        assert [advantage for _, advantage in sorted(found)] == pytest.approx(own, abs=1e-11)
        return
    assert sorted(found) == sorted(each for each in expected if each[1] != 0.0)
    assert sum(batch.actions.values()) == len(expected) == len(tree.answers)
    assert batch.skipped == sum(advantage == 0.0 for _, advantage in expected)


def test_chains_that_ended_leave_the_group() -> None:
    seed = next(
        seed
        for seed in range(100)
        if len({len(chain) for chain in paths(play(Rounds(), Chains(4), seed))}) > 1
    )
    tree = play(Rounds(), Chains(4), seed)
    batch = gather([tree], skip=False)
    lengths = [len(chain) for chain in paths(tree)]
    assert batch.actions == {
        "writer": 4 + sum(n > 3 for n in lengths),
        "reviewer": sum(n > 1 for n in lengths) + sum(n > 4 for n in lengths),
        "refactorer": sum(n > 2 for n in lengths) + sum(n > 5 for n in lengths),
    }


def test_the_discount_and_the_kind_of_reward_count() -> None:
    tree = play(Words(), Chains(5), 4)
    found = {
        tuple(sample.advantage for sample in gather([tree], **options).samples)
        for options in (
            {},
            {"discount": 0.5},
            {"discount": 0.0},
            {"rewards": "final"},
            {"rewards": "differences"},
            {"rewards": "final", "discount": 0.5},
            {"normalise": True},
            {"baseline": "leave_one_out"},
        )
    }
    assert len(found) == 8


class Planted:
    """A judge who rates the j-th of the siblings j / 10, and remembers whom it was asked about."""

    def __init__(self, weight: float) -> None:
        self.weight, self.asked = weight, list[Siblings[Any]]()

    async def values(self, siblings: Siblings[Any]) -> Judgement:
        self.asked.append(siblings)
        numbers = [place / 10 for place in range(len(siblings.children))]
        values = tuple(Value(number=number, source="judge") for number in numbers)
        return Judgement(
            values=values, opinions=tuple(numbers), weight=self.weight, outcome="rated"
        )


@pytest.mark.parametrize("task", [Duo, Words], ids=["at once", "in turn"])
@pytest.mark.parametrize("rewards", ["differences", "turns", "final"])
def test_a_finished_chains_last_reward_is_its_judged_value(
    task: type[BaseTask[Any]], rewards: _Rewards
) -> None:
    """(1 - weight) * score + weight * the judge's number, before the group's mean is taken off."""
    judge, weight = Planted(0.25), 0.25
    rollout = Rollout(task(), team(task()), Spelled(), task_rater(task(), TOOLS), Chains(4), judge)
    tree = asyncio.run(rollout.play(task().problems("train")[0], 7))
    (siblings,) = judge.asked
    assert [child.id for child in siblings.children] == [leaf.id for leaf in tree.leaves]
    chains = paths(tree)
    first_G = []
    for place, chain in enumerate(chains):
        before = sum(map(total, chain[:-1])) if rewards == "turns" else 0.0
        last = (1 - weight) * total(chain[-1]) + weight * place / 10
        first_G.append(before + last)
    agent = chains[0][0].turns[0].agent
    found = [s for s in gather([tree], rewards=rewards, skip=False).samples if s.agent == agent]
    expected = [return_ - fmean(first_G) for return_ in first_G]
    assert [s.advantage for s in found[:4]] == pytest.approx(expected)
    assert any(abs(a - b) > 1e-3 for a, b in zip(expected, _unjudged(chains, rewards), strict=True))


def _unjudged(chains: list[list[Trajectory[Any]]], rewards: _Rewards) -> list[float]:
    """The first actions' advantages by the task's scores alone."""
    sums = [sum(map(total, c)) if rewards == "turns" else total(c[-1]) for c in chains]
    return [each - fmean(sums) for each in sums]


def test_one_number_for_each_history_over_all_episodes() -> None:
    samples = gather([play(Words(), Chains(4), seed) for seed in (1, 2)], skip=False).samples
    histories = {(s.agent, s.prompt_ids) for s in samples}
    assert 3 <= len(histories) < len(samples) == 24
    assert len({(s.agent, s.prompt_ids, s.group) for s in samples}) == len(histories)
    assert {s.group for s in samples} == set(range(len(histories)))
    # both episodes begin alike, with 4 answers each
    assert [s.agent for s in samples if s.group == samples[0].group] == ["writer"] * 8


def test_episodes_are_compared_within_themselves() -> None:
    trees = [play(Words(), Chains(3), seed) for seed in (1, 2)]
    together = [sample.advantage for sample in gather(trees).samples]
    apart = [sample.advantage for tree in trees for sample in gather([tree]).samples]
    assert together == apart


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(0, 2**32))
def test_crossed_actions_have_the_mean_advantage_of_their_joint_actions(k: int, seed: int) -> None:
    tree = play(Trio(), Chains(k, joint="cross"), seed)
    batch = gather([tree], joint="cross", skip=False)
    assert batch.actions == dict.fromkeys("xyz", k + k**3)  # stage 0, then one a chain

    chains = paths(tree)
    whole = group_advantages([total(chain[0]) + total(chain[1]) for chain in chains])
    for i, agent in enumerate("xyz"):
        mine = [sample for sample in batch.samples if sample.agent == agent][:k]
        for action, sample in enumerate(mine):
            held = [
                j for j, chosen in enumerate(product(range(k), repeat=3)) if chosen[i] == action
            ]
            assert sample.advantage == pytest.approx(fmean(whole[j] for j in held), abs=1e-12)
            for j in held:
                assert chains[j][0].turns[i].completion.tokens == Tokens(
                    prompt_ids=sample.prompt_ids, ids=sample.ids, logprobs=sample.logprobs
                )


# --- trees built by hand -----------------------------------------------------------------------


def turn(agent: str, prompt: int, tokens: Tokens | None = None) -> Turn:
    tokens = tokens or Tokens(prompt_ids=(prompt,), ids=(7, 0), logprobs=(-1.0, -0.5))
    return Turn(agent=agent, messages=(), completion=Completion(text="", model="m", tokens=tokens))


def chains(*played: Sequence[tuple[str, int, float | None]]) -> Tree[int]:
    """A tree of chains: of each the agent, what it saw, and the score after it, stage by stage."""
    root: Trajectory[int] = Trajectory(ROOT, Problem(id="p", prompt=""), 0, 0)
    tree: Tree[int] = Tree()
    tree.add(root)
    later = list[Group]()
    for index, stages in enumerate(played):
        node = root
        for depth, (agent, prompt, score) in enumerate(stages):
            parent, node = node, node.extend(0 if depth else index, 0, [turn(agent, prompt)])
            if score is not None:
                node = replace(node, score=Score(parts=(Part(name="quality", value=score),)))
            tree.add(node)
            if depth:
                later.append(Group(parent=parent.id, agents=(agent,), children=(node.id,)))
        tree.nodes[node.id].leaf = True
    first = tuple(NodeId((index,)) for index in range(len(played)))
    tree.groups = [Group(parent=ROOT, agents=(played[0][0][0],), children=first), *later]
    return tree


MIXED = (
    [("w", 1, 0.0), ("r", 2, 0.5), ("w", 3, 1.0)],
    [("w", 1, 0.5), ("r", 2, 0.5)],
    [("w", 1, 0.25), ("r", 4, 0.0), ("w", 5, 0.5)],
)
"""Three chains of a writer and a reviewer; the second ends early."""


def by_hand(**options: Any) -> list[tuple[str, int, float]]:
    batch = gather([chains(*MIXED)], skip=False, **options)
    return sorted((s.agent, s.prompt_ids[0], s.advantage) for s in batch.samples)


def test_turn_groups() -> None:
    # returns by stage: 1.5, 1.0, 0.75 | 1.5, 0.5, 0.5 | 1.0, 0.5
    found, first, second = by_hand(), 3.25 / 3, 2.5 / 3
    assert [(agent, prompt) for agent, prompt, _ in found] == [
        *[("r", 2), ("r", 2), ("r", 4)],
        *[("w", 1), ("w", 1), ("w", 1), ("w", 3), ("w", 5)],
    ]
    assert [advantage for _, _, advantage in found] == pytest.approx(
        [
            *[0.5 - second, 1.5 - second, 0.5 - second],
            *[0.75 - first, 1.0 - first, 1.5 - first, 0.25, -0.25],
        ]
    )


def test_history_groups_compare_only_what_saw_the_same() -> None:
    found = by_hand(grouping="history")
    assert [each for each in found if each[0] == "r"] == [
        ("r", 2, -0.5),
        ("r", 2, 0.5),
        ("r", 4, 0.0),
    ]
    assert [each for each in found if each[1] in (3, 5)] == [("w", 3, 0.0), ("w", 5, 0.0)]
    assert [each for each in found if each[1] == 1] == [each for each in by_hand() if each[1] == 1]


def test_a_history_is_an_agents_and_a_turns() -> None:
    tree = chains(*([("w", 1, a), ("r", 1, 0.0), ("w", 1, b)] for a, b in ((0.5, 0.0), (0.0, 1.0))))
    samples = gather([tree], grouping="history", discount=0.0, skip=False).samples
    found = [(s.agent, s.group, s.advantage) for s in samples]
    assert found[:2] == [("w", 0, 0.25), ("w", 0, -0.25)]
    assert found[2::2] == [("r", 1, 0.0), ("r", 1, 0.0)]
    assert found[3::2] == [("w", 0, -0.5), ("w", 0, 0.5)]


def test_agent_groups_take_the_statistics_of_all_an_agents_steps() -> None:
    found = by_hand(grouping="agent", rewards="final", normalise=True)
    # finals 1.0, 0.5, 0.5: the writer acts in five steps of returns 1, 1, .5, .5, .5
    mean, deviation = 3.5 / 5, (0.06) ** 0.5
    writer = [each[2] for each in found if each[0] == "w"]
    expected = sorted((value - mean) / deviation for value in (1.0, 0.5, 0.5))
    assert writer[:3] == pytest.approx(expected, abs=1e-4)
    assert writer[3:] == pytest.approx(
        [(1.0 - mean) / deviation, (0.5 - mean) / deviation], abs=1e-4
    )
    reviewer = sorted(each[2] for each in found if each[0] == "r")
    assert reviewer == pytest.approx([-(0.5**0.5), -(0.5**0.5), 2**0.5], abs=1e-4)


@pytest.mark.parametrize("grouping", ["turn", "history", "agent"])
@pytest.mark.parametrize("normalise", [False, True])
def test_groups_without_variance_are_left_out_and_counted(
    grouping: Grouping, normalise: bool
) -> None:
    tree = chains(*([("w", 1, 0.3), ("r", 2, 0.1)] for _ in range(4)))
    batch = gather([tree], grouping=grouping, rewards="final", normalise=normalise)
    assert batch.samples == ()
    assert batch.actions == {"w": 4, "r": 4}
    assert batch.skipped == 8


def test_siblings_of_a_beam_are_the_groups_of_at_grpo() -> None:
    tree = play(Trio(), Beam(k=4, width=1, collapse=False), 3)
    samples = gather([tree], grouping="history", discount=0.0, skip=False).samples
    assert [len(group.children) for group in tree.groups] == [4, 4]
    for group, mine in zip(tree.groups, (samples[:12], samples[12:]), strict=True):
        scores = [total(node.trajectory) for node in tree.siblings(group)]
        assert len(set(scores)) > 1
        assert [sample.advantage for sample in mine] == list(group_advantages(scores)) * 3
        assert [sample.agent for sample in mine] == ["x"] * 4 + ["y"] * 4 + ["z"] * 4
        assert len({sample.group for sample in mine}) == 3


# --- what is trained ------------------------------------------------------------------------------

AFTER_ONE = (0.95, 0.0)
"""The score after each of the writer's two actions."""
AT_THE_END = ((0.1, 0.3), (0.6, 1.0))
"""After each of the reviewer's two actions, given the writer's."""
WRITES, REVIEWS = 0.6, (0.3, 0.8)
"""Probabilities of action 1."""


def slope(chance: float, action: int) -> float:
    """d log pi(action) / d logit of action 1."""
    return action - chance


def likely(one: float, action: int) -> float:
    return one if action else 1 - one


Slopes = tuple[float, float, float]
"""By the logits of the writer, and of the reviewer in its two states."""


def gradient_in_mean(rewards: _Rewards) -> Slopes:
    """Of what `gather` gives, over all pairs of chains: the prompt of an action is its number."""
    found = [0.0, 0.0, 0.0]
    for played in product(product((0, 1), repeat=2), repeat=2):
        tree = chains(
            *([("w", a, AFTER_ONE[a]), ("r", 10 + 2 * a + b, AT_THE_END[a][b])] for a, b in played)
        )
        chance = 1.0
        for a, b in played:
            chance *= likely(WRITES, a) * likely(REVIEWS[a], b)
        for sample in gather([tree], rewards=rewards).samples:
            (number,) = sample.prompt_ids
            a, b = divmod(number - 10, 2)
            place, own = (
                (0, slope(WRITES, number)) if sample.agent == "w" else (1 + a, slope(REVIEWS[a], b))
            )
            found[place] += chance * sample.advantage * own / len(played)
    return found[0], found[1], found[2]


def gradient_of_final_score() -> Slopes:
    found = [0.0, 0.0, 0.0]
    for a, b in product((0, 1), repeat=2):
        worth = likely(WRITES, a) * likely(REVIEWS[a], b) * AT_THE_END[a][b]
        found[0] += worth * slope(WRITES, a)
        found[1 + a] += worth * slope(REVIEWS[a], b)
    return found[0], found[1], found[2]


@pytest.mark.parametrize("rewards", ["differences", "final"])
def test_the_expected_gradient_is_that_of_the_final_score(rewards: _Rewards) -> None:
    own_mean = 1 - 1 / 2  # a group of 2 whose mean holds the action's own return
    expected = [own_mean * each for each in gradient_of_final_score()]
    assert gradient_in_mean(rewards) == pytest.approx(expected, abs=1e-12)


def test_scores_in_between_turn_the_first_agents_gradient_round() -> None:
    writer, *reviewer = gradient_in_mean("turns")
    right, *after = gradient_of_final_score()
    assert right > 0.1 > 0.0 > writer
    assert reviewer == pytest.approx([each / 2 for each in after], abs=1e-12)


def test_equal_final_scores_after_unequal_ones_are_exactly_equal() -> None:
    tree = chains(*([("w", 1, score), ("r", 2, 0.3)] for score in (0.1, 0.2, 0.7)))
    batch = gather([tree], rewards="differences")
    assert [sample.agent for sample in batch.samples] == ["r"] * 3
    assert [each.advantage for each in batch.samples] == pytest.approx([7 / 30, 4 / 30, -11 / 30])


# --- refusals ----------------------------------------------------------------------------------


def with_tokens(tokens: Tokens | None) -> Tree[int]:
    tree = chains(*MIXED)
    node = tree.nodes[NodeId((1, 0))]
    *before, last = node.trajectory.turns
    bad = last.model_copy(update={"completion": Completion(text="x", model="m", tokens=tokens)})
    node.trajectory = replace(node.trajectory, turns=(*before, bad))
    return tree


def with_score(score: Score | None) -> Tree[int]:
    tree = chains(*MIXED)
    node = tree.nodes[NodeId((1,))]
    node.trajectory = replace(node.trajectory, score=score)
    return tree


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (with_tokens(None), "the answer of r in state 0.1 of problem p has no tokens"),
        (with_tokens(Tokens(prompt_ids=(1,), ids=(), logprobs=())), "has no tokens"),
        (
            with_tokens(Tokens(prompt_ids=(1,), ids=(1, 2), logprobs=(-1.0,))),
            "has 2 tokens but 1 log-probabilities",
        ),
        (with_score(None), "state 0.1 of problem p has no score"),
        (
            with_score(Score(parts=(Part(name="q", value=float("nan")),))),
            "state 0.1 of problem p has a score of nan",
        ),
    ],
)
def test_what_is_missing_is_named(tree: Tree[int], said: str) -> None:
    with pytest.raises(LearnError, match=said):
        gather([tree])


def test_collapsed_siblings_are_refused() -> None:
    trees = (play(Duo(), Beam(k=4, width=4), seed) for seed in range(50))
    tree = next(tree for tree in trees if len(set(tree.groups[0].children)) < 4)
    with pytest.raises(LearnError, match="collapse=False"):
        gather([tree])


@pytest.mark.parametrize(
    ("rewards", "discount"),
    [("turns", 0.5), ("final", 1.0), ("final", 0.0), ("differences", 1.0)],
)
def test_pruned_states_have_no_return(rewards: _Rewards, discount: float) -> None:
    tree = play(Words(), Beam(k=4, width=1, collapse=False), 3)
    with pytest.raises(LearnError, match="was pruned"):
        gather([tree], rewards=rewards, discount=discount)


@pytest.mark.parametrize("k", [3, 4])
def test_aligned_actions_are_not_read_as_crossed_ones(k: int) -> None:
    with pytest.raises(LearnError, match="are not `cross`"):
        gather([play(Duo(), Chains(k), 5)], joint="cross")
