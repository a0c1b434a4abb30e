"""Which prompt changes a default run finds and accepts, where the worth of each is planted.

The whole learner plays: distilling, the race and what it may spend (acceptance_learner.py). Beside
it, on candidates of the same planted worlds (planted_prompts.py), two common rules: a paired t-test
on a fixed number of pairs, not corrected for the number of candidates, and GEPA's (better on a
minibatch, then a higher mean over the dev set; our reading of the paper, not the package).

    python -m benchmarks.quality.acceptance [--runs N] [--workers N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import Any

from benchmarks import page
from benchmarks.quality import acceptance_learner
from benchmarks.quality.acceptance_learner import Script, found_script, mixed_script, null_script
from benchmarks.quality.acceptance_report import FINDS, FOUND, NULLS, section
from benchmarks.quality.planted_prompts import (
    MINIBATCH,
    NOISES,
    PROBLEMS,
    SPREAD,
    T_CRITICAL,
    T_PAIRS,
    Candidate,
    World,
    new_world,
    noise_of,
)
from orchestry.core.seeds import derive

COMMAND = "python -m benchmarks.quality.acceptance --write"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule made of one candidate."""

    effect: float
    accepted: bool
    pairs: int


def t_test(world: World, candidates: Iterable[Candidate], rng: random.Random) -> list[Outcome]:
    """One-sided at 5 % for every candidate, as if it were the only one."""
    outcomes = []
    for each in candidates:
        seen = list(islice(world.pairs(each.chances_P, rng), T_PAIRS))
        accepted = fmean(seen) > T_CRITICAL * stdev(seen) / math.sqrt(T_PAIRS)
        outcomes.append(Outcome(each.effect, accepted, T_PAIRS))
    return outcomes


def gepa(world: World, candidates: Iterable[Candidate], rng: random.Random) -> list[Outcome]:
    """A higher sum on a minibatch, then a higher mean over the dev set than the best so far.

    After Agrawal et al., arXiv 2507.19457, algorithm 1, as we read it: it returns the best of its
    pool by the score on the dev set.
    """
    outcomes = []
    bar = fmean(world.reward(chance, rng) for chance in world.chances_P)
    for each in candidates:
        gain = sum(islice(world.pairs(each.chances_P, rng), MINIBATCH))
        scored = fmean(world.reward(chance, rng) for chance in each.chances_P) if gain > 0 else 0.0
        played = MINIBATCH + (PROBLEMS if gain > 0 else 0)
        outcomes.append(Outcome(each.effect, gain > 0 and scored > bar, played))
        bar = max(bar, scored)
    return outcomes


Job = tuple[str, float, int, int]
"""Kind of run, planted gain, place of the noise, number of the run."""


def script_of(job: Job) -> Script:
    """What is distilled in a run: a function of the job."""
    kind, gain, noise, number = job
    rng = random.Random(derive("acceptance", kind, gain, noise, number))
    if kind in FINDS:
        return found_script(gain, rng, examples=kind == "shown")
    return mixed_script(rng) if kind == "mixed" else null_script(kind, rng)


def play(job: Job) -> dict[str, Any]:
    """One run: the learner's, and for candidates without a gain and mixed ones also what the two
    rules make of the same effects."""
    kind, _, noise, number = job
    script = script_of(job)
    run = acceptance_learner.play(script, noise, number)
    found: dict[str, Any] = {"learner": run}
    if kind not in FINDS:
        rng = random.Random(derive("acceptance", "rules", *job))
        world = new_world(NOISES[noise], rng)
        effects = [effect for update in script.effects for effect in update]
        candidates = [Candidate(e, world.shifted(e, SPREAD, rng)) for e in effects]
        found |= {rule.__name__: rule(world, candidates, rng) for rule in (t_test, gepa)}
    return found


def measure(runs: int, workers: int) -> dict[str, Any]:
    """All figures: so many runs for each row."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:

        def of(kind: str, gain: float, noise: int) -> list[dict[str, Any]]:
            jobs = [(kind, gain, noise, number) for number in range(runs)]
            return list(pool.map(play, jobs, chunksize=10))

        nulls = {kind: [*of(kind, 0.0, 0), *of(kind, 0.0, 1)] for kind in NULLS}
        return {
            "sd": [{"sd": noise.sd, "measured": noise_of(i)} for i, noise in enumerate(NOISES)],
            **{
                kind: [summed(of(kind, gain, noise), gain, noise) for gain, noise, _ in FOUND]
                for kind in FINDS
            },
            "null": {kind: false_share(played) for kind, played in nulls.items()},
            "mixed": mixed([*of("mixed", 0.0, 0), *of("mixed", 0.0, 1)]),
        }


def summed(played: Sequence[dict[str, Any]], gain: float, noise: int) -> dict[str, Any]:
    """Of runs with one gain: how often it was found, after how many pairs, and at what cost."""
    runs = [each["learner"] for each in played]
    won = sorted(run.won_after for run in runs if run.found)
    return {
        "gain": gain,
        "sd": NOISES[noise].sd,
        "runs": len(runs),
        "found": sum(run.found for run in runs),
        "false": sum(run.false > 0 for run in runs),
        "pairs": won[len(won) // 2] if won else 0,
        "spent": fmean(run.calls for run in runs) / acceptance_learner.searched(),
    }


def false_share(played: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of runs without any gain: in how many each rule accepted something."""
    return {
        "runs": len(played),
        "learner": sum(each["learner"].false > 0 for each in played),
        **{
            rule: sum(any(one.accepted for one in each[rule]) for each in played)
            for rule in ("t_test", "gepa")
        },
    }


def mixed(played: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """True effects of what each rule accepted, over runs of drawn effects."""
    accepted = [effect for each in played for effect in each["learner"].accepted]
    found: dict[str, Any] = {"runs": len(played), "learner": spread_of(accepted)}
    for rule in ("t_test", "gepa"):
        found[rule] = spread_of([o.effect for each in played for o in each[rule] if o.accepted])
    return found


def spread_of(effects: Sequence[float]) -> dict[str, float]:
    """Count, mean and its 95 % interval's half, and those at most 0."""
    half = 1.96 * stdev(effects) / math.sqrt(len(effects)) if len(effects) > 1 else 0.0
    return {
        "accepted": len(effects),
        "mean": fmean(effects) if effects else 0.0,
        "half": half,
        "false": sum(effect <= 0 for effect in effects),
        "harmful": sum(effect < -0.02 for effect in effects),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=700, help="runs of each row")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    found = measure(args.runs, args.workers)
    text = section(found)
    print(json.dumps(found) if args.json else text)
    if args.write:
        page.write("acceptance", COMMAND, text)


if __name__ == "__main__":
    main()
