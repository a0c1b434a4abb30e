"""A judge whose noise and place bias are planted, and the sibling sets that it is asked about.

What it thinks of a candidate of quality q (normal, variance 1) shown at place p of a call is

    u = q + bias(p) + noise,

with noise drawn anew for each candidate and call. Asked for the better of two it names the one with
the higher u. Asked to rate it rounds 5 + 1.5 (u - mean bias) to 0..10, the same on all scales, so
that nothing is gained by averaging over these.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import NormalDist, fmean
from typing import Any

from orchestry.core.seeds import derive
from orchestry.core.types import ROOT, Completion, Problem, Request, Siblings, Trajectory, Turn
from orchestry.judge import prompt as rating
from orchestry.models.fake import filler

FLIPS, FIRST = 0.136, 0.72
"""Shares of pairwise verdicts: changed when asked again, and won by the candidate shown first."""
TOKENS = 150
"""Length of a candidate, of the problem and of the one turn before, in tokens of four bytes."""
FEEDBACK = "Handles the plain cases and the empty input, but misses what happens at the last index."
SHAPES: dict[str, Callable[[int, int], float]] = {
    "halves": lambda place, size: 2.0 * 0.5**place,
    "first": lambda place, size: float(place == 0),
    "ends": lambda place, size: float(place == 0) + 0.5 * (place == size - 1 > 1),
    "linear": lambda place, size: float(size - 1 - place),
}
"""Bias of a place in a list, in units of the first place's lead over the second."""
Group = tuple[float, ...]
"""The planted qualities of one sibling set."""


@dataclass(frozen=True, slots=True)
class Temper:
    """How unreliable the planted judge is. `bias`: the first place's lead over the second."""

    noise: float
    bias: float
    shape: str = "halves"

    def places(self, size: int) -> list[float]:
        """Bias by place in a list of that size, with mean zero."""
        raw = [self.bias * SHAPES[self.shape](place, size) for place in range(size)]
        return [one - fmean(raw) for one in raw]


class Planted:
    """A Policy: the planted judge. It counts the bytes it was asked and answered."""

    def __init__(self, groups: Sequence[Group], temper: Temper) -> None:
        self._groups = groups
        self._temper = temper
        self.calls = self.asked = self.answered = 0

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request) for _ in range(n)] for request in requests]

    def _answer(self, request: Request) -> Completion:
        schema = json.dumps(request.response_schema)
        text = json.dumps(self._verdict(request))
        self.calls += 1
        self.asked += len(schema) + sum(len(m.content.encode()) for m in request.messages)
        self.answered += len(text)
        return Completion(text=text, model=request.model)

    def _verdict(self, request: Request) -> dict[str, Any]:
        shown = re.findall(r"^Draft (\d+)-(\d+)\.", request.messages[-1].content, re.MULTILINE)
        rng = random.Random(request.seed)
        liked = [
            self._groups[int(group)][int(item)] + bias + rng.gauss(0.0, self._temper.noise)
            for (group, item), bias in zip(shown, self._temper.places(len(shown)), strict=True)
        ]
        if "better" in (request.response_schema or {})["properties"]:
            return {"better": "A" if liked[0] > liked[1] else "B"}
        return {
            name: dict.fromkeys(
                ("quality", "collaboration", "efficiency"),
                min(rating.TOP, max(0, round(5.0 + 1.5 * one))),
            )
            | {"feedback": FEEDBACK}
            for name, one in zip(rating.labels(len(shown)), liked, strict=True)
        }


def qualities(groups: int, size: int, seed: int) -> list[Group]:
    """The benchmark's sibling sets."""
    rng = random.Random(derive(seed, "qualities", size))
    return [tuple(rng.gauss(0.0, 1.0) for _ in range(size)) for _ in range(groups)]


def calibrate(groups: Sequence[Group]) -> Temper:
    """Noise and bias that give FLIPS and FIRST on all pairs of the groups, each in both orders."""
    gaps = [a - b for group in groups for a, b in permutations(group, 2)]
    cdf = NormalDist().cdf

    def chances(noise: float, bias: float) -> list[float]:
        """That the first of each pair wins."""
        return [cdf((gap + bias) / (noise * math.sqrt(2.0))) for gap in gaps]

    def bias_for(noise: float) -> float:
        return rising(lambda bias: fmean(chances(noise, bias)), FIRST, 0.0, 4.0)

    def flips(noise: float) -> float:
        return fmean(2.0 * p * (1.0 - p) for p in chances(noise, bias_for(noise)))

    noise = rising(flips, FLIPS, 0.01, 2.0)
    return Temper(noise, bias_for(noise))


def rising(f: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a rising function takes a value, by bisection."""
    for _ in range(20):
        middle = (low + high) / 2.0
        low, high = (middle, high) if f(middle) < target else (low, middle)
    return (low + high) / 2.0


def family(number: int, size: int) -> Siblings[Any]:
    """One sibling set: texts of the usual length, each with its number."""
    rng = random.Random(number)
    problem = Problem(id=f"p{number}", prompt=filler(TOKENS, rng))
    root: Trajectory[Any] = Trajectory(ROOT, problem, number, None)
    parent = root.extend(0, None, [_turn("writer", filler(TOKENS, rng))])
    children = tuple(
        parent.extend(
            item, None, [_turn("reviewer", f"Draft {number}-{item}. {filler(TOKENS, rng)}")]
        )
        for item in range(size)
    )
    return Siblings(parent, ("reviewer",), children, ended=frozenset())


def _turn(agent: str, text: str) -> Turn:
    return Turn(agent=agent, messages=(), completion=Completion(text=text, model="planted"))
