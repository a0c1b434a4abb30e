"""What teams of scripted agents earn in every scenario of Bucket Brigade.

    python -m benchmarks.quality.bucket_teams [--games N] [--write]

Four agents of one kind play the same games: every kind has the same luck. So the differences
between kinds come from what they do.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

from benchmarks import page
from benchmarks.peers.bucket_speed import module
from benchmarks.stats import Rows, bounds, columns, mean
from orchestry.task.registry import load_task

COMMON = ("random", "always_rest", "always_work", "guard")
ARCHETYPES = ("firefighter", "free_rider", "hero", "coordinator", "liar")


def earned(task: Any, kind: str, games: int) -> Rows:
    """The agents' mean return in each game."""
    experts = module("experts")
    problem = task.problems("train")[0]
    rows: Rows = {}
    for seed in range(games):
        state = task.reset(problem, seed)
        agents = range(task.scenario.num_agents)
        seats = [experts.Seat(task.scenario, n, random.Random(f"{seed}:{n}")) for n in agents]
        while task.to_act(state):
            acts = [experts.EXPERTS[kind](seat, state.ring) for seat in seats]
            state = task.play(state, acts)
        rows[str(seed)] = [sum(task.returns(state)) / len(agents)]
    return rows


def row(name: str, games: int) -> dict[str, str]:
    """A scenario's cells; in bold the most."""
    task = load_task("bucket_brigade", options={"scenario": name})
    own: str | None = module("experts").UPSTREAMS.get(name)
    kinds = (*COMMON, *ARCHETYPES, *([own] if own else []))
    found = {kind: earned(task, kind, games) for kind in kinds}
    best = max(found, key=lambda kind: mean(found[kind]))
    cells = {"scenario": name}
    for kind, rows in found.items():
        low, high = bounds(rows)
        text = f"{mean(rows):.0f} [{low:.0f}, {high:.0f}]"
        cells["its expert" if kind == own else kind] = f"**{text}**" if kind == best else text
    return {"its expert": "", **cells} if own is None else cells


def main() -> None:
    """Plays, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", type=int, default=200, help="per scenario and kind")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    rows = [row(name, args.games) for name in module("scenario").names()]
    heads = ("scenario", *COMMON, *ARCHETYPES, "its expert")
    table = columns([{head: one[head] for head in heads} for one in rows], figures=False)
    body = (
        f"Mean return per agent over {args.games} games of four agents of one kind, the same games "
        "for all kinds, with 95 % intervals; in bold the most. `its expert` is the one that "
        "upstream wrote for the scenario, where it did; `guard` works where an own house burns. "
        f"Returns are sums over nights, so games that last longer pay more.\n\n{table}"
    )
    print(body)
    if args.write:
        command = f"python -m benchmarks.quality.bucket_teams --games {args.games} --write"
        page.write("bucket_teams", command, body)


if __name__ == "__main__":
    main()
