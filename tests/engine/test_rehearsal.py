"""What stands in for models in a dry run: lengths of answers, their bill, and scores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from statistics import fmean

from orchestry.backends.api.backend import ApiBackend, Dev
from orchestry.backends.library import Behavior, Library
from orchestry.core.types import Completion, Request
from orchestry.engine.lengths import Length, Measured
from orchestry.engine.rehearsal import Standin, drawn_scores
from orchestry.engine.run import prepare
from tests.engine.test_estimate import CLAUDE, config

SCHEMA = {
    "type": "object",
    "properties": {"why": {"type": "string"}},
    "required": ["why"],
    "additionalProperties": False,
}


def standin(*lengths: Length, kind: str = "act", sets: Sequence[str] = ()) -> Standin:
    known = Measured()
    known.lengths["fake-1", kind] += lengths * 5
    return Standin(prepare(config(*sets), environ={}, need_key=False).backend, known, 0.0)


def asked(number: int, most: int, **changes: object) -> Request:
    plain = Request(agent="writer", model="fake-1", messages=(), max_tokens=most, seed=number)
    return plain.model_copy(update=changes)


def answers(policy: Standin, most: int, **changes: object) -> list[Completion]:
    """To a hundred requests."""
    requests = [asked(number, most, **changes) for number in range(100)]
    return [one for (one,) in asyncio.run(policy.sample(requests, 1))]


def test_answers_are_as_long_as_measured_and_longer_where_they_were_cut() -> None:
    whole = answers(standin(Length(100, 900, False)), 1000)
    (tokens,) = {one.output_tokens for one in whole}
    assert 40 < tokens < 250
    assert len(whole[0].text) == 9 * tokens
    cut = [one.output_tokens for one in answers(standin(Length(100, 400, True)), 1000)]
    assert len(set(cut)) > 50
    assert min(cut) >= 0.99 * tokens
    assert max(cut) <= 1000
    assert fmean(cut) > 2 * tokens
    assert {one.output_tokens for one in answers(standin(Length(100, 400, True)), 30)} == {30}


def test_verdicts_and_rules_are_as_long_as_measured_for_each_object_in_them() -> None:
    """Of the calls of their kind alone."""
    how = {"purpose": "distil", "response_schema": SCHEMA}
    long = [
        one.output_tokens
        for one in answers(standin(Length(900, 3, False), kind="distil"), 4000, **how)
    ]
    other = [one.output_tokens for one in answers(standin(Length(900, 3, False)), 4000, **how)]
    assert 100 < fmean(long) < 900
    assert fmean(other) < 60
    texts = [one.text for one in answers(standin(Length(900, 3, False), kind="distil"), 10, **how)]
    assert not any(text.endswith("}") for text in texts), "all of them were cut"


def test_the_first_sample_writes_a_shared_prompt_and_the_others_read_it() -> None:
    policy = standin(sets=CLAUDE)
    told = [{"role": "user", "content": "rules " * 4000}]
    model = {"model": "claude-sonnet-5", "messages": told}
    request = Request.model_validate(asked(0, 50).model_dump() | model)
    (drawn,) = asyncio.run(policy.sample([request], 3))
    assert [one.cache_write_tokens > 0 for one in drawn] == [True, False, False]
    assert [one.cached_tokens > 0 for one in drawn] == [False, True, True]
    ((who, row),) = policy.bill.items()
    assert who == ("writer", "act", "anthropic", "claude-sonnet-5")
    assert row[:2] == [3, sum(one.input_tokens for one in drawn)]


def test_two_libraries_pay_once_up_to_where_their_prompts_differ() -> None:
    plan = prepare(config("behaviors.enabled=true"), environ={}, need_key=False)
    assert isinstance(plan.backend, ApiBackend)
    policy, problem = Standin(plan.backend, Measured(), 0.0), plan.task.problems("dev")[0]
    arena = Dev(plan.backend, plan.task, policy, drawn_scores(random.Random(0)))
    learned = Behavior(agent="reviewer", text="Be strict.", why="", status="accepted")
    base, other = (Library(task="words", model="fake-1", behaviors=b) for b in ((), (learned,)))
    plays = [asyncio.run(arena.play(library, problem, 7, ())) for library in (base, base, other)]
    calls = {who[0]: row[0] for who, row in policy.bill.items()}
    assert calls == {"writer": 1, "reviewer": 2, "refactorer": 2}
    assert plays[0] == plays[1]
    assert plays[0].value != plays[2].value


async def test_siblings_tie_in_a_share_of_the_cases() -> None:
    plan = prepare(config(), environ={}, need_key=False)
    from orchestry.engine.rehearsal import rollout_of

    for ties, distinct in ((0.0, 4), (1.0, 1)):
        policy = Standin(plan.backend, Measured(), 0.0)
        rate = drawn_scores(random.Random(0), ties={"writer": ties})
        tree = await rollout_of(plan, policy, rate, 0).play(plan.problem(0), 0)
        firsts = {node.total for node in tree.nodes.values() if node.id.stage == 1}
        assert len(firsts) == distinct
