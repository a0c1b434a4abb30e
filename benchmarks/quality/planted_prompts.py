"""Planted worlds for prompt changes: dev problems, noisy rewards, candidates of known effect.

An episode's reward is the share of some tests passed, each with the problem's chance. A candidate
shifts the chances by an effect that varies from problem to problem and whose mean over them is
planted exactly. Pairs draw problems evenly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import stdev

from orchestry.core.seeds import derive

MINIBATCH = 3
"""Pairs that GEPA's rule looks at first."""
T_PAIRS, T_CRITICAL = 100, 1.660
"""Pairs of the fixed test, and the 95th percentile of t at 99 degrees of freedom."""
PROBLEMS = 40
"""Dev problems of a world."""
SPREAD = 0.05
"""Sd of an effect from problem to problem."""
EFFECT_SD = 0.04
"""Sd of the effects of drawn candidates."""
EXACT = 1e-7
"""How far the mean of a candidate's shifts may lie from the planted effect."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How noisy an episode is: tests that a reward averages, and the spread of difficulties."""

    sd: float
    tests: int
    shape: float


NOISES = (Noise(0.20, 10, 2.0), Noise(0.35, 3, 1.387))
"""The sd of a paired difference is sqrt(2 E[p (1 - p)] / tests), with p from Beta(shape, shape)."""


@dataclass(frozen=True, slots=True)
class World:
    """The dev problems' chances of success under the current prompts, of shape (P,)."""

    noise: Noise
    chances_P: tuple[float, ...]

    def shifted(self, effect: float, spread: float, rng: random.Random) -> tuple[float, ...]:
        """A candidate's chances: noisy shifts, moved until their mean is the effect."""
        aims = [chance + rng.gauss(0.0, spread) for chance in self.chances_P]
        goal, shift = sum(self.chances_P) + effect * len(aims), effect
        while True:
            moved = [min(1.0, max(0.0, aim + shift)) for aim in aims]
            missing = (goal - sum(moved)) / len(aims)
            if abs(missing) < EXACT:
                return tuple(moved)
            shift += missing

    def reward(self, chance: float, rng: random.Random) -> float:
        """One episode's reward: the share of tests passed."""
        draw = rng.random
        return sum([draw() < chance for _ in range(self.noise.tests)]) / self.noise.tests

    def pairs(self, candidate_P: Sequence[float], rng: random.Random) -> Iterator[float]:
        """Paired differences without end, on problems drawn evenly."""
        both = list(zip(candidate_P, self.chances_P, strict=True))
        while True:
            new, old = both[int(rng.random() * len(both))]
            yield self.reward(new, rng) - self.reward(old, rng)


@dataclass(frozen=True, slots=True)
class Candidate:
    effect: float
    chances_P: tuple[float, ...]


def new_world(noise: Noise, rng: random.Random) -> World:
    return World(noise, tuple(rng.betavariate(noise.shape, noise.shape) for _ in range(PROBLEMS)))


def noise_of(noise: int) -> float:
    """The sd of paired differences between equals, over 200 worlds."""
    rng = random.Random(derive("acceptance", "sd", noise))
    worlds = [new_world(NOISES[noise], rng) for _ in range(200)]
    return stdev(d for world in worlds for d in islice(world.pairs(world.chances_P, rng), 50))
