"""The dry run against what runs really cost, over configurations drawn at random.

Each configuration is estimated twice and then run, at prices: once with no earlier run at hand,
once with one of the same model, on the same task or on another, with a search of its own. The
estimator is told nothing else of how long answers are or how often they fail.

The first part plays without judge and behaviours, on the fake provider. Its population, drawn from
the seed: half of the runs leave the length of answers to the fake's own median; in the other half
its mean is drawn log-uniformly between a tenth of max_tokens and all of them. Half of the runs meet
faults, at up to 10 % of attempts, billed and unbilled; a fifth have a cap that may stop them.

The second part plays with the judge, over HTTP against benchmarks/server/loopback.py, half of it
with behaviours, which are learned after each few episodes, and half of it with replays alone.

The third part plays code_review with the judge, on the fake provider: writers and refactorers
answer with the task's graded codes, and reviewers with texts that leave the code as it is, so that
their siblings always tie. Its earlier runs are of the same task.

Last it times the command itself, for 20 episodes of code_review with Claude.

    python -m benchmarks.guarantees.dry_run [--runs N] [--judged N] [--reviewed N] [--first-seed S]
        [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import ROOT, spawn
from benchmarks.stats import columns
from orchestry.core.config import RunConfig, validate
from orchestry.engine.estimate import Dollars, estimate
from orchestry.engine.run import train
from orchestry.models.fake import SIGMA
from orchestry.task.registry import load_task

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
CODES, WORDINGS = 6, 10
"""Codes of each problem that the third part's agents answer with, and wordings around each."""
LONGEST = 0.76
"""Of the second part's lengths, as a share of max_tokens: the greatest mean of the first part's,
whose answers vary within a run and are cut at max_tokens."""
MODELS = {"anthropic": "claude-haiku-5-5", "openai": "local-1"}
FAULTS = (["429", "529"], ["500", "timeout", "drop"], ["429", "500", "drop"])
GOAL = 0.9
WIDEST = 4.0
"""Most that p95 may be of p5, in the median, with an earlier run of the model at hand."""
COMMAND_TIMED = (
    *("run", "--task", "code_review", "--episodes", "20"),
    *("--provider", "anthropic", "--dry-run"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One configuration: what was foretold, and what the run's ledger had spent in the end."""

    seed: int
    config: RunConfig
    alone: Dollars
    """With no earlier run at hand."""
    after_one: Dollars
    real_usd: float
    stopped: str

    @property
    def beyond(self) -> bool:
        """Whether it passed what was called a maximum."""
        tops = (self.alone.max, self.after_one.max)
        return any(top is not None and self.real_usd > top for top in tops)

    @property
    def room(self) -> float | None:
        """The maximum over the real cost, where there is a maximum and anything was spent."""
        top = self.after_one.max
        return top / self.real_usd if top is not None and self.real_usd else None


def within(found: Dollars, usd: float) -> bool:
    return found.p5 <= usd <= found.p95


def width(found: Dollars) -> float:
    return found.p95 / found.p5 if found.p5 else math.inf


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


def earlier(config: RunConfig, seed: int) -> RunConfig:
    """A small run of the same model before that one, on the same task or on another."""
    rng = random.Random(f"earlier {seed}")
    task = config.task if config.task not in TASKS or _half(rng) else rng.choice([*TASKS])
    search = config.search.model_copy(update={"k_samples": 2, "beam_width": 2, "strategy": "beam"})
    changes = {
        "task": task,
        "task_path": (TASKS[task],) if task in TASKS else config.task_path,
        "agents": config.agents if task == config.task else {},
        "search": search,
        "episodes": rng.randint(2, 6),
        "seed": seed + 1,
        "budget": config.budget.model_copy(update={"usd": None}),
    }
    return config.model_copy(update=changes)


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
        output_sigma=rng.uniform(0.0, 0.6),
    )


def draw_reviewed(seed: int, script: Path) -> RunConfig:
    """A configuration of the third part, whose models answer by that script."""
    rng = random.Random(f"reviewed {seed}")
    search = {"k_samples": rng.randint(2, 4), "beam_width": rng.randint(1, 2)}
    return validate(
        {
            "task": "code_review",
            "episodes": rng.randint(2, 6),
            "seed": seed,
            "provider": {"name": "fake", "fake": {"script": script}},
            "sampling": {"max_tokens": rng.choice((128, 256, 512))},
            "search": search,
            "budget": {"usd": None},
            "prices": {"fake-1": _price(rng)},
            "judge": {
                "enabled": True,
                "repeats": rng.choice((1, 1, 2)),
                "provider": {"name": "fake"},
            },
            "behaviors": {"enabled": False},
        }
    )


def write_script(path: Path, seed: int, limit: int) -> None:
    """Answers to code_review's problems, of a mean length that is drawn as for the server."""
    rng, task = random.Random(f"script {seed}"), load_task("code_review")
    mean = limit * math.exp(rng.uniform(math.log(0.1), math.log(LONGEST)))

    def lines(agent: str, text: str, **match: str) -> Iterator[str]:
        for number in range(WORDINGS):
            length = round(rng.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA))
            said = {"agent": agent, "text": f"Take {number}.\n{text}", **match}
            yield json.dumps(said | {"output_tokens": max(1, length)}) + "\n"

    found = [one for n in range(CODES) for one in lines("reviewer", f"Case {n} is wrong.")]
    for problem in task.problems("train"):
        for answers in task.graded(problem)[:CODES]:
            for agent in ("writer", "refactorer"):
                found += lines(agent, answers[agent], match=problem.prompt)
    path.write_text("".join(found), encoding="utf-8")


def play_reviewed(seed: int) -> Outcome:
    """Estimates a configuration of the third part, then runs it."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.jsonl")
        config = draw_reviewed(seed, script)
        write_script(script, seed, config.sampling.max_tokens)
        return _play(seed, config)


def play_judged(seed: int) -> Outcome:
    """Estimates a configuration of the second part, then runs it against a server of its own."""
    limit = draw_judged(seed, "").sampling.max_tokens
    with spawn(served(seed, limit)) as server:
        return _play(seed, draw_judged(seed, server.url))


def play(seed: int) -> Outcome:
    """Estimates a configuration of the first part, then runs it."""
    return _play(seed, draw(seed))


def _play(seed: int, config: RunConfig) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        alone = estimate(config).cost_usd
        train(earlier(config, seed), runs / "earlier")
        after_one = estimate(config, runs=[runs]).cost_usd
        summary = train(config, runs / "run").summary
    return Outcome(seed, config, alone, after_one, summary.cost_usd, summary.stopped)


def result(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of one part."""
    learned = [one for one in outcomes if one.config.behaviors.enabled]
    rooms = [room for one in outcomes if (room := one.room) is not None]
    return {
        "runs": len(outcomes),
        "alone": _figures(outcomes, "alone"),
        "after_one": _figures(outcomes, "after_one"),
        "learned": len(learned),
        "learned_within": sum(within(one.after_one, one.real_usd) for one in learned),
        "above_max": sum(one.beyond for one in outcomes),
        "with_max": len(rooms),
        "median_max_over_real": median(rooms) if rooms else None,
        "least_max_over_real": min(rooms, default=None),
        "stopped_at_cap": sum(one.stopped == "budget" for one in outcomes),
    }


def _figures(outcomes: Sequence[Outcome], which: str) -> dict[str, Any]:
    """Those of the estimates with or without an earlier run; widths of runs that no cap stopped."""
    found = [(getattr(one, which), one.real_usd) for one in outcomes]
    free = [(getattr(one, which), one.real_usd) for one in outcomes if one.stopped != "budget"]
    return {
        "within": sum(within(dollars, usd) for dollars, usd in found),
        "below": sum(usd < dollars.p5 for dollars, usd in found),
        "above": sum(usd > dollars.p95 for dollars, usd in found),
        "p95_over_p5": median(width(dollars) for dollars, _ in free),
        "real_over_expected": median(usd / dollars.expected for dollars, usd in free),
        "outside_seeds": [
            one.seed for one in outcomes if not within(getattr(one, which), one.real_usd)
        ],
    }


def timed(times: int = 5) -> dict[str, float]:
    """Median seconds of the command for 20 episodes of code_review, by the wall and of CPU."""
    command = (sys.executable, "-m", "orchestry", *COMMAND_TIMED)
    walls, cpus = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(times):
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            walls.append(time.perf_counter() - began)
            cpus.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return {"wall_s": median(walls), "cpu_s": median(cpus), "load": os.getloadavg()[0]}


def coverage(parts: dict[str, dict[str, Any]]) -> str:
    """A table with a line per part and estimate."""
    rows = []
    for name, found in parts.items():
        for which, said in (("alone", "none"), ("after_one", "one")):
            one = found[which]
            cells = {
                "runs": name,
                "earlier run at hand": said,
                "within [p5, p95]": f"**{one['within']} of {found['runs']}**",
                "below": str(one["below"]),
                "above": str(one["above"]),
                "p95 / p5": f"{one['p95_over_p5']:.1f}",
                "real / expected": f"{one['real_over_expected']:.2f}",
            }
            rows.append(cells)
    return columns(rows, figures=False)


def section(
    plain: dict[str, Any],
    judged: dict[str, Any],
    reviewed: dict[str, Any],
    time_: dict[str, float],
) -> str:
    """The part of docs/benchmarks.md."""
    parts = {"plain": plain, "judged": judged, "code_review, judged": reviewed}
    tops = plain["with_max"] + judged["with_max"]
    above = plain["above_max"] + judged["above_max"]
    return (
        f"{coverage(parts)}\n\n"
        "`p95 / p5` and `real / expected` are medians, of the runs that no cap stopped. The "
        "earlier run is a small one of the same model (2 to 6 episodes), half of them on the same "
        "task, and all of code_review's.\n\n"
        f"The real cost was above the hard maximum in **{above}** of the {tops} runs that have "
        "one. "
        f"Of the plain ones it is {plain['median_max_over_real']:.0f} times the real cost in the "
        f"median and {plain['least_max_over_real']:.2f} times at the least; "
        f"{plain['stopped_at_cap']} runs stopped at their cap. Runs that learn, and tasks whose "
        "answers may decide how many calls are made or how long prompts are, have no maximum but "
        "the budget.\n\n"
        f"`orchestry {' '.join(COMMAND_TIMED)}` takes **{time_['wall_s']:.2f} s** by the wall and "
        f"{time_['cpu_s']:.2f} s of CPU (medians of 5, load average {time_['load']:.1f}), imports "
        "included.\n\n"
        "Plain runs have no judge and learn nothing, on the fake provider. The configurations vary "
        "samples, width, strategy, joint actions, exploration, concurrency, episodes, each agent's "
        "max_tokens, prices with and without prompt caching, faults (none, or up to 10 % of "
        "attempts, billed and unbilled), caps, and four tasks: two of fixed turns, one with "
        "simultaneous agents, one that goes on until an answer ends it. Half of them leave the "
        "length of answers to the fake provider's own median, half draw its mean evenly, on a log "
        "scale, between a tenth of max_tokens and all of them.\n\n"
        f"Judged runs ask the loopback server over HTTP; {judged['learned']} of {judged['runs']} "
        f"learn behaviours after each few episodes (within, with an earlier run: "
        f"{judged['learned_within']} of {judged['learned']}). The server's mean length is drawn as "
        "above for each run; its verdicts are random words by the schema. The spreads that the "
        "estimator takes were chosen on other seeds of the same population.\n\n"
        "In code_review the writers and refactorers answer with codes of which some are right, and "
        "the reviewers never change the score, so that all their siblings go to the judge."
    )


def _all(play: Callable[[int], Outcome], seeds: range) -> list[Outcome]:
    outcomes = []
    for seed in seeds:
        outcomes.append(one := play(seed))
        if not within(one.after_one, one.real_usd) or one.beyond:
            print(f"outside: {one}", file=sys.stderr)
    return outcomes


def _failed(found: dict[str, Any]) -> bool:
    missed = any(found[which]["within"] < GOAL * found["runs"] for which in ("alone", "after_one"))
    return bool(missed or found["above_max"] or found["after_one"]["p95_over_p5"] > WIDEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="of the first part")
    parser.add_argument("--judged", type=int, default=40, help="runs of the second part")
    parser.add_argument("--reviewed", type=int, default=20, help="runs of the third part")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    os.environ |= dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "loopback")
    time_, first = timed(), args.first_seed
    plain = result(_all(play, range(first, first + args.runs)))
    judged = result(_all(play_judged, range(first, first + args.judged)))
    reviewed = result(_all(play_reviewed, range(first, first + args.reviewed)))
    parts = {"plain": plain, "judged": judged, "reviewed": reviewed}
    text = section(plain, judged, reviewed, time_)
    print(json.dumps(parts | {"time": time_}) if args.json else text)
    if args.write:
        page.write("dry_run", COMMAND, text)
    if any(_failed(part) for part in parts.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
