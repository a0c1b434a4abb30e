"""The dry run: what a resolved config will cost, before a cent is spent and without any network.

The real task is played on the real schedule, with answers of a length drawn from a prior and
rewards drawn at random; each simulated call is priced as a paid one would be. The hard maximum is
that of bound.py, or the budget.

What the answers will be like is not known, so the spreads below say how unsure we are; nothing of
a provider's own settings is read. The cache of earlier runs is taken to be empty.
"""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

from orchestry.bound import Courses, most, play, schedule_of, simulated_score
from orchestry.config import RunConfig
from orchestry.engine import prepare
from orchestry.prior import (
    AGENT_SIGMA,
    BYTES_PER_TOKEN,
    INPUT_SIGMA,
    LOST_SHARE,
    MODEL_SIGMA,
    MOST_REPEATS,
    SHAPES,
    VERBOSITY,
    clip_tokens,
    filler,
    output_prior,
)
from orchestry.rollout import Rate
from orchestry.seeds import derive
from orchestry.session import Plan
from orchestry.types import Completion, Frozen, Request, Score, Trajectory

_normal = NormalDist().inv_cdf
FLOAT_NOISE = 1e-9
"""Relative error of a sum of dollars, at most."""
SIMULATIONS = (20, 100)
"""Fewest and most runs simulated; a wide search gets fewer, so that a dry run takes seconds."""
SIMULATED_CALLS = 40_000
"""Calls that all simulations together are to make."""
EPISODES_EACH = 4
"""Most episodes played in a simulated run, whose cost is then scaled to all of them."""


class Row(Frozen):
    """Expected figures of one agent's calls of one purpose."""

    agent: str
    purpose: str
    calls: float
    input_tokens: float
    output_tokens: float
    usd: float


class Dollars(Frozen):
    """The cost of the run: 5th and 95th percentile, mean, and what it can never pass.

    `max` is None where nothing bounds the run: how many calls it makes depends on the answers, or
    it has too many different first states to walk, and it has no budget.
    """

    p5: float
    expected: float
    p95: float
    max: float | None


class Estimate(Frozen):
    """A dry run's result; `--json` prints it."""

    task: str
    provider: str
    model: str
    episodes: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Dollars
    usage: tuple[Row, ...]


@dataclass(slots=True)
class Tally:
    """Sums of simulated calls, each with its share in the mean."""

    calls: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    usd: float = 0.0

    def add(self, completion: Completion, share: float) -> None:
        self.calls += share
        self.input_tokens += completion.input_tokens * share
        self.output_tokens += completion.output_tokens * share
        self.usd += completion.usd * share


Tallies = defaultdict[tuple[str, str], Tally]


class Simulated:
    """A policy that answers with filler of a random length and knows what it would have cost.

    `verbosity` multiplies the length of all answers of the run.
    """

    def __init__(
        self, plan: Plan, rng: random.Random, verbosity: float, tallies: Tallies, share: float
    ) -> None:
        self.plan, self.rng, self.tallies, self.share = plan, rng, tallies, share
        self.input_factor = rng.lognormvariate(0.0, INPUT_SIGMA)
        self.repeats = rng.uniform(0.0, MOST_REPEATS)
        self.lost_share = min(0.5, rng.expovariate(1 / LOST_SHARE))
        self.factors: defaultdict[str, float] = defaultdict(
            lambda: verbosity * rng.lognormvariate(0.0, AGENT_SIGMA)
        )
        self.usd = 0.0
        self.dearest = 0.0
        """The most that one call of the run reserves, in dollars."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [self._samples(request, n) for request in requests]

    def _samples(self, request: Request, n: int) -> list[Completion]:
        provider, drawn = self.plan.backend.provider, list[Completion]()
        shared = n > 1 and provider.leads(request)
        bound = provider.input_bound(request)
        worst = self.plan.backend.prices.worst(request.model, bound, request.max_tokens, shared)
        self.dearest = max(self.dearest, worst)
        prompt = self._tokens(request, bound)
        for index in range(n):
            completion = self._answer(request, prompt, index if shared else None)
            if drawn and self.rng.random() < self.repeats:  # equal answers meet in one state
                completion = completion.model_copy(update={"text": drawn[-1].text})
            drawn.append(completion)
            self.usd += completion.usd + self._lost() * worst
            self.tallies[request.agent, request.purpose].add(completion, self.share)
        return drawn

    def _tokens(self, request: Request, bound: int) -> int:
        sent = sum(len(message.content.encode()) for message in request.messages)
        return max(1, min(bound, round(sent / BYTES_PER_TOKEN * self.input_factor)))

    def _answer(self, request: Request, prompt: int, place: int | None) -> Completion:
        """`place` is the sample's among those that share a prompt in the vendor's cache."""
        mu, sigma = output_prior(request.max_tokens)
        length = self.rng.lognormvariate(mu, sigma) * self.factors[request.agent]
        output = clip_tokens(length, request.max_tokens)
        completion = Completion(
            text=SHAPES[1].format(filler(max(1, output - 4), self.rng)),  # a fence is four tokens
            model=request.model,
            input_tokens=prompt,
            cache_write_tokens=prompt if place == 0 else 0,
            cached_tokens=prompt if place else 0,
            output_tokens=output,
        )
        return completion.model_copy(update={"usd": self.plan.backend.prices.cost(completion)})

    def _lost(self) -> int:
        """Attempts before the one that is answered."""
        lost = 0
        while lost < self.plan.config.retry.attempts - 1 and self.rng.random() < self.lost_share:
            lost += 1
        return lost


def estimate(
    config: RunConfig,
    environ: Mapping[str, str] = os.environ,
    note: Callable[[str], None] = lambda text: None,
) -> Estimate:
    """Simulates the run that the config describes; raises ConfigError as the run itself would.

    A missing API key is no error: what a run costs can be asked before having one. Works inside a
    running event loop.
    """
    plan = prepare(config, note, environ, need_key=False)
    courses, tallies = Courses(), Tallies(Tally)
    worst, calls = most(plan, courses)
    totals = sorted(simulate(plan, calls, tallies, courses))
    rows = tuple(_row(key, tally) for key, tally in tallies.items())
    return Estimate(
        task=config.task,
        provider=plan.backend.provider.name,
        model=plan.backend.provider.model,
        episodes=config.episodes,
        calls=round(sum(row.calls for row in rows)),
        input_tokens=round(sum(row.input_tokens for row in rows)),
        output_tokens=round(sum(row.output_tokens for row in rows)),
        cost_usd=_dollars(totals, worst if courses.fixed else None, config.budget.usd),
        usage=rows,
    )


def _dollars(totals: Sequence[float], worst: float | None, cap: float | None) -> Dollars:
    """Sums up simulated runs, cheapest first; `worst` is None where no sum of calls is a maximum.

    A few odd runs can pull the mean beyond a percentile, which then gives way.
    """
    mean = min(max(fmean(totals), totals[0]), totals[-1])
    if worst is not None and totals[-1] > worst * (1 + FLOAT_NOISE):
        worst = None  # a simulated run made more of it: the walk missed a course
    ends = [end for end in (cap, worst) if end is not None]
    top = max(min(ends), totals[-1]) if ends else None
    return Dollars(
        p5=min(_quantile(totals, 0.05), mean),
        expected=mean,
        p95=max(_quantile(totals, 0.95), mean),
        max=top,
    )


def simulate(plan: Plan, calls: int, tallies: Tallies, courses: Courses) -> list[float]:
    """Dollars of simulated runs, in which an episode is about `calls` calls large.

    How much the model talks decides most, so it is not drawn but spread evenly over its
    quantiles; what is left to chance then moves the percentiles little.
    """
    fewest, largest = SIMULATIONS
    count = max(fewest, min(largest, SIMULATED_CALLS // calls))
    episodes = plan.config.episodes
    played = max(1, min(episodes, EPISODES_EACH, SIMULATED_CALLS // (calls * count)))
    totals = []
    for index in range(count):
        rng = random.Random(derive("estimate", index))
        verbosity = VERBOSITY * math.exp(MODEL_SIGMA * _normal((index + 0.5) / count))
        policy = Simulated(plan, rng, verbosity, tallies, episodes / played / count)
        for episode in rng.sample(range(episodes), played):
            tree = play(plan, policy, _at_random(rng), episode, schedule_of(plan, episode))
            courses.add(tree)
        totals.append(_capped(plan, policy.usd * episodes / played, policy.dearest, rng))
    return totals


def _capped(plan: Plan, total: float, dearest: float, rng: random.Random) -> float:
    """What is spent of a total: a run stops where the worst case of the next call doesn't fit."""
    cap = plan.config.budget.usd
    if cap is None:
        return total
    return min(total, max(0.0, cap - dearest * rng.random()))


def _at_random(rng: random.Random) -> Rate:
    async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        return [simulated_score(rng.choice((0.0, 0.25, 0.5, 0.75, 1.0))) for _ in nodes]

    return rate


def _row(key: tuple[str, str], tally: Tally) -> Row:
    agent, purpose = key
    return Row(
        agent=agent,
        purpose=purpose,
        calls=tally.calls,
        input_tokens=tally.input_tokens,
        output_tokens=tally.output_tokens,
        usd=tally.usd,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of sorted values."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
