"""The planted worlds are what they say, and the figures are counted right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import fmean, stdev

import pytest

from benchmarks.quality.acceptance import (
    Outcome,
    false_share,
    gepa,
    mixed,
    play,
    script_of,
    summed,
    t_test,
)
from benchmarks.quality.acceptance_learner import Run, default_updates
from benchmarks.quality.acceptance_report import FINDS, section
from benchmarks.quality.planted_prompts import NOISES, Candidate, World, new_world


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


def test_a_gain_comes_once_in_update_1_or_2_among_three_that_are_useless() -> None:
    for number in range(20):
        effects = script_of(("found", 0.1, 0, number)).effects
        assert sorted(map(len, effects)) == [3, 3, 3, 4]
        assert len(effects) == default_updates()
        (update,) = [update for update, own in enumerate(effects) if 0.1 in own]
        assert update < 2
        assert sum(map(sum, effects)) == 0.1


def test_a_run_repeats_and_every_rule_sees_the_same_effects() -> None:
    found = play(("worse", 0.0, 0, 0))
    assert found == play(("worse", 0.0, 0, 0))
    effects = [[each.effect for each in found[rule]] for rule in ("t_test", "gepa")]
    assert effects[0] == effects[1]
    assert all(effect <= 0 for effect in effects[0])


@pytest.mark.parametrize("deciding", [t_test, gepa])
def test_each_rule_takes_a_large_gain_and_refuses_a_large_loss(
    deciding: Callable[[World, Sequence[Candidate], random.Random], list[Outcome]],
) -> None:
    rng = random.Random(0)
    world = new_world(NOISES[0], rng)
    each = [Candidate(effect, world.shifted(effect, 0.0, rng)) for effect in (-0.3, 0.3)]
    assert [outcome.accepted for outcome in deciding(world, each, rng)] == [False, True]


GOOD, BAD = Run(True, 40, (0.1,), 900), Run(False, 0, (-0.03, 0.0), 300)


def test_runs_are_counted() -> None:
    row = summed([{"learner": GOOD}, {"learner": BAD}], 0.1, 0)
    assert (row["runs"], row["found"], row["false"], row["pairs"]) == (2, 1, 1, 40)
    assert row["spent"] == 1.5
    none = {"t_test": [Outcome(0.0, False, 100)], "gepa": [Outcome(0.0, True, 43)]}
    found = false_share([{"learner": BAD, **none}, {"learner": Run(False, 0, (), 1), **none}])
    assert (found["runs"], found["learner"], found["t_test"], found["gepa"]) == (2, 1, 0, 2)
    drawn = mixed([{"learner": GOOD, **none}, {"learner": BAD, **none}])
    assert drawn["learner"]["accepted"] == 3
    assert (drawn["learner"]["false"], drawn["learner"]["harmful"]) == (2, 1)
    assert drawn["learner"]["mean"] == pytest.approx(0.07 / 3)
    assert (drawn["gepa"]["accepted"], drawn["t_test"]["accepted"]) == (2, 0)


def test_a_missed_goal_is_called_missed() -> None:
    none: dict[str, list[Outcome]] = {"t_test": [], "gepa": []}
    played = [{"learner": BAD, **none}] * 10
    rows = [summed(played, gain, noise) for gain, noise in ((0.1, 0), (0.05, 1))]
    found = {
        "sd": [{"sd": 0.2, "measured": 0.2}],
        **dict.fromkeys(FINDS, rows),
        "null": {"equal": false_share(played)},
        "mixed": mixed(played),
    }
    text = section(found)
    assert "80%, **missed**" in text
    assert "at most 7%: **missed**" in text
    assert "with its interval: **missed**" in text
    assert "times the search's calls: met" in text
