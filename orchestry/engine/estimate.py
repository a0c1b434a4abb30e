"""The dry run: what a resolved config will cost, before a cent is spent and without any network.

The real task is played on the real schedule, with the real judge and replays, with answers of a
length drawn from a prior and rewards drawn at random; each simulated call is priced as a paid one
would be. Of the updates of a run that learns, only the number of calls is simulated, and their
price is that of a few; that learned behaviours lengthen prompts is left out. The hard maximum is
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
from statistics import NormalDist, fmean

from orchestry.backends.api.backend import ApiBackend
from orchestry.backends.api.distil import Contrast, contrasts, distil
from orchestry.backends.api.learner import shares
from orchestry.backends.api.library import Library
from orchestry.backends.foretold import Chain, Walk
from orchestry.backends.simulated import Rewards, Simulated, Tallies, Tally
from orchestry.core.config import RunConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Frozen
from orchestry.engine.bound import Courses, finish, most, rollout_of, schedule_of, seed_of
from orchestry.engine.plan import Plan
from orchestry.engine.run import prepare
from orchestry.judge.judge import ListwiseJudge
from orchestry.models.prior import MODEL_SIGMA, VERBOSITY
from orchestry.rollout.credit import blame
from orchestry.rollout.replay import give_credit
from orchestry.rollout.schedule import Chains
from orchestry.rollout.tree import episode_record
from orchestry.store.records import EpisodeRecord

_normal = NormalDist().inv_cdf
FLOAT_NOISE = 1e-9
"""Relative error of a sum of dollars, at most."""
SIMULATIONS = (20, 100)
"""Fewest and most runs simulated; a wide search gets fewer, so that a dry run takes seconds."""
SIMULATED_CALLS = 40_000
"""Calls that all simulations together are to make."""
CREDIT_WORK = 2
"""How many times longer an episode takes to simulate where replays are placed in its tree."""
EPISODES_EACH = 4
"""Most episodes played in a simulated run, whose cost is then scaled to all of them."""
UPDATES_EACH = 20
"""Most updates walked through in a simulated run; trials are what takes the time."""

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

    `max` is None where nothing bounds the run: how many calls it makes depends on the answers, or
    it learns behaviours, which depend on them and lengthen its prompts, or it has too many
    different first states to walk, and it has no budget.
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
    roles = ["judge", *(spec.role for spec in plan.task.agents)]
    ordered = sorted(tallies, key=lambda key: (PURPOSES.index(key[1]), roles.index(key[0])))
    rows = tuple(_row(key, tallies[key]) for key in ordered if tallies[key].calls)
    bounded = courses.fixed and not _updates(plan)
    return Estimate(
        task=config.task,
        provider=plan.backend.provider.name,
        model=plan.backend.provider.model,
        episodes=config.episodes,
        calls=round(sum(row.calls for row in rows)),
        input_tokens=round(sum(row.input_tokens for row in rows)),
        output_tokens=round(sum(row.output_tokens for row in rows)),
        cost_usd=_dollars(totals, worst if bounded else None, config.budget.usd),
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
    calls *= CREDIT_WORK if plan.config.credit.share else 1
    count = max(fewest, min(largest, SIMULATED_CALLS // calls))
    episodes, plays = plan.config.episodes, plan.config.episodes + plan.backend.dev_plays
    played = max(1, min(episodes, EPISODES_EACH, SIMULATED_CALLS // (calls * count)))
    totals = []
    for index in range(count):
        rng = random.Random(derive("estimate", index))
        verbosity = VERBOSITY * math.exp(MODEL_SIGMA * _normal((index + 0.5) / count))
        policy = Simulated(plan.backend, rng, verbosity)
        rewards = Rewards(rng, [spec.role for spec in plan.task.agents])
        records = [
            _episode(plan, policy, rewards, episode, courses)
            for episode in rng.sample(range(episodes), played)
        ]
        times: defaultdict[str, float] = defaultdict(lambda: plays / played)
        if _updates(plan):
            times |= _learning(plan, policy, rewards, records)
        for key, tally in policy.books.tallies.items():
            tallies[key].add(tally, times[key[1]] / count)
        spent = sum(usd * times[purpose] for purpose, usd in policy.books.spent.items())
        totals.append(_capped(plan, spent, policy.books.dearest, rng))
    return totals


def _episode(
    plan: Plan, policy: Simulated, rewards: Rewards, episode: int, courses: Courses
) -> EpisodeRecord:
    """Plays one, with judge and replays as the real run would."""
    judge, settings = None, plan.config.judge
    if plan.backend.judges:
        model, temperature = plan.backend.bench.provider.model, settings.temperature
        judge = ListwiseJudge(
            policy.critic(), model, settings, plan.task.agents, temperature=temperature
        )
    rollout = rollout_of(plan, policy, rewards.of_episode(), schedule_of(plan, episode), judge)
    tree = finish(rollout.play(plan.problem(episode), seed_of(plan, episode)))
    courses.add(tree)
    finish(plan.backend.replay(rollout, tree))
    if not plan.config.credit.share and not _updates(plan):
        return episode_record(tree, episode)
    credited = finish(give_credit(rollout, tree, plan.config.credit))
    return episode_record(tree, episode, credited.records, credited.calls)


def _updates(plan: Plan) -> int:
    """How often the run learns behaviours, by calls: after every whole block of episodes."""
    every = plan.backend.every if plan.config.behaviors.enabled else None
    return plan.config.episodes // every if every else 0


def _learning(
    plan: Plan, policy: Simulated, rewards: Rewards, records: Sequence[EpisodeRecord]
) -> dict[str, float]:
    """Distils as one update would, and plays one episode of a trial; how often each would be done,
    by purpose, over all updates of the run.

    None is where no two trajectories differ in value and no library waits to be tested.
    """
    settings, rng = plan.config.behaviors, policy.rng
    found = _contrasts(plan, records)
    if not found and not _library(plan).behaviors:
        return {}
    made = _distil(plan, policy, found, blame(records))
    chain = _chain(plan, policy, rewards)
    dev = [problem.id for problem in plan.task.problems("dev")]
    examples = fmean(made) if made else 0.0
    walk = Walk(settings, rng, chain, dev, _library(plan), examples)
    allowance = settings.share * settings.every * fmean(record.calls for record in records)
    updates = _updates(plan)
    walked = min(updates, UPDATES_EACH)
    for _ in range(walked):
        blamed = blame(rng.choices(records, k=min(settings.every, len(records))))
        walk.update(allowance, _counts(plan, found, blamed))
    times = updates / walked
    return {
        "trial": walk.calls * times / chain.calls,
        "distil": walk.distilled * times / max(1, len(made)),
    }


def _library(plan: Plan) -> Library:
    assert isinstance(plan.backend, ApiBackend), "only backend api learns behaviours"
    return plan.backend.library


def _contrasts(plan: Plan, records: Sequence[EpisodeRecord]) -> dict[str, tuple[Contrast, ...]]:
    """By agent to blame, where an update would find any.

    In a block with more episodes than problems, episodes of one problem are contrasted.
    """
    settings = plan.config.behaviors
    alike = [record.model_copy(update={"problem": records[0].problem}) for record in records]
    kinds = (records, alike) if settings.every > len(plan.problems) else (records,)
    found = {}
    for agent in blame(records):
        ways = (contrasts(kind, agent, settings.top) for kind in kinds)
        if shown := next(filter(None, ways), None):
            found[agent] = shown
    return found


def _counts(
    plan: Plan, found: Mapping[str, Sequence[Contrast]], blamed: Mapping[str, float]
) -> dict[str, int]:
    """How many behaviours each agent to blame gets, of those with something to contrast."""
    shown = {role: loss for role, loss in blamed.items() if role in found}
    return shares(shown, plan.config.behaviors.candidates) if shown else {}


def _distil(
    plan: Plan,
    policy: Simulated,
    found: Mapping[str, Sequence[Contrast]],
    blamed: Mapping[str, float],
) -> list[bool]:
    """Distils for each agent that gets a share; whether each had an example."""
    team, made = plan.backend.team(plan.task), list[bool]()
    for role, count in _counts(plan, found, blamed).items():
        work = distil(
            policy.critic(),
            plan.backend.bench.provider.model,
            plan.task.agents,
            _library(plan),
            role,
            found[role],
            blamed,
            prompt=team[role].system_prompt,
            count=count,
            update=1,
            max_tokens=plan.config.judge.max_tokens,
            seed=0,
        )
        made.append(any(b.kind == "example" for b in finish(work).behaviors))
    return made


def _chain(plan: Plan, policy: Simulated, rewards: Rewards) -> Chain:
    """Plays one episode of a trial."""
    rng = policy.rng
    rollout = rollout_of(plan, policy, rewards.of_episode(), Chains(1), purpose="trial")
    tree = finish(rollout.play(rng.choice(plan.task.problems("dev")), rng.getrandbits(32)))
    return Chain.of(tree.groups)


def _capped(plan: Plan, total: float, dearest: float, rng: random.Random) -> float:
    """What is spent of a total: a run stops where the worst case of the next call doesn't fit."""
    cap = plan.config.budget.usd
    if cap is None:
        return total
    return min(total, max(0.0, cap - dearest * rng.random()))


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
