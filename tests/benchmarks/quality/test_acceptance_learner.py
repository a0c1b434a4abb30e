"""The whole learner on planted worlds: what is scripted stays what it is."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from benchmarks.quality.acceptance_learner import (
    DEV,
    PAIR_CALLS,
    TEAM,
    Arena,
    Script,
    default_calls,
    default_updates,
    play,
    searched,
)
from benchmarks.quality.planted_prompts import NOISES, PROBLEMS, new_world
from orchestry.backends.api.learner import MOST_SHARE
from orchestry.backends.api.pairs import cost
from orchestry.backends.library import Behavior, Library


@pytest.mark.parametrize("examples", [False, True])
def test_a_large_gain_is_found_soon_and_a_run_repeats(examples: bool) -> None:
    script = Script(((0.3, -0.3, -0.3), (), (), ()), examples=examples)
    runs = [play(script, 0, number) for number in range(4)]
    assert [run.accepted for run in runs] == [(0.3,)] * 4
    assert all(run.won_after <= 60 for run in runs)
    assert runs[0] == play(script, 0, 0)


def test_losses_neither_race_for_long_nor_are_accepted() -> None:
    run = play(Script(((-0.3, -0.3, -0.3),) * 2), 0, 0)
    assert (run.found, run.accepted) == (False, ())
    assert run.calls < 350


def test_a_run_spends_no_more_than_it_may() -> None:
    run = play(Script(((0.001, 0.001, 0.001),) * 4), 1, 0)
    assert searched() < run.calls <= MOST_SHARE * searched()


async def test_the_planted_arena_plays_the_rule_and_charges_a_pair() -> None:
    world = new_world(NOISES[0], random.Random(0))
    rule = Behavior(agent=TEAM[1].role, text="say it")
    arena = Arena(world, {"say it": tuple(1.0 for _ in range(PROBLEMS))})
    before = Library(task="t", model="m")
    after = before.accept(rule, 3)
    own = [await arena.play(after, DEV[0], seed, ()) for seed in range(5)]
    base = [await arena.play(before, DEV[0], seed, ()) for seed in range(400)]
    assert [played.value for played in own] == [1.0] * 5
    assert fmean(played.value or 0.0 for played in base) == pytest.approx(
        world.chances_P[0], abs=0.04
    )
    assert cost(["0"], [[own[0], base[0]]], {TEAM[1].role}, frozenset())[0] == PAIR_CALLS


def test_the_default_run_is_the_defaults() -> None:
    assert (default_calls(), default_updates(), searched()) == (100, 4, 400)
