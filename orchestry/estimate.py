"""The dry run: what a resolved config will cost, before a cent is spent and without any network.

The real task is played on the real schedule, with answers of a length drawn from a prior and
rewards drawn at random; each simulated call is priced as a paid one would be. The hard maximum
takes every call at its longest, asked and billed as often as the retries allow.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry.baselines import schedule
from orchestry.config import RunConfig
from orchestry.engine import prepare
from orchestry.prior import clip_tokens, filler, output_prior
from orchestry.rollout import Rate, Rollout
from orchestry.seeds import derive
from orchestry.session import Plan
from orchestry.types import Completion, Frozen, Part, Policy, Request, Score, Trajectory

SIMULATIONS = 60
EPISODES_EACH = 4
BYTES_PER_TOKEN = 4.0
INPUT_SIGMA = 0.08
"""Spread of the tokens that a model makes of a text, between models."""
BETWEEN_SIGMA = 0.7
"""Spread of an agent's mean length of answer, between models and tasks."""
LONGEST_TOKEN = 16
"""Bytes of text that one token of an answer is taken to bring into later prompts at most."""


class Row(Frozen):
    """Expected figures of one agent's calls of one purpose."""

    agent: str
    purpose: str
    calls: float
    input_tokens: float
    output_tokens: float
    usd: float


class Dollars(Frozen):
    """The cost of the run: 5th and 95th percentile, mean, and what it can never pass."""

    p5: float
    expected: float
    p95: float
    max: float


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
class _Tally:
    calls: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    usd: float = 0.0

    def add(self, completion: Completion, share: float) -> None:
        self.calls += share
        self.input_tokens += completion.input_tokens * share
        self.output_tokens += completion.output_tokens * share
        self.usd += completion.usd * share


Tallies = defaultdict[tuple[str, str], _Tally]


class Simulated:
    """A policy that answers with filler of a random length and knows what it would have cost."""

    def __init__(self, plan: Plan, rng: random.Random, tallies: Tallies, share: float) -> None:
        self.plan, self.rng, self.tallies, self.share = plan, rng, tallies, share
        self.input_factor = rng.lognormvariate(0.0, INPUT_SIGMA)
        self.repeats = rng.uniform(0.0, 0.4)
        self.factors: defaultdict[str, float] = defaultdict(
            lambda: rng.lognormvariate(0.0, BETWEEN_SIGMA)
        )
        self.usd = 0.0

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [self._samples(request, n) for request in requests]

    def _samples(self, request: Request, n: int) -> list[Completion]:
        drawn: list[Completion] = []
        for _ in range(n):
            completion = self._answer(request)
            if drawn and self.rng.random() < self.repeats:  # equal answers meet in one state
                completion = completion.model_copy(update={"text": drawn[-1].text})
            drawn.append(completion)
            self.usd += completion.usd
            self.tallies[request.agent, request.purpose].add(completion, self.share)
        return drawn

    def _answer(self, request: Request) -> Completion:
        mu, sigma = output_prior(request.max_tokens)
        length = self.rng.lognormvariate(mu, sigma) * self.factors[request.agent]
        output = clip_tokens(length, request.max_tokens)
        sent = sum(len(message.content.encode()) for message in request.messages)
        completion = Completion(
            text=filler(output, self.rng),
            model=request.model,
            input_tokens=max(1, round(sent / BYTES_PER_TOKEN * self.input_factor)),
            output_tokens=output,
        )
        return completion.model_copy(update={"usd": self.plan.backend.prices.cost(completion)})


class Longest:
    """A policy whose every answer is as long and as dear as it can be."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.usd, self._count = plan, 0.0, 0

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [self._samples(request, n) for request in requests]

    def _samples(self, request: Request, n: int) -> list[Completion]:
        backend, attempts = self.plan.backend, self.plan.config.retry.attempts
        bound = backend.provider.input_bound(request)
        once = backend.prices.worst(request.model, bound, request.max_tokens, shared=True)
        self.usd += once * n * attempts
        return [self._answer(request) for _ in range(n)]

    def _answer(self, request: Request) -> Completion:
        self._count += 1  # no two answers are equal, so that no branch is saved
        size = request.max_tokens * LONGEST_TOKEN
        return Completion(text=f"{self._count} ".ljust(size, "x"), model=request.model)


def estimate(config: RunConfig, environ: Mapping[str, str] = os.environ) -> Estimate:
    """Simulates the run that the config describes; raises ConfigError as the run itself would.

    A missing API key is no error: what a run costs can be asked before having one.
    """
    plan = prepare(config, environ=environ, need_key=False)
    tallies: Tallies = defaultdict(_Tally)
    totals = sorted(_simulate(plan, seed, tallies) for seed in range(SIMULATIONS))
    cap = math.inf if config.budget.usd is None else config.budget.usd
    cut = [min(total, cap) for total in totals]
    most = min(cap, _most(plan))
    rows = tuple(_row(key, tally) for key, tally in tallies.items())
    return Estimate(
        task=config.task,
        provider=plan.backend.provider.name,
        model=plan.backend.provider.model,
        episodes=config.episodes,
        calls=round(sum(row.calls for row in rows)),
        input_tokens=round(sum(row.input_tokens for row in rows)),
        output_tokens=round(sum(row.output_tokens for row in rows)),
        cost_usd=Dollars(
            p5=_quantile(cut, 0.05),
            expected=sum(cut) / len(cut),
            p95=min(_quantile(cut, 0.95), most),
            max=most,
        ),
        usage=rows,
    )


def _simulate(plan: Plan, seed: int, tallies: Tallies) -> float:
    """Dollars of one simulated run: some of its episodes, scaled to all of them."""
    episodes = plan.config.episodes
    played = min(episodes, EPISODES_EACH)
    rng = random.Random(derive("estimate", seed))
    policy = Simulated(plan, rng, tallies, episodes / played / SIMULATIONS)

    async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        values = [rng.choice((0.0, 0.25, 0.5, 0.75, 1.0)) for _ in nodes]
        return [Score(parts=(Part(name="simulated", value=value),)) for value in values]

    for episode in rng.sample(range(episodes), played):
        _play(plan, policy, rate, episode)
    return policy.usd * episodes / played


def _most(plan: Plan) -> float:
    """Dollars if every call of every episode takes its worst course."""
    by_problem: dict[str, float] = {}

    async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        steps = range(1, len(nodes) + 1)  # all different: a stage without ties costs most
        return [Score(parts=(Part(name="simulated", value=step / len(nodes)),)) for step in steps]

    total = 0.0
    for episode in range(plan.config.episodes):
        problem = plan.problem(episode).id
        if problem not in by_problem:
            policy = Longest(plan)
            _play(plan, policy, rate, episode)
            by_problem[problem] = policy.usd
        total += by_problem[problem]
    return total


def _play(plan: Plan, policy: Policy, rate: Rate, episode: int) -> None:
    problem, search = plan.problem(episode), plan.config.search
    rollout = Rollout(
        task=plan.task,
        team=plan.backend.team(plan.task),
        policy=policy,
        rate=rate,
        schedule=schedule(search, plan.task, problem),
        joint=search.joint,
    )
    asyncio.run(rollout.play(problem, derive(plan.config.seed, "episode", episode)))


def _row(key: tuple[str, str], tally: _Tally) -> Row:
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
