"""The section of benchmarks.quality.acceptance: its tables, and whether the goals are met."""

from __future__ import annotations

from typing import Any

from benchmarks.quality.acceptance_learner import (
    USELESS,
    default_updates,
    searched,
)
from benchmarks.quality.planted_prompts import (
    EFFECT_SD,
    MINIBATCH,
    NOISES,
    PROBLEMS,
    SPREAD,
    T_PAIRS,
)
from benchmarks.stats import columns, share, wilson
from orchestry.backends.api.learner import MOST_SHARE
from orchestry.core.config import BehaviorsConfig
from orchestry.report.text import table

FOUND = ((0.10, 0, 0.8), (0.10, 1, 0.8), (0.05, 0, 0.6), (0.05, 1, 0.0))
"""Planted gain, place of the noise, and the share of runs that should find it; 0: no goal."""
FINDS = {
    "found": "One rule with a gain is distilled once, in update 1 or 2, at a random place among "
    f"{USELESS} useless ones; {USELESS} useless ones come in every other update:",
    "shown": "The same with examples from gold in place of rules. Only one of an agent's examples "
    "stands in a pair, so that they share the pairs:",
}
"""Runs in which one of all has a gain."""
RULES = {
    "learner": "the learner",
    "t_test": f"t-test, {T_PAIRS} pairs, uncorrected",
    "gepa": "GEPA's rule",
}
NULLS = {
    "equal": "effects 0",
    "varied": f"effects 0, with an sd of {200 * SPREAD:.0f} points from problem to problem",
    "worse": f"effects at most 0, -abs N(0, {100 * EFFECT_SD:.0f} points)",
}
HIGHEST = 0.07
"""Upper end of the interval of false acceptances, at most."""


def section(found: dict[str, Any]) -> str:
    """The text for docs/benchmarks.md."""
    sds = ", ".join(f"{each['sd']:.2f} (measured {each['measured']:.3f})" for each in found["sd"])
    parts = [
        f"Planted worlds of {PROBLEMS} dev problems; a reward is the share of "
        f"{' or '.join(str(noise.tests) for noise in NOISES)} tests passed, which gives paired "
        f"differences an sd of {sds}. Default runs of the whole learner: 20 episodes, 3 agents, "
        f"{default_updates()} updates, {searched()} calls of search; only what is distilled is "
        "scripted. Points are hundredths of the reward; intervals are 95 %, Wilson's for shares.",
        *(f"{told}\n\n{found_part(found[kind])}" for kind, told in FINDS.items()),
        null_part(found["null"]),
        mixed_part(found["mixed"]),
    ]
    return "\n\n".join(parts)


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def found_part(found: list[dict[str, Any]]) -> str:
    goals = {(gain, NOISES[noise].sd): goal for gain, noise, goal in FOUND}
    rows = []
    for each in found:
        goal = goals[each["gain"], each["sd"]]
        met = each["found"] >= goal * each["runs"]
        rows.append(
            {
                "gain": f"{100 * each['gain']:+.0f}",
                "sd": f"{each['sd']:.2f}",
                "runs": f"{each['runs']}",
                "found": share(each["found"], each["runs"]),
                "goal": f"{goal:.0%}, {verdict(met)}" if goal else "none",
                "pairs, median": f"{each['pairs']}",
                "calls, times the search's": f"{each['spent']:.2f}",
                "runs with a useless one accepted": f"{each['false']}",
            }
        )
    dear = max(each["spent"] for each in found)
    return (
        f"{columns(rows)}\n\n"
        f"Goal of at most {MOST_SHARE:g} times the search's calls: {verdict(dear <= MOST_SHARE)}."
    )


def null_part(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        [NULLS[kind], f"{each['runs']:,}", *(share(each[rule], each["runs"]) for rule in RULES)]
        for kind, each in found.items()
    ]
    tops = [wilson(each["learner"] / each["runs"], each["runs"])[1] for each in found.values()]
    count = default_updates() * BehaviorsConfig().candidates
    return (
        f"Share of runs of {count} candidates, none of them any better, with at least one "
        f"accepted, half of the runs at either noise:\n\n"
        f"{table(['candidates', 'runs', *RULES.values()], rows)}\n\n"
        f"Goal of at most 5 %, the upper end of the interval at most {HIGHEST:.0%}: "
        f"{verdict(max(tops) <= HIGHEST)}. GEPA's rule (Agrawal et al., arXiv 2507.19457, "
        f"algorithm 1): a candidate must do better on a minibatch of {MINIBATCH}, and is then kept "
        "by its score on the dev set, here if that is the best so far; this is our reading of the "
        "paper, not the package."
    )


def mixed_part(found: dict[str, Any]) -> str:
    rows = [
        {
            "rule": name,
            "accepted": f"{each['accepted']}",
            "mean effect": f"{100 * each['mean']:+.1f} +- {100 * each['half']:.1f}",
            "at most 0": f"{each['false']}",
            "below -2 points": f"{each['harmful']}",
        }
        for rule, name in RULES.items()
        for each in [found[rule]]
    ]
    ours = found["learner"]
    return (
        f"Effects from N(0, {100 * EFFECT_SD:.0f} points), {found['runs']:,} runs:\n\n"
        f"{columns(rows)}\n\n"
        "Goal of a mean effect of at least 0, with its interval: "
        f"{verdict(ours['mean'] - ours['half'] >= 0)}."
    )
