"""How fast Bucket Brigade is played: compiled games, the rules in Python, and upstream's Python.

    python -m benchmarks.peers.bucket_speed [--upstream CHECKOUT] [--write]

Random actions of four agents on ten houses, one thread. Ours writes observations (float32) and
begins ended games anew. CHECKOUT is a copy of the repository rjwalters/bucket-brigade; its
environment returns observations as a dict, and is reset by the caller.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import page
from orchestry.task.registry import load_task

AGENTS, HOUSES = 4, 10
BATCHES = (64, 256, 1024, 4096)
SECONDS, ROUNDS = 1.0, 5
_PLAYED = 32
"""Sets of actions that are drawn before the clock runs."""


def module(name: str) -> Any:
    """One of the task's own."""
    load_task("bucket_brigade")
    return import_module(f"orchestry_tasks.bucket_brigade.{name}")


def rate(play: Callable[[], int]) -> tuple[float, float, float]:
    """Environment steps per second of CPU time: median, least and most of the rounds. `play` says
    how many it took."""
    found = []
    for _ in range(ROUNDS):
        steps, start = 0, time.process_time()
        while (spent := time.process_time() - start) < SECONDS:
            steps += play()
        found.append(steps / spent)
    return median(found), min(found), max(found)


def compiled(scenario: str, games: int) -> Callable[[], int]:
    """So many games at once."""
    import numpy as np

    kernel = module("kernel")
    given = module("scenario").scenario(scenario, {})
    rules = kernel.rules(given, 100)
    on, seen = kernel.opened(given, games, 0)
    kernel.begin(rules, on, seen, kernel.NO_LUCK)
    draw = np.random.default_rng(0).integers
    sizes = (_PLAYED, games, AGENTS)
    acts = np.stack([draw(0, top, sizes) for top in (HOUSES, 2, 2)], -1).astype(np.int8)

    def play() -> int:
        for one in acts:
            kernel.step(rules, on, seen, one, kernel.NO_LUCK, kernel.NO_LUCK)
        return _PLAYED * games

    play()  # compiles
    return play


def in_python(scenario: str) -> Callable[[], int]:
    """One game after the other, by the rules alone."""
    game = module("game")
    given = module("scenario").scenario(scenario, {})
    source, seeds = random.Random(0), iter(range(10**9))

    def play() -> int:
        luck = str(next(seeds))
        ring = game.begin(given, game.draws(luck, -1, HOUSES))
        while not ring.done:
            acts = [game.Action(*act) for act in _acts(source)]
            ring, _ = game.play(given, ring, acts, game.draws(luck, ring.night, HOUSES))
        return int(ring.night)

    return play


def upstream(checkout: Path, scenario: str) -> Callable[[], int]:
    """One game after the other in upstream's environment."""
    sys.path.insert(0, str(checkout))
    import numpy as np
    from bucket_brigade.envs import bucket_brigade_env, scenarios_generated

    env = bucket_brigade_env.BucketBrigadeEnv(
        scenarios_generated.get_scenario_by_name(scenario, AGENTS)
    )
    source, seeds = random.Random(0), iter(range(2**31))

    def play() -> int:
        env.reset(next(seeds))
        while not env.done:
            env.step(np.array([*_acts(source)]))
        return int(env.night)

    return play


def _acts(source: random.Random) -> Iterator[tuple[int, int, int]]:
    for _ in range(AGENTS):
        yield source.randrange(HOUSES), source.randrange(2), source.randrange(2)


def main() -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstream", type=Path, metavar="CHECKOUT")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    plays = {
        f"compiled, {games:,} games at once, {name}": compiled(name, games)
        for name in ("default", "hard", "default_continuous")
        for games in (BATCHES if name == "default" else BATCHES[2:3])
    }
    plays["rules in Python, default"] = in_python("default")
    if args.upstream:
        plays["upstream's Python, default"] = upstream(args.upstream, "default")
    rows = ["| | M agent-steps per second (range) | us per step of a game |", "|---|---|---|"]
    for name, play in plays.items():
        middle, least, most = (AGENTS * one / 1e6 for one in rate(play))
        spread = f"{middle:.3g} ({least:.3g} to {most:.3g})"
        rows.append(f"| {name} | {spread} | {AGENTS / middle:.3g} |")
        print(rows[-1], file=sys.stderr)
    body = (
        f"{AGENTS} agents, {HOUSES} houses, random actions, one thread, CPU time of the process; "
        f"median of {ROUNDS} rounds of {SECONDS:g} s. An agent-step is one agent's part of a step. "
        "Compiled games write float32 observations and begin anew when they end.\n\n"
    )
    body += "\n".join(rows)
    print(body)
    if args.write:
        given = " --upstream CHECKOUT" if args.upstream else ""
        page.write("bucket_speed", f"python -m benchmarks.peers.bucket_speed{given} --write", body)


if __name__ == "__main__":
    main()
