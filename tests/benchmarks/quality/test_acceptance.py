"""The planted worlds are what they say, and the figures are counted right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import fmean, stdev

import pytest

from benchmarks.quality.acceptance import (
    Outcome,
    gepa,
    null,
    one_trial,
    play,
    sequential,
    spent,
    t_test,
)
from benchmarks.quality.planted_prompts import NOISES, Candidate, World, new_world, propose
from benchmarks.stats import wilson


@pytest.mark.parametrize("effect", [-0.1, 0.0, 0.05])
def test_the_planted_effect_is_exact(effect: float) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        world = new_world(NOISES[seed % 2], rng)
        shifted = world.shifted(effect, 0.05, rng)
        assert all(0.0 <= chance <= 1.0 for chance in shifted)
        assert fmean(shifted) - fmean(world.chances_P) == pytest.approx(effect, abs=1e-6)


@pytest.mark.parametrize("number", [0, 1])
def test_paired_differences_have_the_stated_noise(number: int) -> None:
    noise, rng = NOISES[number], random.Random(number)
    worlds = [new_world(noise, rng) for _ in range(40)]
    seen = [d for world in worlds for d in islice(world.pairs(world.chances_P, rng), 100)]
    assert stdev(seen) == pytest.approx(noise.sd, rel=0.06)
    assert fmean(seen) == pytest.approx(0.0, abs=0.02)


def test_a_run_repeats_and_every_rule_sees_the_same_candidates() -> None:
    found = play(("worse", 0))
    assert found == play(("worse", 0))
    effects = [[each.effect for each in outcomes] for outcomes in found.values()]
    assert effects[0] == effects[1] == effects[2]
    assert all(effect <= 0 for effect in effects[0])


@pytest.mark.parametrize("deciding", [sequential, t_test, gepa])
def test_each_rule_takes_a_large_gain_and_refuses_a_large_loss(
    deciding: Callable[[World, Sequence[Candidate], random.Random], list[Outcome]],
) -> None:
    rng = random.Random(0)
    world = new_world(NOISES[0], rng)
    each = [Candidate(effect, world.shifted(effect, 0.0, rng)) for effect in (-0.3, 0.3)]
    assert [outcome.accepted for outcome in deciding(world, each, rng)] == [False, True]


def test_the_screening_picks_one_without_effect() -> None:
    rng = random.Random(1)
    world = new_world(NOISES[0], rng)
    chosen = propose("screened", world, rng)
    assert fmean(chosen.chances_P) == pytest.approx(fmean(world.chances_P), abs=1e-6)


def test_runs_and_candidates_are_counted() -> None:
    good, bad, none = Outcome(0.06, True, 50), Outcome(-0.03, True, 70), Outcome(-0.1, False, 30)
    figures = spent([good, bad, none])
    assert (figures["accepted"], figures["harmful"], figures["false"]) == (2, 1, 1)
    assert (figures["useful"], figures["useful_found"]) == (1, 1)
    assert (figures["pairs"], figures["loser_pairs"]) == (50, 50)
    run = {"sequential": [none], "t_test": [none, bad], "gepa": [bad, good]}
    found = null([run, {**run, "gepa": [none]}])
    assert [found[name]["hits"] for name in run] == [0, 2, 1]


def test_wilsons_interval() -> None:
    assert wilson(10, 100) == pytest.approx((0.0552, 0.1744), abs=1e-3)
    assert wilson(0, 50)[0] == 0.0
    assert wilson(50, 50)[1] == pytest.approx(1.0)


def test_most_planted_gains_are_found_and_kept() -> None:
    found = [one_trial(seed, 0, 0.05, 1, 1000) for seed in range(40)]
    assert fmean(each.accepted for each in found) >= 0.75
    kept = [one_trial(seed, 0, 0.05, 0, 1000) for seed in range(40)]
    assert fmean(each.accepted for each in kept) >= 0.95
