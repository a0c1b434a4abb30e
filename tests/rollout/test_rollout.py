"""Episodes on scripted policies: trees, groups, values, and a task's own faults."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import Problem, Score, Tools, Transcript
from orchestry.core.config import CreditConfig
from orchestry.core.errors import TaskError
from orchestry.core.seeds import derive
from orchestry.core.types import ROOT, Limits, Node, NodeId, Request, Tree, Turn, Variant
from orchestry.rollout.replay import give_credit
from orchestry.rollout.rollout import TOLD_CHARS, Rollout, task_rater
from orchestry.rollout.schedule import Beam, Chains, Joint, Schedule, best_of_n
from orchestry.rollout.tree import episode_record
from orchestry.sandbox import open_sandbox
from orchestry.store.records import EpisodeRecord
from orchestry.task.guard import count_stages
from tests.toys import Duo, Scripted, Words, team

TOOLS = Tools(sandbox=open_sandbox(Limits()))


def letters(request: Request) -> str:
    """Between none and nine 'a's, by seed, agent and sample."""
    return "a" * (derive(request.seed, request.agent, request.sample_index) % 10)


def play(task: Any, schedule: Schedule, policy: Scripted, seed: int = 1) -> Tree[Any]:
    rollout = Rollout(task, team(task), policy, task_rater(task, TOOLS), schedule)
    return asyncio.run(rollout.play(task.problems("train")[0], seed))


def test_a_stage_is_one_batch() -> None:
    policy = Scripted(lambda request: f"{letters(request)} {request.seed} {request.sample_index}")
    play(Words(), Beam(k=4, width=2), policy)
    assert [len(batch) for batch in policy.batches] == [4, 8, 8]


def test_equal_arguments_give_an_equal_tree() -> None:
    trees = [play(Words(), Beam(k=4, width=2), Scripted(letters), seed=7) for _ in range(2)]
    assert episode_record(trees[0], 0) == episode_record(trees[1], 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
def test_trees_are_sound(k: int, width: int, seed: int) -> None:
    tree = play(Words(), Beam(k=k, width=width), Scripted(letters), seed=seed)
    for group in tree.groups:
        assert all(child.parent == group.parent for child in group.children)
        assert tree.nodes[group.parent].survived
    leaves = [leaf.trajectory for leaf in tree.leaves]
    assert leaves
    assert all(len(leaf.turns) == 3 for leaf in leaves)
    assert len(tree.answers) == sum(len(group.children) for group in tree.groups)
    record = episode_record(tree, 0)
    assert record.reward == max(leaf.score.total for leaf in leaves if leaf.score)
    for row in record.groups:
        assert sum(row.advantages) == pytest.approx(0.0, abs=1e-9)
    assert [node.id for node in record.path(record.best)][-1] == record.best


def test_equal_siblings_are_one_node_that_counts_for_all_its_samples() -> None:
    def answer(request: Request) -> str:
        return "a" if request.sample_index == 0 else "aaa"

    tree = play(Words(), Beam(k=4, width=2), Scripted(answer))
    first = tree.groups[0]
    assert first.children == ((0,), (1,), (1,), (1,))
    record = episode_record(tree, 0)
    assert len(record.groups[0].advantages) == 4
    assert record.usd == pytest.approx(0.01 * len(tree.answers))


def test_a_reviewers_siblings_are_told_apart_by_their_leaves() -> None:
    record = episode_record(play(Words(), Beam(k=3, width=2), Scripted(letters)), 0)
    reviews = [group for group in record.groups if group.agents == ("reviewer",)]
    assert all(group.source == "leaf" for group in reviews)
    assert any(any(group.advantages) for group in reviews)


def test_a_group_never_mixes_sources() -> None:
    tree = play(Words(), Beam(k=4, width=1), Scripted(letters))
    record = episode_record(tree, 0)
    pruned = {node.id for node in record.nodes if not node.survived}
    for group in record.groups:
        expected = "task" if pruned & set(group.children) else "leaf"
        assert group.source == expected


def test_a_nodes_value_is_the_mean_of_its_leaf_samples() -> None:
    tree = play(Words(), Chains(6), Scripted(letters))
    totals = [tree_score(leaf) for leaf in tree.leaves]
    assert len(totals) == 6
    assert tree.root.number == pytest.approx(sum(totals) / 6)


def test_joint_actions_aligned_and_cross() -> None:
    def answer(request: Request) -> str:
        return str(request.sample_index)

    aligned = play(Duo(), Beam(k=3, width=1), Scripted(answer))
    assert [tree_score(leaf) for leaf in aligned.leaves] == [1.0, 1.0, 1.0]
    policy = Scripted(answer)
    cross = play(Duo(), Beam(k=3, width=1, joint="cross"), policy)
    assert policy.calls == 6
    assert len(cross.leaves) == 9
    assert sum(tree_score(leaf) for leaf in cross.leaves) == 3.0


# --- calls that failed ----------------------------------------------------------------------------


def test_a_failed_call_is_a_missing_sample() -> None:
    def answer(request: Request) -> str | None:
        gone = request.agent == "writer" and request.sample_index == 1
        return None if gone else letters(request) + str(request.sample_index)

    tree = play(Words(), Chains(4), Scripted(answer))
    record = episode_record(tree, 0)
    assert len(record.groups[0].children) == 3
    assert len(tree.leaves) == 3
    assert (record.failed, record.failed_calls, record.calls) == ("", 1, 9)
    assert sum(record.groups[0].advantages) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("joint", "leaves"), [("aligned", 3), ("cross", 9)])
def test_a_joint_action_loses_the_sample_that_one_agent_lacks(joint: Joint, leaves: int) -> None:
    def answer(request: Request) -> str | None:
        gone = request.sample_index == 2 and request.agent == Duo().agents[1].role
        return None if gone else f"{request.sample_index}"

    tree = play(Duo(), Beam(k=4, width=1, joint=joint), Scripted(answer))
    assert len(tree.leaves) == leaves
    said = {turn.completion.text for node in tree.nodes.values() for turn in node.trajectory.turns}
    assert said == {"0", "1", "3"}


def test_a_branch_whose_samples_all_failed_ends_and_counts_in_no_mean() -> None:
    def answer(request: Request) -> str | None:
        dead = request.agent == "refactorer" and "w0" in request.messages[-1].content
        return None if dead else f"{request.agent[0]}{request.sample_index}"

    tree = play(Words(), Chains(3), Scripted(answer))
    record = episode_record(tree, 0)
    assert len(tree.leaves) == 2
    assert {leaf.id for leaf in record.leaves()} == {str(leaf.id) for leaf in tree.leaves}
    totals = [tree_score(leaf) for leaf in tree.leaves]
    assert record.mean_leaf_reward == pytest.approx(sum(totals) / 2)


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("schedule", [Beam(k=3, width=2), Chains(3)])
def test_an_episode_without_a_leaf_failed_and_says_why(schedule: Schedule, after: int) -> None:
    stages = [spec.role for spec in Words().agents]

    def answer(request: Request) -> str | None:
        return None if stages.index(request.agent) >= after else letters(request)

    record = episode_record(play(Words(), schedule, Scripted(answer)), 7)
    assert record.failed == "no luck"
    assert not list(record.leaves())
    assert EpisodeRecord.model_validate_json(record.model_dump_json()) == record


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.floats(0, 1),
    st.integers(0, 2**32),
    st.sampled_from(["siblings", "replay", "equal"]),
)
def test_whatever_fails_the_tree_is_sound(
    k: int, width: int, share: float, seed: int, method: Any
) -> None:
    def answer(request: Request) -> str | None:
        drawn = derive(seed, "fate", request.seed, request.agent, request.sample_index) / 2**63
        return None if drawn < share else letters(request)

    task = Words()
    policy, beam = Scripted(answer), Beam(k=k, width=width)
    rollout = Rollout(task, team(task), policy, task_rater(task, TOOLS), beam)

    async def run() -> EpisodeRecord:
        tree = await rollout.play(task.problems("train")[0], seed)
        if not tree.leaves:
            return episode_record(tree, 0)
        found = await give_credit(rollout, tree, CreditConfig(method=method, share=0.5))
        return episode_record(tree, 0, found.records, found.calls)

    record = asyncio.run(run())
    leaves = list(record.leaves())
    assert bool(record.failed) == (not leaves)
    assert all(len(record.path(leaf.id)) == 3 for leaf in leaves)
    for group in record.groups:
        assert group.children
        assert sum(group.advantages) == pytest.approx(0.0, abs=1e-9)


def tree_score(leaf: Node[Any]) -> float:
    score = leaf.trajectory.score
    assert score is not None
    return score.total


def test_each_agent_sees_only_its_own_observation() -> None:
    policy = Scripted(lambda request: "x")
    play(Duo(), Chains(1), policy)
    seen = {r.agent: r.messages[-1].content for r in policy.batches[0]}
    assert seen == {"left": "agree, left", "right": "agree, right"}


def test_best_of_n_gets_at_least_the_beams_calls() -> None:
    task, beam = Words(), Beam(k=4, width=2)
    problem = task.problems("train")[0]
    assert count_stages(task, problem) == 3
    chains = best_of_n(beam, task, problem)
    policy, searched = Scripted(letters), Scripted(letters)
    play(task, chains, policy)
    play(task, beam, searched)
    assert searched.calls <= policy.calls <= searched.calls + 2


class Broken(Words):
    """A task whose reward is whatever the test wants."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.score(quality=self.outcome)


@pytest.mark.parametrize("total", [math.nan, math.inf, -0.1, 1.1])
def test_a_total_outside_its_range_names_task_problem_and_parts(total: float) -> None:
    with pytest.raises(TaskError, match=r"task words: evaluate gave .* problem train-0 .*quality="):
        play(Broken(total), Chains(1), Scripted(letters))


def test_an_evaluate_that_raises_is_one_line() -> None:
    with pytest.raises(TaskError, match="evaluate raised ZeroDivisionError: by zero on") as caught:
        play(Broken(ZeroDivisionError("by zero\nand more")), Chains(1), Scripted(letters))
    assert "\n" not in str(caught.value)


class Lost(Words):
    """Asks an agent that nobody knows."""

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        return ("revewer",)


def test_an_unknown_agent_is_named_with_the_nearest() -> None:
    with pytest.raises(TaskError, match="'revewer': did you mean 'reviewer'"):
        play(Lost(), Chains(1), Scripted(letters))


class Endless(Words):
    """Never done."""

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        return ("writer",)


def test_a_task_without_end_is_named() -> None:
    problem = Problem(id="p", prompt="")
    with pytest.raises(TaskError, match="does not end within 1000 stages"):
        count_stages(Endless(), problem)


class Hearing(Words):
    """Each agent is told what the state was worth."""

    name = "hearing"

    def told(self, state: Transcript, score: Score) -> Transcript:
        return replace(state, said=(*state.said, ("told", f"{score.total:.1f} {score.feedback}")))

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        worth = await super().evaluate(state, tools)
        return worth.model_copy(update={"feedback": "f" * (TOLD_CHARS + 1)})

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        said = [each for each in state.said if each[0] != "told"]
        return super().to_act(replace(state, said=tuple(said)))


def test_agents_are_told_the_score_of_their_state_and_never_that_of_the_first() -> None:
    policy = Scripted(letters)
    tree = play(Hearing(), Chains(1), policy)
    prompts = [batch[0].messages[-1].content for batch in policy.batches]
    first = tree.nodes[NodeId((0,))].trajectory.score
    assert first is not None
    assert [prompt.count("told wrote") for prompt in prompts] == [0, 1, 2]
    told = f"told wrote:\n{first.total:.1f} {'f' * TOLD_CHARS}"
    assert told in prompts[1]
    assert told + "f" not in prompts[1]
    states = [tree.nodes[id].trajectory.state for id in (ROOT, NodeId((0,)))]
    assert [len(state.said) for state in states] == [0, 1]  # stored as they were


def test_plays_that_go_on_are_told_what_the_search_would_have_told() -> None:
    """The same answers in the same places give the same prompts, whoever plays them."""
    task, searched, replayed = Hearing(), Scripted(lambda _: "aa"), Scripted(lambda _: "aa")
    tree = play(task, Chains(1), searched)
    rollout = Rollout(task, team(task), replayed, task_rater(task, TOOLS), Chains(1))
    (end,) = asyncio.run(rollout.go_on([tree.root.trajectory], [1], 3))
    seen = [[each.messages for each in batch] for batch in searched.batches]
    assert [[each.messages for each in batch] for batch in replayed.batches] == seen
    assert end.score is None
    replayed.batches.clear()
    asyncio.run(rollout.go_on([tree.nodes[NodeId((0,))].trajectory], [1], 3))
    assert [[each.messages for each in batch] for batch in replayed.batches] == seen[1:]


def test_what_a_task_raises_when_told_is_the_tasks_fault() -> None:
    class Deaf(Hearing):
        def told(self, state: Transcript, score: Score) -> Transcript:
            raise KeyError("tests")

    with pytest.raises(TaskError, match=r"told raised KeyError"):
        play(Deaf(), Chains(1), Scripted(letters))


def test_an_agent_that_the_team_lacks_is_found_before_anyone_is_asked() -> None:
    class Strange(Words):
        def to_act(self, state: Transcript) -> tuple[str, ...]:
            return ("writer",) if not state.said else ("ghost",)

    task = Strange()
    with pytest.raises(TaskError, match=r"unknown agent from words.to_act 'ghost'"):
        count_stages(task, task.problems("train")[0])


def tried(
    task: Any,
    policy: Scripted,
    k: int = 4,
    roles: tuple[str, ...] = ("refactorer",),
    seed: int = 1,
) -> Any:
    usual = team(task)
    variants = {
        role: Variant(f"of {role}", replace(usual[role], system_prompt="TRIED")) for role in roles
    }
    schedule = Beam(k=k, width=1)
    rate = task_rater(task, TOOLS)
    rollout = Rollout(task, usual, policy, rate, schedule, variants=variants)
    return asyncio.run(rollout.play(task.problems("train")[0], seed))


def is_tried(turn: Turn) -> bool:
    return any(message.content == "TRIED" for message in turn.messages)


def test_half_of_the_last_moves_samples_try_what_is_on_trial() -> None:
    def answer(request: Request) -> str:
        own = "TRIED" in [message.content for message in request.messages]
        return f"{'t' if own else 'b'}{'a' * request.sample_index}"

    tree = tried(Words(), Scripted(answer), roles=("writer", "refactorer"))
    record = episode_record(tree, 0)
    # The reviewers' states tie, so that each of them has one sample of the refactorer.
    *before, a, b, c, d = record.groups
    assert not any(group.trials for group in before)
    first, second, *more = [group.trials[0].drawn for group in (a, b, c, d)]
    assert {first, second} == {(False,), (True,)}
    assert more == [first, second]
    for group in (a, b, c, d):
        (trial,) = group.trials
        assert (trial.agent, trial.behavior) == ("refactorer", "of refactorer")
        for child, drawn in zip(group.children, trial.drawn, strict=True):
            (turn,) = record.node(child).turns
            assert is_tried(turn) == drawn
            assert turn.completion.text[0] == ("t" if drawn else "b")


def test_a_coin_says_whether_the_first_state_tries_what_is_on_trial() -> None:
    def first(seed: int) -> bool:
        record = episode_record(tried(Words(), Scripted(letters), seed=seed), 0)
        drawn: bool = next(group for group in record.groups if group.trials).trials[0].drawn[0]
        return drawn

    assert 10 <= sum(map(first, range(40))) <= 30


@pytest.mark.parametrize(("task", "k", "role"), [(Words(), 1, "refactorer"), (Duo(), 2, "right")])
def test_nothing_is_tried_where_no_sample_could_be_drawn_without_it(
    task: Any, k: int, role: str
) -> None:
    roles = (role,) if k == 1 else ("left", role)
    for seed in range(8):
        record = episode_record(tried(task, Scripted(letters), k, roles, seed), 0)
        found = [t for group in record.groups for t in group.trials if t.agent == role]
        assert found
        assert not any(any(trial.drawn) for trial in found)


def test_agents_that_act_at_once_try_in_a_factorial_design() -> None:
    tree = tried(Duo(), Scripted(letters), k=8, roles=("left", "right"))
    (group,) = episode_record(tree, 0).groups
    arms = list(zip(*(trial.drawn for trial in group.trials), strict=True))
    assert sorted(arms) == sorted([(a, b) for a in (False, True) for b in (False, True)] * 2)


def test_a_failed_sample_leaves_its_arm_and_not_the_others() -> None:
    def answer(request: Request) -> str | None:
        own = "TRIED" in [message.content for message in request.messages]
        failed = own and request.agent == "left" and not request.sample_index
        return None if failed else f"{request.agent} {own} {request.sample_index}"

    record = episode_record(tried(Duo(), Scripted(answer), k=4, roles=("left", "right")), 0)
    (group,) = record.groups
    left, right = group.trials
    assert (sum(left.drawn), len(left.drawn)) == (1, 3)
    for child, *drawn in zip(group.children, left.drawn, right.drawn, strict=True):
        assert [is_tried(turn) for turn in record.node(child).turns] == drawn
