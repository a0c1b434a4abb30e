"""The whole learner on planted worlds: what is scripted stays what it is, and is counted right."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from benchmarks.quality.acceptance_learner import (
    DEV,
    PAIR_CALLS,
    TEAM,
    Arena,
    Run,
    Script,
    default_calls,
    default_updates,
    play,
    scripts,
    summary,
)
from benchmarks.quality.planted_prompts import NOISES, PROBLEMS, new_world
from orchestry.backends.api.learner import cost
from orchestry.backends.api.library import Behavior, Library


def test_a_large_gain_is_found_and_a_run_repeats() -> None:
    script = Script(((0.3, -0.3, -0.3), (), ()))
    runs = [play(script, 0, number) for number in range(4)]
    assert [run.found for run in runs] == [True] * 4
    assert not any(run.false for run in runs)
    assert runs[0] == play(script, 0, 0)


def test_losses_are_neither_tried_for_long_nor_accepted() -> None:
    run = play(Script(((-0.3, -0.3, -0.3),) * 2), 0, 0)
    assert run == Run(found=False, tried=False, false=False, pairs=run.pairs)
    assert run.pairs < 200


def test_scarce_calls_end_a_run_before_its_trial_is_decided() -> None:
    run = play(Script(((0.05,),), calls=150), 0, 3)
    spent = run.pairs * PAIR_CALLS
    assert not run.found
    assert 0 < spent <= 150 + 8 * PAIR_CALLS, "the allowance, and at most a batch more"


async def test_the_planted_arena_plays_the_rule_and_charges_a_pair() -> None:
    world = new_world(NOISES[0], random.Random(0))
    rule = Behavior(agent=TEAM[1].role, text="say it")
    arena = Arena(world, {"say it": tuple(1.0 for _ in range(PROBLEMS))})
    before = Library(task="t", model="m")
    after = before.accept(rule, 3)
    own = [await arena.play(after, DEV[0], seed) for seed in range(5)]
    base = [await arena.play(before, DEV[0], seed) for seed in range(400)]
    assert [played.value for played in own] == [1.0] * 5
    assert fmean(played.value or 0.0 for played in base) == pytest.approx(
        world.chances_P[0], abs=0.04
    )
    assert cost([own[:1], base[:1]])[0] == PAIR_CALLS


def test_the_default_run_is_the_defaults() -> None:
    assert (default_calls(), default_updates()) == (100, 4)
    assert len(scripts()["default"].effects) == 4


def test_runs_are_counted() -> None:
    runs = [Run(True, True, False, 100), Run(False, True, True, 300), Run(False, False, False, 50)]
    found = summary(runs)
    assert (found["runs"], found["tried"], found["found"], found["false"]) == (3, 2, 1, 1)
    assert found["pairs"] == 150
