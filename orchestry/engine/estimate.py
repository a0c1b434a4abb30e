"""The dry run: what a resolved config will cost, before a cent is spent and without any network.

A part of the run is rehearsed several times on its real path (rehearsal.py), each time with more
talkative models than before, and each cost is scaled to the whole run. Costs are taken to be
lognormal. The maximum is the budget, or that of worst.py where it is smaller.

That learned behaviours lengthen prompts is left out. The cache of earlier runs is taken to be
empty.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

from orchestry.backends.api.race import TYPICAL_SD, power_of
from orchestry.core.config import RunConfig
from orchestry.core.types import Frozen
from orchestry.engine.lengths import measured
from orchestry.engine.plan import Plan
from orchestry.engine.rehearsal import Standin, rehearse
from orchestry.engine.run import in_own_loop, prepare
from orchestry.engine.worst import most
from orchestry.store.records import Power

REHEARSALS = 7
PURPOSES = ("act", "judge", "credit", "distil", "trial")
"""In the order of the rows."""
NAMES = ("agent", "purpose", "provider", "model")
Bill = Mapping[tuple[str, ...], Sequence[float]]
"""See Standin."""
Part = Callable[[Standin], Awaitable[Mapping[str, float]]]
"""Has a part of the work done by a policy; says how many calls of the whole each call of a purpose
stands for."""


class Figures(Frozen):
    """Expected figures of some calls."""

    provider: str
    model: str
    calls: float
    input_tokens: float
    output_tokens: float
    usd: float


class Row(Figures):
    """Those of one agent's calls of one purpose."""

    agent: str
    purpose: str


class Dollars(Frozen):
    """The cost of the run: 5th and 95th percentile, mean, and what it can never pass.

    `max` is None where nothing bounds the run: it has no budget, and it learns, or the answers may
    decide how many calls it makes or how long its prompts are, or there are too many calls to look
    at.
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
    enough_usd: float
    """A budget, in whole cents, at which 95 of 100 such runs come to their end."""
    usage: tuple[Row, ...]
    by_provider: tuple[Figures, ...]
    """The same by provider and model."""
    earlier_runs: int = 0
    """Runs of the model whose lengths of answers were taken."""
    power: Power | None = None
    """What its pairs on dev will show, if it learns behaviours."""
    paced_s: float = 0.0
    """Seconds that the run takes at least, since its episodes begin at a `pace`."""


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
    return in_own_loop(_estimate(plan, note, runs))


async def _estimate(plan: Plan, note: Callable[[str], None], runs: Sequence[Path]) -> Estimate:
    return await foretold(plan, partial(rehearse, plan), await most(plan), note, runs)


async def foretold(
    plan: Plan,
    part: Part,
    worst: float | None,
    note: Callable[[str], None],
    runs: Sequence[Path],
) -> Estimate:
    """Has the part done once for each level of talkativeness, and sums up."""
    backend, roles = plan.backend, ["judge", *(spec.role for spec in plan.task.agents)]
    models = {member.model for member in backend.team(plan.task).values()}
    known = measured(
        runs,
        plan.config.task,
        models | {backend.bench.provider.model, backend.author.provider.model},
        note,
    )
    bills, dearest = list[Bill](), 0.0
    for index in range(REHEARSALS):
        level = NormalDist().inv_cdf((index + 0.5) / REHEARSALS)
        standin = Standin(backend, known, level)
        times = await part(standin)
        bills.append({w: [x * times[w[1]] for x in row] for w, row in standin.bill.items()})
        dearest = max(dearest, standin.dearest)
    costs = [sum(row[-1] for row in bill.values()) for bill in bills]
    rows = [Row(**row) for row in _means(bills, 0)]
    low, high = _range(costs)
    return Estimate(
        task=plan.config.task,
        provider=backend.provider.name,
        model=backend.provider.model,
        episodes=plan.config.episodes,
        calls=round(sum(row.calls for row in rows)),
        input_tokens=round(sum(row.input_tokens for row in rows)),
        output_tokens=round(sum(row.output_tokens for row in rows)),
        cost_usd=_dollars((low, fmean(costs), high), dearest, plan.config.budget.usd, worst),
        enough_usd=math.ceil(100 * (high + dearest)) / 100,
        usage=sorted(rows, key=lambda row: _place(row, roles)),
        by_provider=[Figures(**row) for row in _means(bills, 2)],
        earlier_runs=known.runs,
        paced_s=plan.config.pace * (plan.config.episodes - 1),
        power=_power(plan, sum(row.calls for row in rows if row.purpose == "trial"), known.sd),
    )


def _place(row: Row, roles: Sequence[str]) -> tuple[int, int, str]:
    """By purpose, then in the team's order; others by name."""
    known = roles.index(row.agent) if row.agent in roles else len(roles)
    return PURPOSES.index(row.purpose), known, row.agent


def _power(plan: Plan, calls: float, sd: float | None) -> Power | None:
    """At the noise of earlier runs of the task, else a typical one. A pair has two teams."""
    if not calls:
        return None
    settings, each = plan.config.behaviors, 2.0 * len(plan.task.agents)
    return power_of(settings, plan.config.episodes // settings.every, calls, each, sd or TYPICAL_SD)


def _means(bills: Sequence[Bill], first: int) -> list[dict[str, Any]]:
    """The bills' mean, their rows added up by what they name from that place on."""
    sums = defaultdict[tuple[str, ...], list[float]](lambda: [0.0] * 4)
    for who, row in (item for bill in bills for item in bill.items()):
        total = sums[who[first:]]
        total[:] = [old + new / len(bills) for old, new in zip(total, row, strict=True)]
    names = (*NAMES[first:], "calls", "input_tokens", "output_tokens", "usd")
    return [dict(zip(names, (*who, *total), strict=True)) for who, total in sorted(sums.items())]


def _range(costs: Sequence[float]) -> tuple[float, float]:
    """5th and 95th percentile of a lognormal, and no less than was rehearsed."""
    if not any(costs):
        return 0.0, 0.0
    logs = [math.log(max(usd, max(costs) / 100)) for usd in costs]
    spread = NormalDist(fmean(logs), stdev(logs) + 1e-9)
    low, high = (math.exp(spread.inv_cdf(share)) for share in (0.05, 0.95))
    return min(low, *costs), max(high, *costs)


def _dollars(
    likely: tuple[float, float, float], dearest: float, cap: float | None, worst: float | None
) -> Dollars:
    """Percentiles and mean below the maximum. A run stops at its cap only where the next call may
    not fit."""
    low, mean, high = likely
    tops = [usd for usd in (cap, worst) if usd is not None]
    top = min(tops, default=math.inf)
    low = min(low, top if cap is None else max(0.0, top - dearest))
    high = min(high, top)
    return Dollars(
        p5=low, expected=max(low, min(mean, high)), p95=high, max=min(tops, default=None)
    )
