"""The section of benchmarks.quality.acceptance: its tables, and whether the goals are met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.quality.acceptance_learner import (
    PAIR_CALLS,
    default_calls,
    default_updates,
    scripts,
)
from benchmarks.quality.planted_prompts import (
    ALPHA,
    CAPS,
    EFFECT_SD,
    MINIBATCH,
    MOST,
    NOISES,
    NUMBERS,
    PROBLEMS,
    SCREEN,
    SCREENED,
    SPREAD,
    T_PAIRS,
    UPDATES,
)
from benchmarks.stats import columns, share
from orchestry.backends.api.learner import BATCH
from orchestry.core.config import BehaviorsConfig, RunConfig
from orchestry.report.text import table

POWER = 0.8
SCRIPTS = {
    "alone": "+5 alone",
    "among": "+5 and two at 0",
    "more": "+5 and two at 0; then three at 0 an update",
}
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
        learner_part(found),
        mixed_part(found["mixed"]),
        retire_part(found["retire"]),
    ]
    return "\n\n".join(parts)


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def null_part(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    rows = [
        [
            NULLS[kind],
            f"{each['sequential']['runs']:,}",
            *(share(each[name]["hits"], each[name]["runs"]) for name in RULES),
        ]
        for kind, each in found.items()
    ]
    ours = [each["sequential"] for each in found.values()]
    met = all(each["hits"] <= ALPHA * each["runs"] for each in ours)
    return (
        f"Share of runs of {UPDATES} candidates, none of them any better, with at least one "
        f"accepted, half of the runs at either noise:\n\n"
        f"{table(['candidates', 'runs', *RULES.values()], rows)}\n\n"
        f"Goal of at most 5 %, for the trials: {verdict(met)}. GEPA's rule (Agrawal et al., arXiv "
        f"2507.19457, algorithm 1): a candidate must do better on a minibatch of {MINIBATCH}, and "
        "is then kept by its score on the dev set, here if that is the best so far; this is our "
        "reading of the paper, not the package."
    )


def power_part(found: dict[str, Any]) -> str:
    rows = [
        {
            "sd": f"{each['sd']:.2f}",
            "number": str(each["number"]),
            "accepted": f"{each['accepted']:.1%} ({each['low']:.1%} to {each['high']:.1%})",
            "mean pairs": f"{each['mean_pairs']:.0f}",
            "90th percentile": f"{each['p90_pairs']:.0f}",
        }
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
    met = all(each["accepted"] >= POWER for each in found["power"])
    return (
        "A candidate at +5 points, on trial after 0, 2 or 7 rejected ones:\n\n"
        f"{columns(rows)}\n\n"
        f"Goal of 80 %, for the trial alone: {verdict(met)}; with the screening before it: "
        f"{screened_verdict(found['learner'])} (see below). The trial alone, at "
        "other caps:\n\n"
        f"{table(['sd', 'number', *(f'{cap} pairs' for cap in CAPS)], caps)}"
    )


def screened_verdict(found: Sequence[dict[str, Any]]) -> str:
    shares = [each["found"] / each["runs"] for each in found if each["script"] in SCRIPTS]
    return f"{verdict(min(shares) >= POWER)}, {min(shares):.0%} to {max(shares):.0%}"


def learner_part(found: dict[str, Any]) -> str:
    rows = [
        [
            SCRIPTS[each["script"]],
            f"{each['sd']:.2f}",
            f"{each['runs']:,}",
            *(share(each[what], each["runs"]) for what in ("tried", "found")),
            f"{each['false']}",
        ]
        for each in found["learner"]
        if each["script"] in SCRIPTS
    ]
    head = ["rules distilled", "sd", "runs", "+5 put on trial", "+5 accepted", "another accepted"]
    behaviors = BehaviorsConfig()
    return (
        "The same +5 points through the whole learner (`behaviors/learner.py`, default settings), "
        f"which screens rules on {behaviors.screen} dev draws, drops those off the front, and puts "
        "the best of the others on trial unless it lost clearly. Only the rules it distils are "
        "scripted, and calls are abundant. Put on trial, and accepted, within 3 updates:\n\n"
        f"{table(head, rows)}\n\n"
        f"Goal of 80 %, with the screening: {screened_verdict(found['learner'])}.\n\n"
        f"{whole_null(found['learner'])}\n\n{allowance(found)}"
    )


def whole_null(found: Sequence[dict[str, Any]]) -> str:
    """What the learner accepts where nothing is any better."""
    nulls = [each for each in found if each["script"] == "null"]
    hits, runs = (sum(each[what] for each in nulls) for what in ("false", "runs"))
    updates = len(scripts()["null"].effects)
    return (
        f"Through the whole learner, with three rules at 0 distilled in each of {updates} updates "
        f"(sd from problem to problem {200 * SPREAD:.0f} points), {hits} of {runs} runs accepted "
        f"any: {share(hits, runs)}. Goal of at most 5 %, for the whole learner: "
        f"{verdict(hits <= ALPHA * runs)}."
    )


def allowance(found: dict[str, Any]) -> str:
    """What a run of default length can pay for, and what it would have to."""
    runs = [each for each in found["learner"] if each["script"] == "default"]
    updates, share_of = default_updates(), BehaviorsConfig().share
    calls = share_of * default_calls()
    episodes = RunConfig().episodes
    afforded = updates * calls / PAIR_CALLS
    played = " and ".join(f"{each['pairs']:.0f}" for each in runs)
    sds = " and ".join(f"{each['sd']:.2f}" for each in runs)
    hits = " and ".join(f"{each['found']} of {each['runs']}" for each in runs)
    needed = [each["mean_pairs"] for each in found["power"] if each["number"] == 1]
    needs = " and ".join(f"{pairs:.0f}" for pairs in needed)
    times = [pairs / afforded for pairs in needed]
    longer = " and ".join(f"{episodes * each:.0f}" for each in times)
    shares = " and ".join(f"{share_of * each:.1f}" for each in times)
    return (
        f"A default run does not get that far. Its {episodes} episodes bring {updates} updates of "
        f"{calls:.0f} dev calls (share {share_of:g}, 3 agents, beam): at {PAIR_CALLS} calls a pair "
        f"{afforded:.0f} pairs, were there no screening, against the {needs} that a first trial at "
        f"+5 points takes in the mean at sd {sds}. With +5 and two at 0 in the first update and "
        "three at 0 in each later one, screened for the same calls, the learner played "
        f"{played} pairs in the mean, all trials together (the last {BATCH} of an update may "
        f"exceed its calls), and accepted the +5 in {hits} runs. "
        f"A trial goes on from update to update: for its pairs alone it takes {longer} episodes, "
        f"or {episodes} at a share of {shares}."
    )


def mixed_part(found: dict[str, dict[str, float]]) -> str:
    rows = [
        {
            "rule": RULES[name],
            "accepted": f"{each['accepted']:.0f}",
            "below -2 points": f"{each['harmful']:.0f}",
            "at most 0": f"{each['false']:.0f}",
            "mean effect": f"{100 * each['mean_effect']:+.1f}",
            "+5 or more, found": f"{each['useful_found']:.0f} of {each['useful']:.0f}",
            "pairs per candidate": f"{each['pairs']:.0f}",
            "pairs, below -2": f"{each['loser_pairs']:.0f}",
        }
        for name, each in found.items()
    ]
    ours = found["sequential"]
    return (
        f"Effects from N(0, {100 * EFFECT_SD:.0f} points), {ours['candidates']:,.0f} candidates in "
        f"runs of {UPDATES} (for GEPA's rule the pairs are those of the minibatch and, after it is "
        f"won, a dev episode a problem):\n\n{columns(rows)}\n\n"
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
