"""Which prompt changes are accepted, where the worth of each is planted.

The trials of `behaviors/trial.py` decide, and beside them, on candidates of the same planted worlds
(planted_prompts.py), two common rules: a paired t-test on a fixed number of pairs, not corrected
for the number of candidates, and GEPA's (better on a minibatch, then a higher mean over the dev
set; our reading of the paper, not the package). What the learner as a whole finds, screening
included, is measured in acceptance_learner.py.

    python -m benchmarks.quality.acceptance [--runs N] [--workers N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from statistics import fmean, quantiles, stdev
from typing import Any

from benchmarks import page
from benchmarks.quality import acceptance_learner
from benchmarks.quality.acceptance_learner import Script, scripts, summary
from benchmarks.quality.acceptance_report import NULLS, RULES, section
from benchmarks.quality.planted_prompts import (
    ALPHA,
    CAPS,
    GAIN,
    LOSS,
    MINIBATCH,
    MOST,
    NOISES,
    NUMBERS,
    PROBLEMS,
    SPREAD,
    T_CRITICAL,
    T_PAIRS,
    UPDATES,
    Candidate,
    World,
    new_world,
    noise_of,
    propose,
)
from benchmarks.stats import wilson
from orchestry.backends.api.trial import level, retire, rule
from orchestry.core.seeds import derive

COMMAND = "python -m benchmarks.quality.acceptance --write"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule made of one candidate; `reason` is the sequential test's."""

    effect: float
    accepted: bool
    pairs: int
    reason: str = ""


def sequential(world: World, candidates: Iterable[Candidate], rng: random.Random) -> list[Outcome]:
    """The trials of one run, with their levels."""
    outcomes, number = list[Outcome](), 1
    for each in candidates:
        ruling = rule(world.pairs(each.chances_P, rng), level(ALPHA, number), MOST)
        number += ruling.verdict == "reject"
        outcomes.append(Outcome(each.effect, ruling.verdict == "accept", ruling.pairs, ruling.why))
    return outcomes


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


Job = tuple[str, int]
"""A kind of candidates, and the run's number; even runs have the first noise, odd ones the other.
"""


def play(job: Job) -> dict[str, list[Outcome]]:
    """One run of every rule, on the same candidates."""
    kind, run = job
    rng = random.Random(derive("acceptance", kind, run))
    world = new_world(NOISES[run % 2], rng)
    candidates = [propose(kind, world, rng) for _ in range(UPDATES)]
    plays = {"sequential": sequential, "t_test": t_test, "gepa": gepa}
    return {name: deciding(world, candidates, rng) for name, deciding in plays.items()}


def one_trial(seed: int, noise: int, effect: float, number: int, most: int) -> Outcome:
    """A lone trial of a planted effect; `number` 0 is a retest for retirement."""
    rng = random.Random(derive("acceptance", "lone", seed, noise, effect, number))
    world = new_world(NOISES[noise], rng)
    pairs = world.pairs(world.shifted(effect, SPREAD, rng), rng)
    ruling = rule(pairs, level(ALPHA, number), most) if number else retire(pairs, most)
    return Outcome(effect, ruling.verdict == "accept", ruling.pairs, ruling.why)


def lone(pool: ProcessPoolExecutor, runs: int, *setting: Any) -> dict[str, float]:
    """Acceptance rate and pairs of `runs` lone trials: noise, effect, number, cap."""
    noise, effect, number, most = setting
    task = partial(one_trial, noise=noise, effect=effect, number=number, most=most)
    outcomes = list(pool.map(task, range(runs), chunksize=20))
    pairs = [each.pairs for each in outcomes]
    low, high = wilson(sum(each.accepted for each in outcomes), runs)
    return {
        "sd": NOISES[noise].sd,
        "effect": effect,
        "number": number,
        "cap": most,
        "accepted": fmean(each.accepted for each in outcomes),
        "low": low,
        "high": high,
        "mean_pairs": fmean(pairs),
        "p90_pairs": quantiles(pairs, n=10)[-1],
    }


def null(runs: Sequence[dict[str, list[Outcome]]]) -> dict[str, dict[str, float]]:
    """Of each rule the share of runs with any false acceptance."""
    found = {}
    for name in RULES:
        hits = sum(any(each.accepted for each in run[name]) for run in runs)
        low, high = wilson(hits, len(runs))
        found[name] = {"runs": len(runs), "hits": hits, "low": low, "high": high}
    return found


def mixed(runs: Sequence[dict[str, list[Outcome]]]) -> dict[str, dict[str, float]]:
    """Of each rule what it accepted, and what it spent, over runs of mixed effects."""
    return {name: spent([each for run in runs for each in run[name]]) for name in RULES}


def spent(outcomes: Sequence[Outcome]) -> dict[str, float]:
    accepted = [each for each in outcomes if each.accepted]
    useful = [each for each in outcomes if each.effect >= GAIN]
    losers = [each for each in outcomes if each.effect < LOSS]
    return {
        "candidates": len(outcomes),
        "accepted": len(accepted),
        "false": sum(each.effect <= 0 for each in accepted),
        "harmful": sum(each.effect < LOSS for each in accepted),
        "mean_effect": fmean(each.effect for each in accepted) if accepted else 0.0,
        "useful": len(useful),
        "useful_found": sum(each.accepted for each in useful),
        "pairs": fmean(each.pairs for each in outcomes),
        "loser_pairs": fmean(each.pairs for each in losers) if losers else 0.0,
        "clear_losses": sum(each.reason == "clear loss" for each in losers),
        "losers": len(losers),
    }


def measure(runs: int, workers: int) -> dict[str, Any]:
    """All figures: `runs` runs of each null, fewer of all else."""
    few = max(10, runs // 4)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        played = {
            kind: list(pool.map(play, [(kind, run) for run in range(count)], chunksize=10))
            for kind, count in (*((kind, runs) for kind in NULLS), ("mixed", 2 * few))
        }
        both = range(len(NOISES))
        return {
            "sd": [asdict(noise) | {"measured": noise_of(i)} for i, noise in enumerate(NOISES)],
            "null": {kind: null(played[kind]) for kind in NULLS},
            "power": [lone(pool, few, i, GAIN, n, MOST) for i in both for n in NUMBERS],
            "caps": [
                lone(pool, few // 2, i, GAIN, n, c) for i in both for n in NUMBERS for c in CAPS
            ],
            "retire": [lone(pool, few, i, e, 0, MOST) for i in both for e in (GAIN, 0.0, -GAIN)],
            "mixed": mixed(played["mixed"]),
            "learner": [
                learned(pool, max(10, runs * 3 // (40 if name == "null" else 20)), name, script, i)
                for name, script in scripts().items()
                for i in both
            ],
        }


def learned(
    pool: ProcessPoolExecutor, runs: int, name: str, script: Script, noise: int
) -> dict[str, Any]:
    """What the real learner made of `runs` runs of one script at one noise."""
    task = partial(acceptance_learner.play, script, noise)
    outcomes = list(pool.map(task, range(runs), chunksize=5))
    return {"script": name, "sd": NOISES[noise].sd, **summary(outcomes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="runs of each null")
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
