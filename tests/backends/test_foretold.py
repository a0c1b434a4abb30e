"""Foretold updates: whom a chain's calls belong to, and what a walk over updates spends."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.backends.api.learner import BATCH
from orchestry.backends.api.library import Behavior, Library
from orchestry.backends.foretold import Chain, Walk
from orchestry.core.config import BehaviorsConfig

LINE = Chain((("writer",), ("reviewer",), ("refactorer",)))
DUET = Chain((("left", "right"), ("left", "right")))
EMPTY = Library(task="words", model="fake-1")
DEV = ("d0", "d1", "d2")
UPDATES = 10


def walk(settings: BehaviorsConfig, seed: int = 0, chain: Chain = LINE, **kept: Library) -> Walk:
    return Walk(settings, Random(seed), chain, DEV, kept.get("library", EMPTY), examples=1.0)


def holding(status: str) -> Library:
    held = {"agent": "writer", "text": "Say it in verse.", "why": "", "status": status}
    return EMPTY.put(Behavior.model_validate(held))


@pytest.mark.parametrize(
    ("chain", "agent", "own"),
    [
        (LINE, "writer", 3),
        (LINE, "refactorer", 1),
        (DUET, "left", 3),  # what the other says at first doesn't hang on it
        (DUET, "right", 3),
        (LINE, "nobody", 0),
    ],
)
def test_a_chain_with_another_prompt_shares_the_calls_before_it(
    chain: Chain, agent: str, own: int
) -> None:
    assert chain.own(agent) == own


@given(
    st.integers(0, 1000),
    st.integers(1, 5000),
    st.integers(1, 8),
    st.integers(8, 60),
    st.sampled_from([LINE, DUET]),
)
def test_updates_spend_what_they_may_and_at_most_two_screenings_and_a_batch_more(
    seed: int, allowance: int, count: int, pairs: int, chain: Chain
) -> None:
    config = BehaviorsConfig(candidates=count, pairs=pairs)
    tried, agent = walk(config, seed, chain), chain.stages[0][0]
    screening = config.screen * chain.calls
    most = max(allowance, screening * (2 + count)) + screening * (1 + count)
    for number in range(1, UPDATES + 1):
        before = tried.calls
        tried.update(allowance, {agent: count})
        assert tried.calls - before <= most + BATCH * 2 * chain.calls
        assert tried.distilled <= number
    assert tried.calls > 0
    assert tried.distilled >= 1


def test_agents_that_share_the_blame_are_each_distilled_for_and_screened() -> None:
    config = BehaviorsConfig(candidates=2)
    one, two = walk(config), walk(config)
    one.update(1, {"writer": 1})
    two.update(1, {"writer": 1, "reviewer": 1})
    assert (one.distilled, two.distilled) == (1, 2)
    # a rule and an example each, and the team as it is; nothing is left for a second screening
    assert one.calls in _screened(config, (3, 3), spare=6)
    assert two.calls in _screened(config, (3, 3, 2, 2), spare=6)


def _screened(config: BehaviorsConfig, arms: tuple[int, ...], spare: int) -> set[int]:
    """Calls of a screening, and of one with a batch of pairs behind it."""
    paid = config.screen * (LINE.calls + sum(arms))
    return {paid, *(paid + BATCH * each for each in (spare - 1, spare))}


def test_no_more_pairs_are_paid_for_than_a_trial_may_have() -> None:
    tried = walk(BehaviorsConfig(pairs=10), library=holding("accepted"))
    tried.update(10**6, {})
    assert tried.calls in (8 * 2 * LINE.calls, 10 * 2 * LINE.calls)


def test_a_larger_allowance_is_spent_on_trials() -> None:
    little, much = walk(BehaviorsConfig()), walk(BehaviorsConfig())
    for _ in range(UPDATES):
        little.update(50, {"writer": 3})
        much.update(2000, {"writer": 3})
    assert much.calls > 3 * little.calls


def test_what_a_library_brings_is_tested_though_nothing_is_distilled() -> None:
    bare, moved, kept = (
        walk(BehaviorsConfig(), library=library)
        for library in (EMPTY, holding("candidate"), holding("accepted"))
    )
    for tried in (bare, moved, kept):
        tried.update(100, {})
        assert tried.distilled == 0
    assert bare.calls == 0
    assert moved.calls >= 4 * 2 * LINE.calls  # screened: four problems, with it and without
    assert kept.calls >= BATCH * 2 * LINE.calls  # tested again
