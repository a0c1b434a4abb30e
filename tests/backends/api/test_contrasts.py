"""Contrasts of real episodes on scripted answers."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.backends.api.contrasts import Contrast, contrasts, varied
from orchestry.core.seeds import derive
from orchestry.core.types import Request
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Beam, Chains
from orchestry.rollout.tree import episode_record
from orchestry.store.records import CreditRecord, EpisodeRecord
from tests.rollout.test_rollout import TOOLS, letters
from tests.toys import Scripted, Words, team

WORDS = Words()
DEFAULT = Beam(k=5, width=1)


def episode(
    number: int,
    problem: int = 0,
    policy: Scripted | None = None,
    schedule: Beam | Chains = DEFAULT,
    credits: tuple[CreditRecord, ...] = (),
) -> EpisodeRecord:
    """One episode of the real rollout, with the judge's feedback on every move."""
    policy = policy or Scripted(letters)
    rollout = Rollout(WORDS, team(WORDS), policy, task_rater(WORDS, TOOLS), schedule)
    tree = asyncio.run(rollout.play(WORDS.problems("train")[problem], derive("episode", number)))
    record = episode_record(tree, number, credits)
    nodes = [node.model_copy(update={"judge_feedback": f"on {node.id}"}) for node in record.nodes]
    return record.model_copy(update={"nodes": tuple(nodes)})


def by(agent: str, texts: str) -> Scripted:
    """That agent's k-th sample has as many 'a's as the k-th digit; all others say 'b'."""

    def answer(request: Request) -> str:
        return "a" * int(texts[request.sample_index % 5]) if request.agent == agent else "b"

    return Scripted(answer)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.floats(0, 1), st.booleans())
def test_a_pair_is_a_top_leaf_and_the_worst_of_its_problem(
    problems: list[int], top: float, beam: bool
) -> None:
    schedule = Beam(k=3, width=2) if beam else Chains(4)
    records = [episode(n, problem, schedule=schedule) for n, problem in enumerate(problems)]
    leaves = [(r, leaf, leaf.value or 0.0) for r in records for leaf in r.leaves()]
    count = max(1, round(top * len(leaves)))
    bar = sorted((value for _, _, value in leaves), reverse=True)[count - 1]
    for agent in ("writer", "refactorer"):
        found = contrasts(records, agent, top)
        assert len(found) <= count
        assert [c.gap for c in found] == sorted((c.gap for c in found), reverse=True)
        for pair in found:
            mine = [v for record, _, v in leaves if record.problem == pair.problem]
            assert pair.winner.value >= bar
            assert pair.winner.value > pair.loser.value == min(mine)
            assert pair.winner.answered != pair.loser.answered
            for side in (pair.winner, pair.loser):
                path = records[side.episode].path(side.leaf)
                turns = [turn for node in path for turn in node.turns if turn.agent == agent]
                assert side.answered in [turn.completion.text for turn in turns]


def test_a_contrast_says_what_was_seen_said_and_made_of_it() -> None:
    credit = {"agent": "writer", "leaf": "0.3.0.0", "low": 0.0, "high": 0.4}
    credits = (CreditRecord(credit=0.2, **credit),)
    record = episode(5, 0, by("writer", "12390"), Chains(5), credits)
    leaf = record.node("0.3.0.0")
    score = leaf.score.model_copy(update={"feedback": "9 a's", "tags": ("good",)})
    record = record.model_copy(
        update={
            "nodes": tuple(
                node.model_copy(update={"value": 0.9, "score": score})
                if node.id == leaf.id
                else node
                for node in record.nodes
            )
        }
    )
    (pair,) = contrasts([record], "writer", 0.2)
    assert (pair.agent, pair.problem) == ("writer", "train-0")
    assert (pair.winner.episode, pair.winner.leaf, pair.loser.leaf) == (5, leaf.id, "0.0.0.0")
    assert (pair.winner.answered, pair.loser.answered) == ("a" * 9, "a")
    assert pair.winner.saw == "word 0"
    assert pair.winner.feedback == "9 a's\non 0.3"
    assert pair.winner.tags == ("good",)
    assert (pair.winner.credit, pair.loser.credit) == (0.2, None)


def test_an_agent_that_did_the_same_in_both_has_no_contrast() -> None:
    records = [episode(0, policy=by("refactorer", "12390"))]
    assert len(contrasts(records, "refactorer", 0.2)) == 1
    assert contrasts(records, "writer", 1.0) == ()


def test_equal_values_have_no_contrast() -> None:
    assert contrasts([episode(0, policy=by("refactorer", "33333"))], "refactorer", 1.0) == ()
    assert contrasts([], "writer", 1.0) == ()


def test_the_worst_is_sought_over_all_episodes_of_the_problem() -> None:
    good = episode(0, 0, policy=by("refactorer", "88888"))
    bad = episode(1, 0, policy=by("refactorer", "11111"))
    other = episode(2, 1, policy=by("refactorer", "00000"))
    (pair,) = contrasts([good, bad, other], "refactorer", 0.2)
    assert (pair.winner.episode, pair.loser.episode, pair.problem) == (0, 1, "train-0")


def test_solved_problems_do_not_crowd_out_those_with_something_to_learn() -> None:
    solved = [episode(n, 0, policy=by("refactorer", "99999")) for n in range(2)]
    mixed = episode(2, 1, policy=by("refactorer", "09990"))
    (pair,) = contrasts([*solved, mixed], "refactorer", 0.1)
    assert pair.problem == "train-1"


def test_a_person_outranks_the_value() -> None:
    record = episode(4, policy=by("refactorer", "12345"))
    by_answer = {record.node(x.id).turns[0].completion.text: x.id for x in record.leaves()}
    ratings = {(4, by_answer["a"]): 1.0, (4, by_answer["aaa"]): 0.0, (9, by_answer["aa"]): 0.9}
    (pair,) = contrasts([record], "refactorer", 0.2, ratings)
    assert (pair.winner.answered, pair.winner.value) == ("a", 1.0)
    assert (pair.loser.answered, pair.loser.value) == ("aaa", 0.0)


def test_varied_takes_each_problem_once_first() -> None:
    records = [episode(n, problem) for n, problem in enumerate((0, 0, 1, 2))]
    found = contrasts(records, "refactorer", 1.0)
    chosen: tuple[Contrast, ...] = varied(found, 3)
    assert {c.problem for c in chosen} == {c.problem for c in found}
    assert chosen[0] == found[0]
    assert sorted(varied(found, 99), key=found.index) == list(found)
