"""Credit by agent against games whose credits are known by enumeration, and blame for a fault.

The real rollout searches each game (beam, k=4, W=2), and the real replay gives the credits of the
best and the worst trajectory, at several shares of extra calls. Every game is another one: random
effects of agents and of pairs of them, random chances. Where agents move in order, the chances
react to the last move. Then one agent of four is made faulty, another in every window of five
episodes, and blame() must name it. Intervals are 95 % bootstraps over episodes or windows.

    python -m benchmarks.quality.credit [--episodes N] [--windows N] [--seed S] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan, sqrt

from benchmarks import page
from benchmarks.quality.games import TEAM, Chances, Moves, Play, named, problem
from orchestry import Tools
from orchestry.core.config import CreditConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Limits, NodeId, Tree
from orchestry.report.text import table
from orchestry.rollout.credit import blame
from orchestry.rollout.replay import Credited, give_credit
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Beam
from orchestry.rollout.tree import episode_record
from orchestry.sandbox import open_sandbox

SETTINGS = (
    CreditConfig(method="equal"),
    CreditConfig(method="siblings"),
    *(CreditConfig(method="replay", share=share) for share in (0.0, 0.1, 0.25, 0.5, 1.0)),
)
KINDS = {
    "interacting {} 1": "four agents at once",
    "interacting {} 0": "three agents, four moves in order",
    "late {} 0": "the same, scored at the end only",
}
FAULTY = {"faulty {} 1": "four agents at once", "faulty {} 0": "four agents in order"}
"""Names of games, with a place for the number, and what they are."""
WINDOW = 5
DRAWS = 2000
GOAL_CORRELATION, GOAL_BLAME = 0.8, 0.9
DEFAULT, LARGEST = 0.1, 1.0
"""Shares whose figures are held against the goals: where behaviours are learned, and all played."""
Pair = tuple[float, float]
Reached = dict[CreditConfig, list[float]]
"""By setting, a figure for every kind of game."""


@dataclass(frozen=True, slots=True)
class Found:
    """One episode's credits, found and exact, how many intervals held, and the calls."""

    pairs: tuple[Pair, ...]
    covered: int
    calls: int
    extra: int


async def play(name: str, seed: int, config: CreditConfig) -> tuple[Tree[Moves], Credited]:
    """One episode of a game, searched and credited."""
    task = Play()
    rate = task_rater(task, Tools(sandbox=open_sandbox(Limits())))
    rollout = Rollout(task, TEAM, Chances(), rate, Beam(k=4, width=2))
    tree = await rollout.play(problem(name), seed)
    return tree, await give_credit(rollout, tree, config)


async def compare(kind: str, number: int, seed: int, config: CreditConfig) -> Found:
    """One game's credits beside the exact ones."""
    name = kind.format(derive(seed, number))
    tree, credited = await play(name, number, config)
    game, pairs, covered = named(name), list[Pair](), 0
    for record in credited.records:
        if record.agent in game.roles:
            leaf = tree.nodes[NodeId.of(record.leaf)].trajectory
            exact = game.credit(leaf.state.actions)[record.agent]
            pairs.append((record.credit, exact))
            covered += record.low - 1e-9 <= exact <= record.high + 1e-9
    return Found(tuple(pairs), covered, len(tree.answers), credited.calls)


async def names_the_faulty(kind: str, window: int, seed: int, config: CreditConfig) -> float:
    """Whether blame() puts the faulty agent first in one window, alone.

    Agents that tie for the first place share it.
    """
    agent = random.Random(derive(seed, "faulty", window)).randrange(4)
    records = []
    for place in range(WINDOW):
        tree, credited = await play(kind.format(agent), derive(seed, window, place), config)
        records.append(episode_record(tree, place, credited.records, credited.calls))
    blamed = blame(records)
    top = [role for role, value in blamed.items() if value > max(blamed.values()) - 1e-9]
    return float("abcd"[agent] in top) / len(top)


def correlation(pairs: Sequence[Pair]) -> float:
    """Pearson's; NaN where one side does not vary."""
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    xx = sum((x - mean_x) ** 2 for x, _ in pairs)
    yy = sum((y - mean_y) ** 2 for _, y in pairs)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return xy / sqrt(xx * yy) if xx * yy > 0 else nan


def ranked(episodes: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Mean ranks over all episodes in place of the numbers; Pearson's of these is Spearman's."""
    sides = [ranks([pair[side] for pairs in episodes for pair in pairs]) for side in (0, 1)]
    flat = iter(zip(*sides, strict=True))
    return [[next(flat) for _ in pairs] for pairs in episodes]


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the least; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found


def correlated(episodes: Sequence[Sequence[Pair]]) -> str:
    """Pearson's over all pairs, with a bootstrap over episodes, as text."""
    moments = [_moments(pairs) for pairs in episodes]

    def of(sample: Sequence[tuple[float, ...]]) -> float:
        n, x, y, xx, yy, xy = (sum(column) for column in zip(*sample, strict=True))
        spread = sqrt((n * xx - x * x) * (n * yy - y * y))
        return (n * xy - x * y) / spread if spread > 0 else nan

    return interval(moments, of)


def _moments(pairs: Sequence[Pair]) -> tuple[float, ...]:
    return (
        len(pairs),
        sum(x for x, _ in pairs),
        sum(y for _, y in pairs),
        sum(x * x for x, _ in pairs),
        sum(y * y for _, y in pairs),
        sum(x * y for x, y in pairs),
    )


def interval(
    rows: Sequence[tuple[float, ...]], of: Callable[[Sequence[tuple[float, ...]]], float]
) -> str:
    """A figure of the rows with its percentile bootstrap, as text."""
    rng = random.Random(0)
    drawn = sorted(of(rng.choices(rows, k=len(rows))) for _ in range(DRAWS))
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]
    return f"{of(rows):.2f} [{low:.2f}, {high:.2f}]"


def ratio(rows: Sequence[tuple[float, ...]]) -> float:
    """The sum of the first entries over that of the second."""
    return sum(row[0] for row in rows) / sum(row[1] for row in rows)


async def credit_table(episodes: int, seed: int) -> tuple[str, Reached]:
    """A row per setting and kind of game; the correlations, 0 above twice the calls."""
    rows = []
    reached: Reached = {config: [] for config in SETTINGS}
    for kind, words in KINDS.items():
        for config in SETTINGS:
            found = [await compare(kind, number, seed, config) for number in range(episodes)]
            pairs = [one.pairs for one in found]
            calls = ratio([(one.calls + one.extra, one.calls) for one in found])
            held = interval([(one.covered, len(one.pairs)) for one in found], ratio)
            figures = f"{calls:.2f}", correlated(pairs), correlated(ranked(pairs)), held
            rows.append([words, label(config), *figures])
            near = correlation([pair for one in pairs for pair in one])
            reached[config].append(near if calls <= 2.0 else 0.0)
    header = ["game", "credit", "calls / base", "Pearson", "Spearman", "intervals that hold"]
    return table(header, rows, figures=False), reached


async def blame_table(windows: int, seed: int) -> tuple[str, Reached]:
    """A row per setting and kind of game; the shares of windows named right."""
    rows = []
    reached: Reached = {config: [] for config in SETTINGS}
    for kind, words in FAULTY.items():
        for config in SETTINGS:
            named_it = [await names_the_faulty(kind, w, seed, config) for w in range(windows)]
            share = interval([(one, 1.0) for one in named_it], ratio)
            rows.append([words, label(config), share])
            reached[config].append(sum(named_it) / windows)
    return table(["game", "credit", "faulty agent named"], rows, figures=False), reached


def verdict(reached: Reached, goal: float) -> str:
    """Whether all kinds of game reach the goal, at the largest share and at the default."""
    said = []
    for share in (LARGEST, DEFAULT):
        found = reached[CreditConfig(method="replay", share=share)]
        met = "met" if min(found) >= goal else "missed"
        kind = ", the default" if share == DEFAULT else ""
        said.append(
            f"{met} at share {share:g}{kind} ({min(found):.2f} to {max(found):.2f} by kind of game)"
        )
    return "; ".join(said)


def label(config: CreditConfig) -> str:
    """A setting in words."""
    return config.method if config.share is None else f"replay, share {config.share:g}"


async def section(episodes: int, windows: int, seed: int) -> str:
    """The section's body."""
    began = time.perf_counter()
    credit, credit_reached = await credit_table(episodes, seed)
    named, blame_reached = await blame_table(windows, seed)
    goals = (
        f"Goal, a correlation of {GOAL_CORRELATION:g} at no more than twice the calls in all "
        f"kinds of game: {verdict(credit_reached, GOAL_CORRELATION)}. Goal, the faulty agent named "
        f"in {GOAL_BLAME:.0%} of windows: {verdict(blame_reached, GOAL_BLAME)}."
    )
    return "\n".join(
        [
            f"{episodes} random games of each kind, searched by the beam (k=4, W=2); the credits "
            "of the agents in the best and in the worst trajectory beside the exact ones, by "
            "enumeration. `replay` at share 0 mixes the joint actions at hand, which takes no "
            "call, and reads a pruned sibling's worth from its first score.",
            "",
            credit,
            "",
            f"One of four agents does its part right with chance 0.3, the others with 0.9; "
            f"{windows} windows of {WINDOW} episodes, the faulty agent drawn anew for each. "
            "Agents that tie for the blame share it.",
            "",
            named,
            "",
            f"{goals} {time.perf_counter() - began:.0f} s.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    body = asyncio.run(section(args.episodes, args.windows, args.seed))
    print(body)
    if args.write:
        page.write("credit", "python -m benchmarks.quality.credit --write", body)


if __name__ == "__main__":
    main()
