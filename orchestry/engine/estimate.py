"""The dry run: what a resolved config will cost, before a cent is spent and without any network.

A few episodes are played on the real path, with the real judge, replays and learner, several times
over; answers and rewards are drawn (rehearsal.py), and each call is priced as a paid one would be.
Each time the model is more talkative than the time before. Costs between these are interpolated.
That learned behaviours lengthen prompts is left out. The maximum is the budget, or that of
worst.py where it is smaller.

The cache of earlier runs is taken to be empty.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean, linear_regression, quantiles

from orchestry.backends.api.backend import ApiBackend
from orchestry.core.config import RunConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Frozen
from orchestry.engine.lengths import Measured, measured
from orchestry.engine.plan import Plan
from orchestry.engine.rehearsal import (
    DevPlays,
    Drawn,
    Move,
    Paid,
    Rewards,
    chain_of,
    rollout_of,
    updates_of,
)
from orchestry.engine.run import prepare
from orchestry.engine.worst import most
from orchestry.rollout.replay import give_credit
from orchestry.rollout.schedule import Chains
from orchestry.rollout.tree import episode_record
from orchestry.store.records import EpisodeRecord

_normal = NormalDist().inv_cdf
REHEARSALS = (5, 9)
"""Fewest and most times that the run is rehearsed; a wide search gets fewer."""
CALLS = 650
"""Calls of episodes that all rehearsals together are to make."""
EPISODES_EACH = 6
"""Most episodes played in a rehearsal, whose cost is then scaled to all of them."""
UPDATES_EACH = 6
"""Most updates taken in a rehearsal."""
BLOCK = 20
"""Most episodes that one of them learns from; it may spend on dev as if from all."""
CHAINS = 2
"""Dev plays in a rehearsal, which stand for all."""
NEAR = 3
"""Rehearsals next to each other whose chances are exchanged."""
DRAWS = 400
"""Runs whose costs are interpolated from the rehearsals."""
PURPOSES = ("act", "judge", "credit", "distil", "trial")
"""In the order of the rows."""


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

    `max` is None where nothing bounds the run: it has no budget, and it learns, or how many calls
    it makes may depend on the answers, or there are too many to look at.
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
    earlier_runs: int = 0
    """Runs of the model whose lengths of answers were taken."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One course that the run may take: its calls, and how many real ones each stands for."""

    level: float
    paid: Sequence[Paid]
    times: Mapping[str, float]
    dearest: float

    @property
    def usd(self) -> float:
        return sum(one.usd * self.times[one.purpose] for one in self.paid)


def estimate(
    config: RunConfig,
    environ: Mapping[str, str] = os.environ,
    note: Callable[[str], None] = lambda text: None,
    runs: Sequence[Path] = (),
) -> Estimate:
    """Rehearses the run that the config describes; raises ConfigError as the run itself would.

    `runs` are folders of earlier runs, which say how long the model's answers are. A missing API
    key is no error: what a run costs can be asked before having one. Works inside a running event
    loop.
    """
    plan = prepare(config, note, environ, need_key=False)
    models = {member.model for member in plan.backend.team(plan.task).values()}
    known = measured(runs, plan.config.task, models, note)
    with ThreadPoolExecutor(1) as pool:
        rehearsals, worst = pool.submit(asyncio.run, _all(plan, known)).result()
    roles = ["judge", *(spec.role for spec in plan.task.agents)]
    rows = sorted(
        _rows(rehearsals), key=lambda row: (PURPOSES.index(row.purpose), roles.index(row.agent))
    )
    return Estimate(
        task=config.task,
        provider=plan.backend.provider.name,
        model=plan.backend.provider.model,
        episodes=config.episodes,
        calls=round(sum(row.calls for row in rows)),
        input_tokens=round(sum(row.input_tokens for row in rows)),
        output_tokens=round(sum(row.output_tokens for row in rows)),
        cost_usd=_dollars(totals(plan, rehearsals), worst, config.budget.usd),
        usage=tuple(rows),
        earlier_runs=known.runs,
    )


async def _all(plan: Plan, known: Measured) -> tuple[list[Rehearsal], float | None]:
    """All rehearsals, the least talkative first, and the most that the run can cost."""
    fewest, largest = REHEARSALS
    played = max(1, min(plan.config.episodes, EPISODES_EACH, CALLS // (plan.calls * largest)))
    count = max(fewest, min(largest, CALLS // (plan.calls * played)))
    levels = [_normal((index + 0.5) / count) for index in range(count)]
    return [await rehearse(plan, known, level, played) for level in levels], await most(plan)


async def rehearse(plan: Plan, known: Measured, level: float, played: int) -> Rehearsal:
    """Plays so many episodes, and learns from them as the run would."""
    config, rng = plan.config, random.Random(derive("rehearsal", f"{level:.6f}"))
    policy = Drawn(plan, known, rng, level)
    rewards = Rewards(rng, [spec.role for spec in plan.task.agents], known.rewards)
    chosen = rng.sample(range(config.episodes), played)
    records = [await _episode(plan, policy, rewards, episode) for episode in chosen]
    plays = config.episodes + plan.backend.dev_plays
    times = defaultdict[str, float](lambda: plays / played)
    if updates := updates_of(plan):
        walked = min(updates, UPDATES_EACH)
        await _learn(plan, policy, rewards, records, walked)
        times["trial"] = times["distil"] = updates / walked
    return Rehearsal(level, policy.paid, times, policy.dearest)


async def _episode(plan: Plan, policy: Drawn, rewards: Rewards, episode: int) -> EpisodeRecord:
    """Plays one, with judge and replays as the real run would."""
    rollout = rollout_of(plan, policy, rewards.of_episode(), plan.schedule(episode))
    if plan.backend.judges:
        rollout = replace(rollout, judge=plan.judge(policy))
    tree = await rollout.play(plan.problem(episode), plan.seed(episode))
    await plan.backend.replay(rollout, tree)
    if not plan.config.credit.share and not updates_of(plan):
        return episode_record(tree, episode)
    credited = await give_credit(rollout, tree, plan.config.credit)
    return episode_record(tree, episode, credited.records, credited.calls)


async def _learn(
    plan: Plan, policy: Drawn, rewards: Rewards, records: Sequence[EpisodeRecord], updates: int
) -> None:
    """Takes so many updates, each from a block like these episodes, with the run's own learner."""
    backend, settings = plan.backend, plan.config.behaviors
    assert isinstance(backend, ApiBackend), "no other learns behaviours"
    size = min(settings.every, BLOCK)
    chains = [await _chain(plan, policy, rewards) for _ in range(CHAINS)]
    arena = DevPlays(chains, rewards, policy.rng)
    learner = backend.new_learner(
        plan.task, arena, policy, share=settings.share * settings.every / size
    )
    for update in range(updates):
        drawn = policy.rng.choices(records, k=size)
        numbers = range(update * size, (update + 1) * size)
        block = [
            one.model_copy(update={"episode": n}) for n, one in zip(numbers, drawn, strict=True)
        ]
        await learner.update(block, {})
    policy.paid += arena.paid


async def _chain(plan: Plan, policy: Drawn, rewards: Rewards) -> list[Move]:
    """Plays one episode of a trial, which is not paid for."""
    rng, aside = policy.rng, policy.aside()
    rollout = rollout_of(plan, aside, rewards.of_episode(), Chains(1))
    problem = rng.choice(plan.task.problems("dev"))
    tree = await replace(rollout, purpose="trial").play(problem, rng.getrandbits(32))
    return chain_of(tree, aside.paid)


def _rows(rehearsals: Sequence[Rehearsal]) -> list[Row]:
    """Mean figures by agent and purpose."""
    sums = defaultdict[tuple[str, str], list[float]](lambda: [0.0] * 4)
    for one in rehearsals:
        for paid in one.paid:
            times, total = one.times[paid.purpose] / len(rehearsals), sums[paid.agent, paid.purpose]
            figures = (1.0, paid.input_tokens, paid.output_tokens, paid.usd)
            total[:] = [old + new * times for old, new in zip(total, figures, strict=True)]
    names = ("calls", "input_tokens", "output_tokens", "usd")
    return [
        Row(agent=agent, purpose=purpose, **dict(zip(names, total, strict=True)))
        for (agent, purpose), total in sums.items()
    ]


def totals(plan: Plan, rehearsals: Sequence[Rehearsal]) -> list[float]:
    """Dollars of many runs, cheapest first: between the rehearsals, each with the luck of one that
    is near.

    How much the model talks decides most, so it is not drawn but spread evenly over its quantiles.
    """
    rng, cap = random.Random(derive("estimate")), plan.config.budget.usd
    costs = [one.usd for one in rehearsals]
    if not any(costs):
        return [0.0, 0.0]
    levels, logs = [one.level for one in rehearsals], [math.log(max(usd, 1e-12)) for usd in costs]
    line = linear_regression(levels, logs)
    luck = [log - line.slope * z - line.intercept for z, log in zip(levels, logs, strict=True)]
    found = list[float]()
    for index in range(DRAWS):
        share = (index + 0.5) / DRAWS
        first = min(len(costs) - NEAR, max(0, round(share * len(costs) - 0.5) - NEAR // 2))
        near = rng.randrange(first, first + NEAR)
        total = math.exp(line.intercept + line.slope * _normal(share) + luck[near])
        if cap is not None:  # a run stops where the worst case of the next call doesn't fit
            total = min(total, max(0.0, cap - rehearsals[near].dearest * rng.random()))
        found.append(total)
    return sorted(found)


def _dollars(totals: Sequence[float], worst: float | None, cap: float | None) -> Dollars:
    """Sums up runs, cheapest first; `worst` is None where no sum of calls is a maximum.

    A few odd runs can pull the mean beyond a percentile, which then gives way.
    """
    mean = min(max(fmean(totals), totals[0]), totals[-1])
    if worst is not None:
        totals = [min(total, worst) for total in totals]
        mean = min(mean, worst)
    low, *_, high = quantiles(totals, n=20, method="inclusive")
    ends = [end for end in (cap, worst) if end is not None]
    return Dollars(
        p5=min(low, mean),
        expected=mean,
        p95=max(high, mean),
        max=min(ends, default=None),
    )
