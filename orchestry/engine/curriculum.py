"""The order in which a run meets its problems: easy ones first, or those that teach most now.

Everything follows from the problems, the seed, and the episodes that were finished before a block,
so a resumed run draws the same, whatever finished first.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.seeds import derive, shuffled
from orchestry.core.types import Problem
from orchestry.store.records import EpisodeRecord

FLOOR = 0.2
"""Share of the draws that is spread over all problems alike, so that none is ever given up."""
PRIOR = 0.5
"""Visits that the prior counts as: at a success rate of one half, from which most is learned."""
FADING = 0.5
"""What a visit counts, as a share of the problem's next one: the team has changed since."""


def by_grade(problems: Sequence[Problem], seed: int) -> list[Problem]:
    """Easiest first, those of one grade in seeded order."""
    order = shuffled(len(problems), seed, "epoch", 0)
    return sorted((problems[place] for place in order), key=lambda one: one.data["grade"])


def by_success(
    problems: Sequence[Problem], block: range, before: Iterable[EpisodeRecord], seed: int
) -> list[Problem]:
    """One problem per episode of the block; those that the team solves about half of the time come
    most often.

    With p a problem's success rate, it is drawn in proportion to p (1 - p), the variance of a
    reward of 0 or 1; FLOOR of the draws go to all alike. The draws are spread evenly (systematic
    resampling): each problem comes as often as its share says, rounded up or down.
    """
    rates = success_rates(problems, before)
    spreads = [rate * (1.0 - rate) for rate in rates]
    shares = [FLOOR / len(problems) + (1.0 - FLOOR) * s / sum(spreads) for s in spreads]
    rng = random.Random(derive(seed, "curriculum", block.start))
    order = rng.sample(range(len(problems)), len(problems))
    ends = accumulate(shares[place] * len(block) for place in order)
    drawn, mark = list[Problem](), rng.random()
    for place, end in zip(order, ends, strict=True):
        while mark < end and len(drawn) < len(block):
            drawn.append(problems[place])
            mark += 1.0
    drawn += [problems[order[-1]]] * (len(block) - len(drawn))  # which rounding may leave out
    rng.shuffle(drawn)
    return drawn


def success_rates(problems: Sequence[Problem], before: Iterable[EpisodeRecord]) -> list[float]:
    """Each problem's mean reward of a trajectory, in (0, 1), recent visits counting most."""
    visits = defaultdict[str, list[float]](list)
    for record in sorted(before, key=lambda one: one.episode):
        if not record.failed:
            visits[record.problem].append(record.mean_leaf_reward)
    return [_rate(visits.get(problem.id, [])) for problem in problems]


def _rate(rewards: Sequence[float]) -> float:
    total, count, weight = 0.5 * PRIOR, PRIOR, 1.0
    for reward in reversed(rewards):
        total, count, weight = total + weight * reward, count + weight, weight * FADING
    return total / count


def check(config: RunConfig, problems: Sequence[Problem], every: int | None) -> None:
    """Raises ConfigError for a curriculum that the problems or the run don't allow. `every`:
    episodes between two updates; None: none are made."""
    if config.curriculum == "none":
        return
    asked = f"curriculum={config.curriculum}"
    if config.problem is not None:
        raise ConfigError(f"{asked} orders a split's problems, and `problem` is the only one here")
    if config.curriculum == "success" and every is None:
        raise ConfigError(
            f"{asked} chooses the problems anew after each update, and this run makes none: switch "
            "learning on (behaviors.enabled=true, or learn.enabled=true), or leave out curriculum"
        )
    lacking = [one for one in problems if not _graded(one.data)]
    if config.curriculum == "grade" and lacking:
        raise ConfigError(
            f"{asked} orders problems by their data.grade, a number, and {len(lacking)} of "
            f"{len(problems)} {config.split} problems of task {config.task} have none "
            f"('{lacking[0].id}' first): grade them, or set curriculum=success"
        )


def _graded(data: Mapping[str, object]) -> bool:
    grade = data.get("grade")
    return isinstance(grade, int | float) and not isinstance(grade, bool) and isfinite(grade)
