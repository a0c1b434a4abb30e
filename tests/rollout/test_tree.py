"""What nodes of a tree are worth, by property, against a plain recursive definition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.types import (
    ROOT,
    Group,
    Judgement,
    Node,
    NodeId,
    Part,
    Problem,
    Score,
    Siblings,
    Trajectory,
    Tree,
    Value,
)
from orchestry.judge.judge import undecided
from orchestry.rollout.tree import advantages, apply, back_up, group_values

VALUES = st.floats(0, 1, allow_nan=False)
PROBLEM = Problem(id="p", prompt="p")


@dataclass(frozen=True)
class Drawn:
    """A state of a drawn tree: its own score, whether it is a leaf, and the k-th sample's child."""

    score: float
    leaf: bool
    samples: tuple[int, ...] = ()
    children: tuple[Drawn, ...] = ()


@st.composite
def nodes(draw: st.DrawFn, depth: int = 3) -> Drawn:
    """Leaves, pruned nodes without children, and nodes whose samples may share children."""
    score = draw(st.floats(0, 1))
    kind = draw(st.sampled_from(["leaf", "pruned", "inner", "inner"])) if depth else "leaf"
    if kind != "inner":
        return Drawn(score, leaf=kind == "leaf")
    children = tuple(draw(st.lists(nodes(depth - 1), min_size=1, max_size=3)))
    repeats = draw(st.lists(st.sampled_from(range(len(children))), max_size=3))
    return Drawn(score, False, (*range(len(children)), *repeats), children)


def planted(node: Drawn) -> tuple[Tree[str], dict[NodeId, Drawn]]:
    """The tree as a rollout leaves it before values are backed up, and its nodes by id."""
    tree: Tree[str] = Tree()
    by_id = {ROOT: node}
    stage = [ROOT]
    while stage:
        for id in stage:
            here = by_id[id]
            score = Score(parts=(Part(name="quality", value=here.score),), feedback=f"of {id}")
            tree.add(Trajectory(id, PROBLEM, 0, str(id), score=score)).leaf = here.leaf
            by_id.update({id.child(k): child for k, child in enumerate(here.children)})
            if here.samples:
                children = tuple(id.child(k) for k in here.samples)
                tree.groups.append(Group(parent=id, agents=("a",), children=children))
        stage = [id.child(k) for id in stage for k in range(len(by_id[id].children))]
    return tree, by_id


def leaf_samples(node: Drawn) -> Iterator[float]:
    """The score of every leaf below, once for each path of samples that led to it."""
    if node.leaf:
        yield node.score
    for index in node.samples:
        yield from leaf_samples(node.children[index])


@given(nodes())
def test_a_node_is_worth_the_mean_of_its_leaf_samples(root: Drawn) -> None:
    tree, by_id = planted(root)
    back_up(tree)
    assert tree.nodes.keys() == by_id.keys()
    for id, node in by_id.items():
        value, below = tree.nodes[id].value, [*leaf_samples(node)]
        assert value is not None
        assert 0.0 <= value.number <= 1.0
        assert value.source == ("leaf" if below else "task")
        assert value.number == pytest.approx(sum(below) / len(below) if below else node.score)
        assert value.feedback == f"of {id}"


@given(nodes())
def test_a_group_never_mixes_sources(root: Drawn) -> None:
    tree, by_id = planted(root)
    back_up(tree)
    for group in tree.groups:
        source, values = group_values(tree, group)
        below = [[*leaf_samples(by_id[child])] for child in group.children]
        assert len(values) == len(group.children)
        assert all(0.0 <= value <= 1.0 for value in values)
        assert source == ("leaf" if all(below) else "task")
        if source == "leaf":
            assert values == pytest.approx([sum(found) / len(found) for found in below])
        else:
            assert values == tuple(by_id[child].score for child in group.children)


def worth(scores: Sequence[float]) -> float:
    """What the state before leaves of these scores is worth."""
    children = tuple(Drawn(score, leaf=True) for score in scores)
    tree, _ = planted(Drawn(0.0, False, tuple(range(len(children))), children))
    back_up(tree)
    return tree.root.number


@given(VALUES, st.integers(1, 60))
def test_equal_leaves_are_worth_exactly_what_each_is(value: float, count: int) -> None:
    assert worth([value] * count) == value


@given(st.lists(VALUES, min_size=1, max_size=20), st.randoms())
def test_a_mean_does_not_depend_on_the_order(scores: list[float], shuffler: Random) -> None:
    other = shuffler.sample(scores, len(scores))
    assert worth(scores) == worth(other)


# --- the judge's part -----------------------------------------------------------------------------


def siblings(scores: list[float], ended: Collection[int] = ()) -> Siblings[str]:
    root = Trajectory(ROOT, PROBLEM, 0, "root")
    children = tuple(
        Trajectory(NodeId((i,)), PROBLEM, 0, str(i), score=Score(parts=(Part(name="q", value=s),)))
        for i, s in enumerate(scores)
    )
    return Siblings(root, ("a",), children, frozenset(NodeId((i,)) for i in ended))


def applied(family: Siblings[str], judgement: Judgement) -> list[Node[str]]:
    """The siblings' nodes, once the judge has spoken."""
    tree: Tree[str] = Tree()
    nodes = [tree.add(child) for child in family.children]
    apply(tree, family, judgement)
    return nodes


def judged(numbers: list[float], weight: float, relative: bool) -> Judgement:
    values = tuple(Value(number=n, source="judge", feedback=f"says {n}") for n in numbers)
    return Judgement(
        values=values, opinions=tuple(numbers), weight=weight, relative=relative, outcome="rated"
    )


@given(
    st.lists(st.tuples(st.floats(0.3, 0.7), st.floats(0, 1)), min_size=2, max_size=6),
    st.floats(0, 0.4),
)
def test_a_judge_of_some_sets_moves_no_set_as_a_whole(
    drawn: list[tuple[float, float]], weight: float
) -> None:
    scores, numbers = [score for score, _ in drawn], [number for _, number in drawn]
    nodes = applied(siblings(scores), judged(numbers, weight, relative=True))
    values = [node.number for node in nodes]
    if min(values) > 0.0 and max(values) < 1.0:
        assert sum(values) == pytest.approx(sum(scores))
    first, second = sorted(range(len(drawn)), key=lambda i: numbers[i])[:2]
    if scores[first] == scores[second]:
        assert values[first] <= values[second]


def test_a_judge_of_all_sets_is_mixed_by_weight() -> None:
    nodes = applied(siblings([0.2, 1.0], {1}), judged([1.0, 0.5], 0.25, relative=False))
    assert nodes[0].number == pytest.approx(0.75 * 0.2 + 0.25)
    assert nodes[1].number == pytest.approx(0.75 + 0.125)
    assert [node.opinion for node in nodes] == [1.0, 0.5]


def test_a_trajectory_that_ended_is_left_to_the_task() -> None:
    family = siblings([1.0, 1.0, 1.0], {0})
    ended, better, worse = applied(family, judged([0.1, 0.9, 0.5], 0.5, relative=True))
    assert (ended.judged, ended.number) == (None, 1.0)
    assert better.number > worse.number


def test_a_trajectory_that_the_task_could_not_score_stays_0_whatever_a_judge_says() -> None:
    family = siblings([0.0, 0.5])
    failed = replace(family.children[0], fault=ValueError("odd"))
    family = replace(family, children=(failed, family.children[1]))
    nodes = applied(family, judged([1.0, 0.5], 0.5, relative=False))
    assert (nodes[0].judged, nodes[0].number) == (None, 0.0)
    assert nodes[1].judged is not None


def test_ties_count_only_among_those_that_go_on() -> None:
    assert undecided(siblings([0.5, 0.5]))
    assert not undecided(siblings([0.5, 0.5], {0}))
    assert not undecided(siblings([0.5, 0.5], {0, 1}))
    assert not undecided(siblings([0.4, 0.5]))


# --- advantages -----------------------------------------------------------------------------------


@given(st.lists(VALUES, min_size=1, max_size=16))
def test_advantages_are_the_values_less_their_mean(values: list[float]) -> None:
    found = advantages(values)
    assert len(found) == len(values)
    assert sum(found) == pytest.approx(0.0, abs=1e-9)
    for value, advantage in zip(values, found, strict=True):
        assert advantage == pytest.approx(value - sum(values) / len(values), abs=1e-9)


@given(VALUES, st.integers(1, 16))
def test_a_group_without_variance_has_exactly_no_advantage(value: float, size: int) -> None:
    assert advantages([value] * size) == (0.0,) * size
