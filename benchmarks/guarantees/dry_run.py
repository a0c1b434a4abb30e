"""The dry run against what runs really cost, over configurations drawn at random.

Each configuration is estimated first and then run, at prices; the estimator is told nothing of how
long answers are or how often they fail. The first part plays without judge and behaviours, on the
fake provider. Its population, drawn from the seed: half of the runs leave the length of answers to
the fake's own median; in the other half its mean is drawn log-uniformly between a tenth of
max_tokens and all of them. Half of the runs meet faults, at up to 10 % of attempts, billed and
unbilled; a fifth have a cap that may stop them.

The second part plays with the judge, over HTTP against benchmarks/server/loopback.py, half of it
with behaviours, which are learned after each few episodes, and half of it with replays alone.

    python -m benchmarks.guarantees.dry_run [--runs N] [--judged N] [--first-seed S] [--json]
        [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import ROOT, spawn
from orchestry.core.config import RunConfig, validate
from orchestry.engine.estimate import Dollars, estimate
from orchestry.engine.run import train

COMMAND = "python -m benchmarks.guarantees.dry_run --write"
TASKS = {
    "words": ROOT / "tests" / "fixtures" / "tasks",
    "relay": ROOT / "benchmarks" / "server" / "tasks",
    "duet": ROOT / "benchmarks" / "server" / "tasks",
    "until": ROOT / "benchmarks" / "server" / "tasks",
}
_LINE = ("writer", "reviewer", "refactorer")
ROLES: dict[str, tuple[str, ...]] = {
    "words": _LINE,
    "relay": _LINE,
    "duet": ("left", "right"),
    "until": ("asker", "teller"),
}
TURNS = {"words": 1, "relay": 1, "duet": 2, "until": 3}
"""Most times that each agent of a task speaks."""
MOST_CALLS = 1000
"""Larger runs are drawn again, so that the benchmark takes minutes."""
MOST_JUDGED = 300
"""The same of a run of the second part, verdicts, replays and trials not counted."""
LONGEST = 0.76
"""Of the second part's lengths, as a share of max_tokens: the greatest mean of the first part's,
whose answers vary within a run and are cut at max_tokens."""
MODELS = {"anthropic": "claude-haiku-5-5", "openai": "local-1"}
FAULTS = (["429", "529"], ["500", "timeout", "drop"], ["429", "500", "drop"])
GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Outcome:
    """One configuration: what was foretold, and what the run's ledger had spent in the end."""

    seed: int
    config: RunConfig
    foretold: Dollars
    real_usd: float
    stopped: str

    @property
    def within(self) -> bool:
        return self.foretold.p5 <= self.real_usd <= self.foretold.p95

    @property
    def beyond(self) -> bool:
        return self.foretold.max is not None and self.real_usd > self.foretold.max

    @property
    def room(self) -> float | None:
        """The maximum over the real cost, where there is a maximum."""
        return None if self.foretold.max is None else self.foretold.max / self.real_usd

    @property
    def width(self) -> float:
        return self.foretold.p95 / self.foretold.p5 if self.foretold.p5 else math.inf


def draw(seed: int) -> RunConfig:
    """A configuration of the first part."""
    rng = random.Random(seed)
    return _config(rng, seed, *_size(rng, MOST_CALLS))


def _size(rng: random.Random, most: int) -> tuple[str, dict[str, Any], int]:
    """A task, a search and episodes that make at most about `most` calls."""
    while True:
        search, episodes = _search(rng), rng.randint(1, 24)
        task = rng.choice([*TASKS])
        k, width = search["k_samples"], search["beam_width"]
        joint = 1 if search["joint"] == "aligned" else k
        each = len(ROLES[task]) * TURNS[task] * joint
        if episodes * k * width * each <= most:
            return task, search, episodes


def _search(rng: random.Random) -> dict[str, Any]:
    return {
        "k_samples": rng.randint(1, 8),
        "beam_width": rng.randint(1, 4),
        "strategy": rng.choice(("beam", "beam", "best_of_n", "single")),
        "joint": rng.choice(("aligned", "aligned", "cross")),
        "exploration": rng.choice((0.0, 0.2)),
        "concurrency": rng.choice((1, 8, 64)),
    }


def _config(
    rng: random.Random, seed: int, task: str, search: dict[str, Any], episodes: int
) -> RunConfig:
    limit = rng.choice((64, 128, 256, 512, 1024, 2048))
    own = {r: {"max_tokens": limit * rng.choice((1, 2)) // 2} for r in ROLES[task] if _half(rng)}
    config = validate(
        {
            "task": task,
            "task_path": [TASKS[task]],
            "episodes": episodes,
            "seed": seed,
            "provider": {"name": "fake", "fake": _fake(rng, limit)},
            "sampling": {"max_tokens": limit},
            "agents": own,
            "search": search,
            "budget": {"usd": None},
            "retry": {"base_s": 0.0},
            "prices": {"fake-1": _price(rng)},
            "judge": {"enabled": False},
            "behaviors": {"enabled": False},
        }
    )
    return _with_cap(rng, config) if rng.random() < 0.2 else config


def _half(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _fake(rng: random.Random, limit: int) -> dict[str, Any]:
    mean = max(1, round(limit * 10 ** rng.uniform(-1, 0)))
    return {
        "output_tokens": mean if _half(rng) else None,
        "fault_rate": rng.uniform(0.0, 0.1) if _half(rng) else 0.0,
        "faults": rng.choice(FAULTS),
    }


def _price(rng: random.Random) -> dict[str, float]:
    price = math.exp(rng.uniform(math.log(0.05), math.log(15)))
    prices = {"input": price, "output": price * rng.choice((1, 3, 4, 5, 8))}
    caching = {"cached_input": price * 0.1, "cache_write": price * 1.25}
    return prices | caching if _half(rng) else prices


def _with_cap(rng: random.Random, config: RunConfig) -> RunConfig:
    """A cap around what is expected, from a third of it to thrice."""
    expected = estimate(config).cost_usd.expected
    cap = expected * math.exp(rng.uniform(-math.log(3), math.log(3)))
    return config.model_copy(update={"budget": config.budget.model_copy(update={"usd": cap})})


def draw_judged(seed: int, url: str) -> RunConfig:
    """A configuration of the second part, whose models answer at `url`."""
    rng = random.Random(f"judged {seed}")
    task, search, episodes = _size(rng, MOST_JUDGED)
    name, learns = rng.choice([*MODELS]), _half(rng)
    base = url if name == "anthropic" else f"{url}/v1"
    return validate(
        {
            "task": task,
            "task_path": [TASKS[task]],
            "episodes": episodes,
            "seed": seed,
            "provider": {"name": name, "model": MODELS[name], "base_url": base},
            "sampling": {"max_tokens": rng.choice((64, 128, 256, 512))},
            "search": search,
            "budget": {"usd": None},
            "retry": {"base_s": 0.0},
            "cache": {"enabled": False},
            "prices": {MODELS[name]: _price(rng)},
            "judge": {
                "when": _mostly(rng, "undecided", "always"),
                "repeats": rng.choice((1, 1, 2)),
            },
            "credit": {"share": None if learns else rng.choice((0.0, 0.3))},
            "behaviors": {"enabled": learns, "every": rng.randint(1, 8)},
        }
    )


def _mostly(rng: random.Random, often: str, seldom: str) -> str:
    return often if rng.random() < 0.75 else seldom


def served(seed: int, limit: int) -> Options:
    """How the second part's server behaves, where answers may have `limit` tokens."""
    rng = random.Random(f"served {seed}")
    return Options(
        seed=seed,
        output_tokens=max(
            1, round(limit * math.exp(rng.uniform(math.log(0.1), math.log(LONGEST))))
        ),
        error=rng.uniform(0.0, 0.05),
        error_billed=rng.uniform(0.0, 0.05) if _half(rng) else 0.0,
    )


def play_judged(seed: int) -> Outcome:
    """Estimates a configuration of the second part, then runs it against a server of its own."""
    limit = draw_judged(seed, "").sampling.max_tokens
    with spawn(served(seed, limit)) as server:
        return _play(seed, draw_judged(seed, server.url))


def play(seed: int) -> Outcome:
    """Estimates a configuration of the first part, then runs it."""
    return _play(seed, draw(seed))


def _play(seed: int, config: RunConfig) -> Outcome:
    foretold = estimate(config).cost_usd
    with tempfile.TemporaryDirectory() as folder:
        summary = train(config, Path(folder) / "run").summary
    return Outcome(seed, config, foretold, summary.cost_usd, summary.stopped)


def result(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    free = [one for one in outcomes if one.stopped != "budget"]
    broad = [one for one in outcomes if one.config.provider.fake.output_tokens is not None]
    rooms = [room for one in outcomes if (room := one.room) is not None]
    return {
        "runs": len(outcomes),
        **_counts(outcomes),
        **{f"drawn_lengths_{name}": count for name, count in _counts(broad).items()},
        "drawn_lengths": len(broad),
        "above_max": sum(one.beyond for one in outcomes),
        "without_max": len(outcomes) - len(rooms),
        "outside_seeds": [one.seed for one in outcomes if not one.within],
        "median_p95_over_p5": median(one.width for one in free),
        "median_real_over_expected": median(one.real_usd / one.foretold.expected for one in free),
        "median_max_over_real": median(rooms),
        "least_max_over_real": min(rooms),
        "stopped_at_cap": len(outcomes) - len(free),
        "seconds": round(seconds, 1),
    }


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {
        "within": sum(one.within for one in outcomes),
        "below": sum(one.real_usd < one.foretold.p5 for one in outcomes),
        "above": sum(one.real_usd > one.foretold.p95 for one in outcomes),
    }


def judged_result(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The second part's figures; behaviours have no maximum, so only the others are held to one."""
    learned = [one for one in outcomes if one.config.behaviors.enabled]
    rooms = [room for one in outcomes if (room := one.room) is not None]
    return {
        "runs": len(outcomes),
        **_counts(outcomes),
        "learned": len(learned),
        **{f"learned_{name}": count for name, count in _counts(learned).items()},
        "above_max": sum(one.beyond for one in outcomes),
        "with_max": len(rooms),
        "outside_seeds": [one.seed for one in outcomes if not one.within],
        "median_p95_over_p5": median(one.width for one in outcomes),
        "median_real_over_expected": median(o.real_usd / o.foretold.expected for o in outcomes),
        "least_max_over_real": min(rooms, default=math.inf),
    }


def judged_section(found: dict[str, Any]) -> str:
    return (
        f"With the judge, over HTTP against the loopback server, {found['learned']} of "
        f"{found['runs']} runs learn behaviours after each few episodes. The real cost was within "
        f"[p5, p95] in **{found['within']} of {found['runs']}** ({found['below']} below, "
        f"{found['above']} above); of those that learn in {found['learned_within']} of "
        f"{found['learned']}. It was above the hard maximum in **{found['above_max']}** of the "
        f"{found['with_max']} that have one (what is learned lengthens the prompts, so that these "
        f"runs have none); the least room was {found['least_max_over_real']:.1f} times the real "
        f"cost. p95 is {found['median_p95_over_p5']:.1f} times p5, and the real cost "
        f"{found['median_real_over_expected']:.2f} times what was expected (medians). The server's "
        "answers have one length a run, drawn evenly, on a log scale, between the least and the "
        "greatest mean length of the first part's; its verdicts are random words by the schema."
    )


def section(found: dict[str, Any]) -> str:
    return (
        f"Of {found['runs']} random configurations, {found['drawn_lengths']} have a mean length of "
        "answers drawn evenly, on a log scale, between a tenth of max_tokens and all of them, not "
        "from the estimator's prior. Of these the real cost was within [p5, p95] in "
        f"**{found['drawn_lengths_within']} of {found['drawn_lengths']}** "
        f"({found['drawn_lengths_below']} below, {found['drawn_lengths_above']} above). The others "
        "leave the length to the fake provider's own median, which lies within the prior, and are "
        f"the easier half: over all it was within in **{found['within']} of {found['runs']}** "
        f"({found['below']} below, {found['above']} above).\n\n"
        f"It was above the hard maximum in **{found['above_max']}** of the "
        f"{found['runs'] - found['without_max']} that have one; the other {found['without_max']} "
        "play a task whose length depends on the answers, without a cap, and are told that there "
        f"is none. The maximum is {found['median_max_over_real']:.0f} times the real cost in the "
        f"median and {found['least_max_over_real']:.2f} times at the least; "
        f"{found['stopped_at_cap']} runs stopped at their cap.\n\n"
        f"Where no cap stopped the run, p95 is {found['median_p95_over_p5']:.1f} times p5, and the "
        f"real cost {found['median_real_over_expected']:.2f} times what was expected (medians). "
        "The prior's spread was chosen on other seeds of the same population.\n\n"
        "The configurations vary samples, width, strategy, joint actions, exploration, "
        "concurrency, episodes, each agent's max_tokens, prices with and without prompt caching, "
        "faults (none, or up to 10 % of attempts, billed and unbilled), caps, and four tasks: two "
        "of fixed turns, one with simultaneous agents, one that goes on until an answer ends it."
    )


def _all(play: Callable[[int], Outcome], seeds: range) -> list[Outcome]:
    outcomes = []
    for seed in seeds:
        outcomes.append(play(seed))
        if not outcomes[-1].within:
            print(f"outside: {outcomes[-1]}", file=sys.stderr)
    return outcomes


def _failed(found: dict[str, Any]) -> bool:
    return bool(found["within"] < GOAL * found["runs"] or found["above_max"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="of the first part")
    parser.add_argument("--judged", type=int, default=40, help="runs of the second part")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    os.environ |= dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "loopback")
    began, first = time.perf_counter(), args.first_seed
    outcomes = _all(play, range(first, first + args.runs))
    found = result(outcomes, time.perf_counter() - began)
    judged = judged_result(_all(play_judged, range(first, first + args.judged)))
    text = f"{section(found)}\n\n{judged_section(judged)}"
    print(json.dumps({**found, "judged": judged}) if args.json else text)
    if args.write:
        page.write("dry_run", COMMAND, text)
    if _failed(found) or _failed(judged):
        sys.exit(1)


if __name__ == "__main__":
    main()
