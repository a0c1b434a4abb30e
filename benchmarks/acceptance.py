"""Which prompt changes are accepted, where the worth of each is planted.

The trials of `behaviors/trial.py` decide, and beside them, on candidates of the same planted worlds
(planted_prompts.py), two common rules: a paired t-test on a fixed number of pairs, not corrected
for the number of candidates, and GEPA's (better on a minibatch, then a higher mean over the dev
set).

    python -m benchmarks.acceptance [--runs N] [--workers N] [--json] [--write]
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
from benchmarks.planted_prompts import (
    EFFECT_SD,
    NOISES,
    PROBLEMS,
    SCREEN,
    SCREENED,
    SPREAD,
    Candidate,
    World,
    new_world,
    noise_of,
    propose,
)
from orchestry.behaviors.trial import level, retire, rule
from orchestry.seeds import derive

COMMAND = "python -m benchmarks.acceptance --write"
ALPHA = 0.05
MOST = 1000
"""Cap on a trial's pairs."""
UPDATES = 10
"""Candidates that a run puts on trial, each to its end."""
MINIBATCH = 3
T_PAIRS, T_CRITICAL = 100, 1.660
"""Pairs of the fixed test, and the 95th percentile of t at 99 degrees of freedom."""
LOSS = -0.02
"""Below it, no candidate should be accepted."""
GAIN = 0.05
NUMBERS = (1, 3, 8)
CAPS = (200, 400, 600, 1000, 1500)
RULES = {
    "sequential": "sequential test",
    "t_test": f"t-test, {T_PAIRS} pairs, uncorrected",
    "gepa": "GEPA's rule",
}
NULLS = {
    "equal": "effects 0",
    "worse": f"effects at most 0, -abs N(0, {100 * EFFECT_SD:.0f} points)",
    "screened": f"effects 0, the best of {SCREENED} by a screening on {SCREEN} dev problems",
}


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
    """A higher sum on a minibatch, then a higher mean over the dev set than the best so far."""
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


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927)."""
    z, share = 1.96, hits / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = z / (1 + z * z / trials)
    reach *= math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - reach), min(1.0, middle + reach)


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
    """All figures: `runs` runs of each null, a quarter as many of all else."""
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
        }


def section(found: dict[str, Any]) -> str:
    """The text for docs/benchmarks.md."""
    sds = ", ".join(f"{each['sd']:.2f} (measured {each['measured']:.3f})" for each in found["sd"])
    parts = [
        f"Planted worlds of {PROBLEMS} dev problems; a reward is the share of "
        f"{' or '.join(str(noise.tests) for noise in NOISES)} tests passed, which gives paired "
        f"differences an sd of {sds}. Alpha is {ALPHA} a run, cap {MOST} pairs a trial. Points are "
        "hundredths of the reward; intervals are 95 %, Wilson's.",
        null_part(found["null"]),
        power_part(found),
        mixed_part(found["mixed"]),
        retire_part(found["retire"]),
    ]
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def null_part(found: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = [
        [
            NULLS[kind],
            f"{each['sequential']['runs']:,}",
            *(
                f"{each[name]['hits'] / each[name]['runs']:.1%} "
                f"({each[name]['low']:.1%} to {each[name]['high']:.1%})"
                for name in RULES
            ),
        ]
        for kind, each in found.items()
    ]
    ours = [each["sequential"] for each in found.values()]
    met = all(each["hits"] <= ALPHA * each["runs"] for each in ours)
    return (
        f"Share of runs of {UPDATES} candidates, none of them any better, with at least one "
        f"accepted, half of the runs at either noise:\n\n"
        f"{table(['candidates', 'runs', *RULES.values()], rows)}\n\n"
        f"Goal of at most 5 %: {verdict(met)}."
    )


def power_part(found: dict[str, Any]) -> str:
    rows = [
        [
            f"{each['sd']:.2f}",
            str(each["number"]),
            f"{each['accepted']:.1%} ({each['low']:.1%} to {each['high']:.1%})",
            f"{each['mean_pairs']:.0f}",
            f"{each['p90_pairs']:.0f}",
        ]
        for each in found["power"]
    ]
    caps = [
        [
            f"{NOISES[i].sd:.2f}",
            str(number),
            *(
                f"{each['accepted']:.0%}"
                for each in found["caps"]
                if (each["sd"], each["number"]) == (NOISES[i].sd, number)
            ),
        ]
        for i in range(len(NOISES))
        for number in NUMBERS
    ]
    met = all(each["accepted"] >= 0.8 for each in found["power"])
    return (
        "A candidate at +5 points, on trial after 0, 2 or 7 rejected ones:\n\n"
        f"{table(['sd', 'number', 'accepted', 'mean pairs', '90th percentile'], rows)}\n\n"
        f"Goal of 80 %: {verdict(met)}. Accepted at other caps:\n\n"
        f"{table(['sd', 'number', *(f'{cap} pairs' for cap in CAPS)], caps)}"
    )


def mixed_part(found: dict[str, dict[str, float]]) -> str:
    rows = [
        [
            RULES[name],
            f"{each['accepted']:.0f}",
            f"{each['harmful']:.0f}",
            f"{each['false']:.0f}",
            f"{100 * each['mean_effect']:+.1f}",
            f"{each['useful_found']:.0f} of {each['useful']:.0f}",
            f"{each['pairs']:.0f}",
            f"{each['loser_pairs']:.0f}",
        ]
        for name, each in found.items()
    ]
    ours = found["sequential"]
    head = [
        "rule",
        "accepted",
        "below -2 points",
        "at most 0",
        "mean effect",
        "+5 or more, found",
        "pairs a candidate",
        "pairs, below -2",
    ]
    return (
        f"Effects from N(0, {100 * EFFECT_SD:.0f} points), {ours['candidates']:,.0f} candidates in "
        f"runs of {UPDATES} (for GEPA's rule the pairs are those of the minibatch and, after it is "
        f"won, a dev episode a problem):\n\n{table(head, rows)}\n\n"
        f"Goal of no accepted loss above 2 points: {verdict(ours['harmful'] == 0)}. "
        f"{ours['clear_losses']:.0f} of {ours['losers']:.0f} candidates below -2 points ended as "
        "a clear loss; the others ended as soon as +5 points, if real, were no longer likely to "
        "be shown."
    )


def retire_part(found: Sequence[dict[str, float]]) -> str:
    rows = [
        [
            f"{each['sd']:.2f}",
            f"{100 * each['effect']:+.0f}",
            f"{1 - each['accepted']:.1%} ({1 - each['high']:.1%} to {1 - each['low']:.1%})",
            f"{each['mean_pairs']:.0f}",
        ]
        for each in found
    ]
    return (
        "Retests of accepted behaviours, by what they still bring:\n\n"
        f"{table(['sd', 'points', 'retired', 'mean pairs'], rows)}"
    )


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
