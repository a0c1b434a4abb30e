"""PPO's learner beside stable-baselines3's, on the same compiled games with equal settings.

    python -m benchmarks.peers.ppo [--steps N] [--seeds N] [--write]

Both learn Bucket Brigade with one policy for all four agents, on one thread, alternately, each in a
process of its own; stable-baselines3 in `.envs/sb3`. Before and afterwards both play the same 1,000
games. Steps are environment steps per second of CPU time: four actions each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from benchmarks import page
from benchmarks.peers.overhead import python_of
from benchmarks.peers.ppo_work import AGENTS, Work, plain
from benchmarks.stats import columns, over_seeds
from orchestry.core.ppo import PpoConfig

SCENARIOS = ("minimal_specialization", "chain_reaction", "rest_trap")
LARGE = Work(
    scenario=SCENARIOS[0],
    steps=0,
    games=256,
    horizon=64,
    passes=2,
    minibatch=4096,
    learning_rate=3e-3,
    seed=0,
)
SMALL = replace(LARGE, games=8, horizon=512, passes=10, minibatch=64, learning_rate=3e-4)
"""stable-baselines3's own defaults for passes, minibatch and learning rate."""
SMALL_SHARE = 10
"""Of steps in large batches: small ones take so much longer."""
GOAL = 5.0
Line = Mapping[str, Any]
Pair = tuple[Line, Line]


def play(contestant: str, work: Work) -> Line:
    """One contestant once."""
    python = sys.executable if contestant == "ppo" else python_of(contestant)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(page.ROOT)}
    done = subprocess.run(
        [python, "-m", f"benchmarks.peers.with_{contestant}", plain(work)],
        capture_output=True,
        text=True,
        env=environ,
        cwd=page.ROOT,
    )
    if done.returncode:
        raise RuntimeError(f"{contestant} failed:\n{done.stderr[-3000:]}")
    found: Line = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{contestant} {work.scenario} {work.seed}: {_speed(found):,.0f} steps/s", file=sys.stderr
    )
    return found


def _speed(line: Line) -> float:
    return float(line["steps"] / line["cpu_s"])


def products(work: Work) -> float:
    """Multiplications and additions in the matrix products of one environment step: each of actor
    and critic plays once, and in each pass is computed forwards and backwards."""
    games, hidden = work.vectors(1, "shape"), PpoConfig().hidden
    count = 0
    for outputs in (sum(games.choices), 1):
        widths = (games.observations.shape[-1], *hidden, outputs)
        layers = [i * o for i, o in itertools.pairwise(widths)]
        count += sum(layers) * (1 + 3 * work.passes) - layers[0] * work.passes
    return 2.0 * AGENTS * count


def fastest(rows: int) -> float:
    """Multiplications and additions per second of CPU time that torch reaches in such products."""
    import torch

    torch.set_num_threads(1)
    left, right = torch.ones(rows, 64), torch.ones(64, 64)
    times = []
    for _ in range(200):
        began = time.process_time()
        for _ in range(5):
            torch.mm(left, right)
        times.append(time.process_time() - began)
    return 5 * 2 * left.numel() * right.shape[1] / median(times)


def bound(pairs: Sequence[Pair]) -> str:
    """A sentence: how much of the time in large batches are products that every learner needs."""
    rate = fastest(LARGE.minibatch)
    most = rate / products(LARGE)
    ours, theirs = (median(map(_speed, played)) for played in zip(*pairs, strict=True))
    return (
        f"In large batches a step takes {products(LARGE) / 1e6:.2f} million operations in matrix "
        f"products. At the {rate / 1e9:.0f} GFLOPS that torch reaches here in such products, they "
        f"alone allow {most:,.0f} steps/s, {most / theirs:.1f} times sb3's: they take "
        f"{ours / most:.0%} of our time, and {theirs / most:.0%} of sb3's."
    )


def ratios(pairs: Sequence[Pair]) -> list[float]:
    """How many times as fast as sb3 ours is."""
    return [_speed(ours) / _speed(theirs) for ours, theirs in pairs]


def verdict(played: Mapping[Work, Sequence[Pair]]) -> str:
    """A sentence: whether the goal is reached in every scenario, in each size of batch."""
    parts = []
    for name in dict.fromkeys(map(size, played)):
        found = [median(ratios(pairs)) for work, pairs in played.items() if size(work) == name]
        said = "met" if min(found) >= GOAL else "missed"
        ends = dict.fromkeys(f"{one:.2f}" for one in (min(found), max(found)))
        parts.append(f"{said} in {name} batches ({' to '.join(ends)})")
    return f"Goal: {GOAL:g} times at equal settings: {', '.join(parts)}."


def size(work: Work) -> str:
    """Of batches."""
    return "large" if work.games == LARGE.games else "small"


def duels(work: Work, seeds: int) -> list[Pair]:
    """Ours and theirs, seed by seed."""
    works = [replace(work, seed=seed) for seed in range(seeds)]
    return [(play("ppo", one), play("sb3", one)) for one in works]


def row(work: Work, pairs: Sequence[Pair]) -> dict[str, str]:
    """One setting in one scenario, over seeds."""
    times = ratios(pairs)
    gaps = [fmean(ours["returns"]) - fmean(theirs["returns"]) for ours, theirs in pairs]
    return {
        "batches": size(work),
        "scenario": work.scenario,
        "steps": f"{pairs[0][0]['steps']:,}",
        "ours, steps/s": f"{median(_speed(ours) for ours, _ in pairs):,.0f}",
        "sb3, steps/s": f"{median(_speed(theirs) for _, theirs in pairs):,.0f}",
        "times": f"**{median(times):.2f}** ({min(times):.2f} to {max(times):.2f})",
        "untrained, return": over_seeds([fmean(ours["untrained"]) for ours, _ in pairs]),
        "ours, return": over_seeds([fmean(ours["returns"]) for ours, _ in pairs]),
        "sb3, return": over_seeds([fmean(theirs["returns"]) for _, theirs in pairs]),
        "difference": over_seeds(gaps),
    }


def main() -> None:
    """Plays, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3_000_000, help="in large batches")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    small = replace(SMALL, steps=args.steps // SMALL_SHARE)
    large = [replace(LARGE, steps=args.steps, scenario=name) for name in SCENARIOS]
    played = {work: duels(work, args.seeds) for work in (*large, small)}
    in_large = [pair for work in large for pair in played[work]]
    body = (
        f"{len(SCENARIOS)} scenarios, {args.seeds} seeds. Large batches: {LARGE.games} games of "
        f"{LARGE.horizon} steps, {LARGE.passes} passes in minibatches of {LARGE.minibatch:,} "
        f"(the defaults of `ppo.*`). Small ones: {SMALL.games} games of {SMALL.horizon} steps, "
        f"{SMALL.passes} passes in minibatches of {SMALL.minibatch} (stable-baselines3's own). "
        f"± is half a 95 % interval over seeds (Student's t). Both lower the learning rate and the "
        "weight of the entropy to 0, in a straight line over the steps.\n\n"
        f"{columns([row(*one) for one in played.items()], figures=False)}\n\n"
        f"{verdict(played)} Small batches were timed in one scenario only, over "
        f"{played[small][0][0]['steps']:,} steps. So the figure there is of speed alone: next to "
        "nothing is learned in so few steps (compare the returns with those of the untrained "
        f"team).\n\n{bound(in_large)}"
    )
    print(body)
    if args.write:
        command = f"python -m benchmarks.peers.ppo --steps {args.steps} --seeds {args.seeds}"
        page.write("ppo", f"{command} --write", body)


if __name__ == "__main__":
    main()
