"""How fast Bucket Brigade is played: compiled games, the rules in Python, upstream's Python and
Rust, and another vector environment.

    python -m benchmarks.peers.bucket_speed [--upstream CHECKOUT [--rust [CRATES]]] [--envpool]
        [--write]

Random actions of four agents on ten houses, one thread. Ours writes observations (float32) and
begins ended games anew. CHECKOUT is a copy of the repository rjwalters/bucket-brigade; its
environment returns observations as a dict, and is reset by the caller. --rust builds its core with
cargo. CRATES is a folder of crates, for where cargo's registry is out of reach: on Debian,
librust-rand-dev, librust-rand-pcg-dev, librust-serde-dev and librust-serde-json-dev fill
/usr/share/cargo/registry. --envpool plays EnvPool's CartPole in `.envs/envpool`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.peers import bucket_core, rate
from benchmarks.peers.overhead import python_of
from orchestry.task.registry import load_task

AGENTS, HOUSES = 4, 10
BATCHES = (64, 256, 1024, 4096)
GOAL = 30
"""M agent-steps per second and core, of compiled games."""
Rates = tuple[float, float, float]
_PLAYED = 32
"""Sets of actions that are drawn before the clock runs."""


def module(name: str) -> Any:
    """One of the task's own."""
    load_task("bucket_brigade")
    return import_module(f"orchestry_tasks.bucket_brigade.{name}")


def compiled(scenario: str, games: int, agents: int = AGENTS) -> Callable[[], int]:
    """So many games at once."""
    import numpy as np

    kernel = module("kernel")
    given = module("scenario").scenario(scenario, {"num_agents": agents})
    rules = kernel.rules(given, 100)
    on, seen = kernel.opened(given, games, 0)
    kernel.begin(rules, on, seen, kernel.NO_LUCK)
    draw = np.random.default_rng(0).integers
    sizes = (_PLAYED, games, agents)
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


def other(games: int) -> Rates:
    """EnvPool's."""
    done = subprocess.run(
        [python_of("envpool"), "-m", "benchmarks.peers.with_envpool", str(games)],
        cwd=page.ROOT,
        env={**os.environ, "PYTHONPATH": str(page.ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"envpool failed:\n{done.stderr[-3000:]}")
    middle, least, most = json.loads(done.stdout.splitlines()[-1])
    return middle, least, most


def measured(args: argparse.Namespace) -> Iterator[tuple[str, int, Rates]]:
    """Every contestant in turn: its name, its agents, and steps per second."""
    for name in ("default", "hard", "default_continuous"):
        for games in BATCHES if name == "default" else BATCHES[2:3]:
            found = rate.rate(compiled(name, games))
            yield f"compiled, {games:,} games at once, {name}", AGENTS, found
    yield "rules in Python, default", AGENTS, rate.rate(in_python("default"))
    if args.upstream:
        yield "upstream's Python, default", AGENTS, rate.rate(upstream(args.upstream, "default"))
    if args.rust is not None:
        program = bucket_core.built(args.upstream, args.rust)
        for observed, name in ((True, ""), (False, ", without observations")):
            found = rate.rate(bucket_core.played(program, observed), bucket_core.cpu)
            yield f"upstream's Rust, called from Rust, default{name}", AGENTS, found
    if args.envpool:
        games = BATCHES[2]
        yield f"EnvPool, {games:,} CartPoles at once (1 agent)", 1, other(games)


def main() -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstream", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rust", nargs="?", const="", metavar="CRATES")
    parser.add_argument("--envpool", action="store_true")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    if args.rust is not None and not args.upstream:
        parser.error("--rust builds the core of --upstream CHECKOUT: name one")
    rows = ["| | M agent-steps per second (range) | us per step of a game |", "|---|---|---|"]
    best = (0.0, 0.0)
    for name, agents, found in measured(args):
        middle, least, most = (agents * one / 1e6 for one in found)
        best = max(best, (middle, most))
        spread = f"{middle:.3g} ({least:.3g} to {most:.3g})"
        rows.append(f"| {name} | {spread} | {agents / middle:.3g} |")
        print(rows[-1], file=sys.stderr)
    body = (
        f"{AGENTS} agents, {HOUSES} houses, random actions, one thread, CPU time of the process; "
        f"median of {rate.ROUNDS} rounds of {rate.SECONDS:g} s. An agent-step is one agent's part "
        "of a step. Compiled games write float32 observations and begin anew when they end. "
        "EnvPool's is another game, whose observation is 4 numbers. PufferLib 3.0.0 does not build "
        "here: its setup downloads something from outside the package registry.\n\n"
        f"Goal of {GOAL} M agent-steps per second: {'met' if best[0] >= GOAL else 'missed'}, "
        f"{best[0]:.3g} in the median of the fastest line, {best[1]:.3g} in its best round.\n\n"
    )
    body += "\n".join(rows)
    print(body)
    if args.write:
        given = " --upstream CHECKOUT" if args.upstream else ""
        given += "" if args.rust is None else " --rust" + " CRATES" * bool(args.rust)
        given += " --envpool" * args.envpool
        page.write("bucket_speed", f"python -m benchmarks.peers.bucket_speed{given} --write", body)


if __name__ == "__main__":
    main()
