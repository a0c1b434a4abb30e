"""Credits on small trees by hand, their sums, their intervals, and the allocation of replays."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import Problem, Score
from orchestry.core.types import ROOT, Group, NodeId, Part, Trajectory, Tree
from orchestry.rollout.credit import Method, allocate, blame, credits, remaining_calls
from orchestry.rollout.shapley import Mix, draws, shapley
from orchestry.rollout.tree import back_up
from orchestry.rollout.values import StateValues
from orchestry.store.records import CreditRecord, EpisodeRecord

PROBLEM = Problem(id="p", prompt="")
METHODS: tuple[Method, ...] = ("replay", "siblings", "equal")


def tree_of(
    groups: dict[str, tuple[str, ...]], scores: dict[str, float], leaves: list[str]
) -> Tree[str]:
    """A tree from the agents that moved in each state; its children are those that have scores."""
    tree: Tree[str] = Tree()
    tree.add(Trajectory(ROOT, PROBLEM, 1, ""))
    for id in map(NodeId.of, scores):
        score = Score(parts=(Part(name="quality", value=scores[str(id)]),))
        tree.add(Trajectory(id, PROBLEM, 1, str(id), score=score)).leaf = str(id) in leaves
    for parent, agents in groups.items():
        children = tuple(id for id in tree.nodes if id.parent == NodeId.of(parent))
        tree.groups.append(Group(NodeId.of(parent), agents, children))
    back_up(tree)
    return tree


def pruned() -> Tree[str]:
    """`a` moves, then `b`; of four first moves only two were gone on from."""
    scores = {"0.0": 0.5, "0.1": 0.5, "0.2": 0.5, "0.3": 0.5}
    scores |= {"0.0.0": 1.0, "0.0.1": 0.6, "0.1.0": 0.4, "0.1.1": 0.0}
    leaves = ["0.0.0", "0.0.1", "0.1.0", "0.1.1"]
    return tree_of({"0": ("a",), "0.0": ("b",), "0.1": ("b",)}, scores, leaves)


def at(*texts: str) -> list[NodeId]:
    """Node ids from their texts."""
    return [NodeId.of(text) for text in texts]


def by_agent(records: tuple[CreditRecord, ...]) -> dict[str, float]:
    return {record.agent: record.credit for record in records}


def test_credits_are_differences_of_mean_leaves() -> None:
    found = credits(pruned(), at("0.0.0"), ["b", "a"], {})
    assert [record.agent for record in found] == ["b", "a"]
    assert by_agent(found) == {"a": pytest.approx(0.3), "b": pytest.approx(0.2)}


def test_replays_of_pruned_siblings_lower_what_the_survivors_promise() -> None:
    before = by_agent(credits(pruned(), at("0.0.0"), ["a", "b"], {}))
    low = dict.fromkeys(at("0.2", "0.3"), [0.0] * 40)
    after = by_agent(credits(pruned(), at("0.0.0"), ["a", "b"], low))
    assert after["a"] > before["a"] + 0.2
    assert after["b"] == pytest.approx(before["b"])
    many = dict.fromkeys(at("0.2", "0.3"), [0.1] * 4000)
    assert by_agent(credits(pruned(), at("0.0.0"), ["a", "b"], many))["a"] == pytest.approx(
        0.8 - (0.8 + 0.2 + 0.1 + 0.1) / 4, abs=0.01
    )


def test_a_pruned_siblings_first_score_tells_what_it_is_worth() -> None:
    scores = {"0.0": 0.9, "0.1": 0.9, "0.2": 0.1, "0.3": 0.1, "0.0.0": 0.9, "0.1.0": 0.9}
    tree = tree_of({"0": ("a",), "0.0": ("b",), "0.1": ("b",)}, scores, ["0.0.0", "0.1.0"])
    (credit,) = (r for r in credits(tree, at("0.0.0"), ["a", "b"], {}) if r.agent == "a")
    assert credit.credit == pytest.approx(0.5 * 0.4)  # half the gap of the mean first scores


def test_siblings_are_told_from_their_mean_and_equal_shares_the_rest() -> None:
    siblings = by_agent(credits(pruned(), at("0.0.0"), ["a", "b", "c"], {}, "siblings"))
    assert siblings == {"a": 0.0, "b": pytest.approx(0.2), "c": 0.0}  # by one source: all tie
    equal = by_agent(credits(pruned(), at("0.0.0"), ["a", "b", "c"], {}, "equal"))
    assert equal == {"a": pytest.approx(0.25), "b": pytest.approx(0.25), "c": 0.0}


def test_only_replay_reads_the_returns() -> None:
    extra = {NodeId((2,)): [0.0, 0.1]}
    for method in METHODS:
        with_, without = (
            credits(pruned(), at("0.1.1"), ["a", "b"], r, method) for r in (extra, {})
        )
        assert (with_ == without) == (method != "replay")


unit = st.floats(0, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(unit, min_size=8, max_size=8),
    st.lists(unit, min_size=4, max_size=4),
    st.dictionaries(
        st.sampled_from(at("0", "0.0", "0.1", "0.2", "0.3")), st.lists(unit, max_size=4)
    ),
)
def test_credits_add_up_and_intervals_hold_them(
    values: list[float], last: list[float], returns: dict[NodeId, list[float]]
) -> None:
    tree = pruned()
    names, leaves = [*map(str, tree.nodes)][1:], [leaf.id for leaf in tree.leaves]
    scores = dict(zip(names, [*values[:4], *last], strict=True))
    tree = tree_of({"0": ("a",), "0.0": ("b",), "0.1": ("b",)}, scores, [*map(str, leaves)])
    for leaf in leaves:
        found = credits(tree, [leaf], ["a", "b"], returns)
        root = StateValues(tree, returns).known(ROOT).mean
        assert sum(record.credit for record in found) == pytest.approx(scores[str(leaf)] - root)
        for method in METHODS:
            for record in credits(tree, [leaf], ["a", "b"], returns, method):
                assert -1.0 <= record.low <= record.credit <= record.high <= 1.0
                assert record.low < record.high
        assert found == credits(tree, [leaf], ["a", "b"], returns)


def test_moves_without_siblings_or_replays_have_no_credit() -> None:
    tree = tree_of({"0": ("a",), "0.0": ("b",)}, {"0.0": 0.2, "0.0.0": 0.7}, ["0.0.0"])
    for method in METHODS:
        assert credits(tree, at("0.0.0"), ["a", "b"], {}, method) == ()
    assert len(credits(tree, at("0.0.0"), ["a", "b"], {ROOT: [0.1, 0.3]})) == 2
    scores = {"0.0": 0.5, "0.1": 0.5, "0.0.0": 0.9, "0.1.0": 0.1}
    programs = tree_of({"0": (), "0.0": ("a",), "0.1": ("b",)}, scores, ["0.0.0", "0.1.0"])
    assert credits(programs, at("0.0.0"), ["a", "b"], {}, "siblings") == ()
    equal = by_agent(credits(programs, at("0.0.0"), ["a", "b"], {}, "equal"))
    assert equal == {"a": pytest.approx(0.4), "b": 0.0}


def test_more_returns_narrow_the_interval() -> None:
    widths = []
    for count in (1, 4, 16):
        returns = dict.fromkeys(at("0", "0.2", "0.3"), [0.2, 0.4] * count)
        record = credits(pruned(), at("0.0.0"), ["a", "b"], returns)[0]
        widths.append(record.high - record.low)
    assert widths == sorted(widths, reverse=True)


def test_agents_at_once_share_by_their_shapley_values() -> None:
    tree = tree_of({"0": ("a", "b")}, {"0.0": 1.0, "0.1": 0.0}, ["0.0", "0.1"])
    only_a = [Mix(draw, (0.5 * (1 - draw[0]), 1.0, 0.5, 1.0)) for draw in draws(2, 2, 0)]
    found = credits(tree, at("0.0"), ["a", "b"], {}, mixes={NodeId((0,)): only_a})
    assert sum(record.credit for record in found) == pytest.approx(1.0 - 0.25)
    assert found[0].credit == pytest.approx((0.75 + 0.5) / 2)
    even = credits(tree, at("0.0"), ["a", "b"], {})
    assert even[0].credit == even[1].credit == pytest.approx(0.25)
    assert even[0].high - even[0].low > 1.0


@given(st.lists(unit, min_size=8, max_size=8))
def test_shapley_values_are_mean_margins_over_orders(scores: list[float]) -> None:
    margins = [0.0] * 3
    for order in itertools.permutations(range(3)):
        kept = 0
        for player in order:
            margins[player] += (scores[kept | 1 << player] - scores[kept]) / 6
            kept |= 1 << player
    assert shapley(scores) == pytest.approx(margins)


def test_draws_fit_the_limit_and_use_every_sample_equally() -> None:
    assert len(draws(3, 2, seed=0)) == 9
    many = draws(8, 4, seed=0, limit=512)
    assert len(many) * 2**4 == 512
    for agent in range(4):
        assert [sum(d[agent] == j for d in many) for j in range(8)] == [4] * 8
    assert draws(2, 10, seed=0, limit=512) == []


def test_calls_of_a_play_are_those_of_the_stages_ahead() -> None:
    tree = tree_of({"0": ("a", "b"), "0.0": ("c",)}, {"0.0": 0.0, "0.0.0": 1.0}, ["0.0.0"])
    assert remaining_calls(tree) == [3, 1, 0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 30))
def test_an_allocation_never_passes_its_calls(calls: int) -> None:
    tree = pruned()
    states = allocate(tree, at("0.0.0", "0.1.1"), calls)
    costs = remaining_calls(tree)
    assert sum(costs[state.stage] for state in states) <= calls
    assert bool(states) == (calls > 0)
    assert states == allocate(tree, at("0.0.0", "0.1.1"), calls)
    assert not any(tree.nodes[state].leaf for state in states)


def test_the_first_play_goes_to_a_sibling_without_a_return() -> None:
    assert allocate(pruned(), at("0.0.0"), 1) in (((2,),), ((3,),))


def episode(best: str, credit: dict[str, dict[str, float]]) -> EpisodeRecord:
    rows = [
        CreditRecord(agent=agent, leaf=leaf, credit=value, low=-1.0, high=1.0)
        for leaf, found in credit.items()
        for agent, value in found.items()
    ]
    return EpisodeRecord(
        episode=0,
        problem="p",
        split="train",
        seed=0,
        best=best,
        reward=1.0,
        mean_leaf_reward=0.5,
        calls=0,
        usd=0.0,
        input_tokens=0,
        output_tokens=0,
        nodes=(),
        groups=(),
        credits=tuple(rows),
    )


def test_blame_is_what_the_best_trajectory_had_beyond_ordinary_play() -> None:
    records = [
        episode("0.1", {"0.1": {"a": 0.7, "b": 0.1}, "0.0": {"a": -0.1, "b": -0.8}}),
        episode("0.0", {"0.0": {"a": 0.5, "b": 0.0}}),
    ]
    assert blame(records) == {"a": pytest.approx(0.6), "b": pytest.approx(0.05)}
    assert blame([]) == {}
    assert not any(map(math.isnan, blame(records).values()))
