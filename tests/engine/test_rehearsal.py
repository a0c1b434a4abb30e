"""What stands in for models in a dry run: lengths of answers, and dev plays that nobody plays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from statistics import fmean

import pytest

from orchestry.backends.api.library import Behavior, Library
from orchestry.core.types import Problem, Request
from orchestry.engine.lengths import Length, Measured
from orchestry.engine.rehearsal import (
    DevPlays,
    Drawn,
    Move,
    Paid,
    Rewards,
    Talk,
)
from orchestry.engine.run import prepare
from tests.engine.test_estimate import CLAUDE, config

ROLES = ("writer", "reviewer", "refactorer")
DEV = Problem(id="d", prompt="Write.", split="dev")


def library(*agents: str) -> Library:
    """One accepted behaviour for each of the agents."""
    learned = (Behavior(agent=a, text=f"Be a {a}.", why="", status="accepted") for a in agents)
    return Library(task="t", model="m", behaviors=tuple(learned))


def arena(seed: int = 0) -> DevPlays:
    """Of one chain, in which the agents act in order."""
    rng = random.Random(seed)
    paid = [Paid(role, "trial", 10, 5, 0.25) for role in ROLES]
    chain = [Move(one, ROLES[: place + 1]) for place, one in enumerate(paid)]
    return DevPlays([chain], Rewards(rng, ROLES, []), rng)


@pytest.mark.parametrize(
    ("agent", "calls"), [("writer", (2, 2, 2)), ("reviewer", (1, 2, 2)), ("refactorer", (1, 1, 2))]
)
async def test_two_libraries_pay_once_up_to_where_their_prompts_differ(
    agent: str, calls: tuple[int, ...]
) -> None:
    plays = arena()
    base, other = [await plays.play(one, DEV, 7) for one in (library(), library(agent))]
    assert Counter(one.agent for one in plays.paid) == dict(zip(ROLES, calls, strict=True))
    alike = [a.messages == b.messages for a, b in zip(base.turns, other.turns, strict=True)]
    assert alike == [number == 1 for number in calls]
    await plays.play(library(agent), DEV, 8)  # another draw
    assert len(plays.paid) == sum(calls) + 3


async def test_a_play_repeats_and_a_behaviour_changes_some_of_them() -> None:
    plays, again = arena(), arena()
    base, other = library(), library("writer")
    seeds = range(200)
    values = [[(await plays.play(one, DEV, seed)).value for seed in seeds] for one in (base, other)]
    assert values[0] == [(await again.play(base, DEV, seed)).value for seed in seeds]
    alike = fmean(a == b for a, b in zip(*values, strict=True))
    assert 0.0 < alike < 1.0


def test_answers_are_as_long_as_measured_and_longer_where_they_were_cut() -> None:
    rng = random.Random(0)
    whole = Talk([Length(100, 900, False)], 2.0)
    assert whole.draw(rng, 1000) == (200, 1800.0)
    assert whole.draw(rng, 150)[0] == 150
    cut = Talk([Length(100, 400, True)], 1.0)
    lengths = [cut.draw(rng, 1000)[0] for _ in range(100)]
    assert min(lengths) >= 100
    assert 200 < fmean(lengths) < 600
    assert cut.draw(rng, 100)[0] == 100


def test_the_samples_that_have_an_angle_are_priced_with_it() -> None:
    plan = prepare(config(*CLAUDE), environ={}, need_key=False)
    policy = Drawn(plan, Measured(), random.Random(0), 0.0)
    member = plan.backend.team(plan.task)["writer"]
    asked = Request(agent="writer", model=member.model, messages=(), max_tokens=50)
    (answers,) = asyncio.run(policy.sample([asked], 3))
    assert [one.input_tokens > 10 for one in answers] == [False, True, True]
    assert [one.input_tokens for one in answers] == [paid.input_tokens for paid in policy.paid]
