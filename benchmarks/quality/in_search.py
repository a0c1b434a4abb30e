"""What it brings and costs that the search tries what races: `behaviors.in_search`, on and off.

The whole learner plays the planted worlds of the acceptance benchmark. Beside the pairs on dev it
gets what a default search would play: in each episode the last move has two states of four samples,
and with the setting on, half of them are drawn with the behaviour that the learner chose. A
sample earns what the planted world gives; an episode's is that of its best sample.

    python -m benchmarks.quality.in_search [--runs N] [--workers N] [--write]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import Any

from benchmarks import page
from benchmarks.quality import acceptance_learner
from benchmarks.quality.acceptance import Job, script_of
from benchmarks.quality.acceptance_learner import BLAMED, TEAM, Arena
from benchmarks.quality.acceptance_report import FOUND
from benchmarks.quality.planted_prompts import NOISES, PROBLEMS
from orchestry.backends.api.learner import Learner
from orchestry.backends.library import Library
from orchestry.core.config import BehaviorsConfig, SearchConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Part, Score, Trial, Turn
from orchestry.store.records import EpisodeRecord, GroupRecord, NodeRecord

COMMAND = "python -m benchmarks.quality.in_search"
STATES = SearchConfig().beam_width
SAMPLES = SearchConfig().k_samples
ROWS: Sequence[tuple[str, float, int]] = (
    *(("found", gain, noise) for gain, noise, _ in FOUND),
    ("equal", 0.0, 0),
    ("worse", 0.0, 0),
)
Case = tuple[Job, bool]


@dataclass
class Search:
    """The last moves of a run's episodes; keeps their rewards."""

    tries: bool
    seed: int
    rewards: list[float] = field(default_factory=list)

    def episodes(self, learner: Learner, arena: Arena, update: int) -> list[EpisodeRecord]:
        """Those since that update."""
        every = BehaviorsConfig().every
        return [self._episode(learner, arena, update, update * every + n) for n in range(every)]

    def _episode(self, learner: Learner, arena: Arena, update: int, episode: int) -> EpisodeRecord:
        rng = random.Random(derive(self.seed, "search", episode))
        usual, place = learner.states[update].library, rng.randrange(PROBLEMS)
        (tried,) = (learner.tried(update, episode) if self.tries else []) or (None,)
        other = usual.accept(tried, BehaviorsConfig().max_per_agent) if tried else usual
        nodes, groups = [_node("0", 0.0)], list[GroupRecord]()
        for state in range(STATES):
            drawn = tuple(bool(tried) and sample % 2 == 1 for sample in range(SAMPLES))
            values = [self._value(arena, other if one else usual, place, rng) for one in drawn]
            ids = tuple(f"0.{state}.{sample}" for sample in range(SAMPLES))
            nodes += [_node(f"0.{state}", 0.0), *map(_node, ids, values)]
            groups.append(_group(state, ids, values, tried.id if tried else "", drawn))
        self.rewards.append(max(node.score.total for node in nodes if node.id.count(".") == 2))
        return _record(episode, nodes, groups)

    def _value(self, arena: Arena, library: Library, place: int, rng: random.Random) -> float:
        return arena.reward(library, place, random.Random(rng.random()))


def play(case: Case) -> dict[str, Any]:
    """One run: whether the gain was found, what was accepted falsely, and the search's rewards."""
    job, tries = case
    search = Search(tries, derive("in search", *job))
    _, _, noise, number = job
    run = acceptance_learner.play(script_of(job), noise, number, search.episodes)
    return {"run": run, "reward": fmean(search.rewards)}


def measure(runs: int, workers: int) -> list[dict[str, Any]]:
    """A row per kind of run, with both settings on the same seeds."""
    rows = list[dict[str, Any]]()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for kind, gain, noise in ROWS:
            jobs = [(kind, gain, noise, number) for number in range(runs)]
            both = [list(pool.map(play, [(j, tries) for j in jobs])) for tries in (False, True)]
            rows.append({"kind": kind, "gain": gain, "noise": noise, "off": both[0], "on": both[1]})
    return rows


def section(rows: Sequence[dict[str, Any]]) -> str:
    """The text of the page."""
    head = (
        "| runs | sd of a pair | found: off | on | false acceptance: off | on | reward of the "
        "search: off | on, difference |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    runs = len(rows[0]["on"])
    return (
        f"{runs} runs per row and setting, on the same seeds. In each of 20 episodes the last move "
        f"has {STATES} states of {SAMPLES} samples. Rewards are in points; differences have their "
        "95 % interval over runs.\n\n" + "\n".join([head, *map(_line, rows)])
    )


def _line(row: dict[str, Any]) -> str:
    off, on = ([one["run"] for one in row[name]] for name in ("off", "on"))
    kind = f"+{100 * row['gain']:.0f} points planted" if row["gain"] else f"null: {row['kind']}"
    found = [f"{fmean(r.found for r in some):.1%}" if row["gain"] else "" for some in (off, on)]
    false = [f"{fmean(r.false > 0 for r in some):.1%}" for some in (off, on)]
    pairs = zip(row["on"], row["off"], strict=True)
    differences = [100 * (a["reward"] - b["reward"]) for a, b in pairs]
    half = 1.96 * stdev(differences) / len(differences) ** 0.5
    reward = 100 * fmean(one["reward"] for one in row["off"])
    cells = [kind, f"{NOISES[row['noise']].sd:.2f}", *found, *false, f"{reward:.1f}"]
    return f"| {' | '.join(cells)} | {fmean(differences):+.2f} +- {half:.2f} |"


def _group(
    state: int, ids: tuple[str, ...], values: Sequence[float], tried: str, drawn: tuple[bool, ...]
) -> GroupRecord:
    role = TEAM[BLAMED].role
    return GroupRecord(
        parent=f"0.{state}",
        agents=(role,),
        children=ids,
        source="leaf",
        values=tuple(values),
        advantages=(0.0,) * len(ids),
        trials=(Trial(agent=role, behavior=tried, drawn=drawn),) if tried else (),
    )


def _node(id: str, value: float) -> NodeRecord:
    """One state; no contrast can be made of it, since nobody said anything."""
    turn = Turn(
        agent=TEAM[BLAMED].role, messages=(), completion=Completion(text="", model="planted")
    )
    return NodeRecord(
        id=id,
        parent=id.rpartition(".")[0] or None,
        turns=(turn,) if id.count(".") == 2 else (),
        value=0.5,
        source="task",
        survived=True,
        score=Score(parts=(Part(name="quality", value=value),)),
    )


def _record(
    episode: int, nodes: Sequence[NodeRecord], groups: Sequence[GroupRecord]
) -> EpisodeRecord:
    return EpisodeRecord(
        episode=episode + 1,
        problem=f"searched {episode}",
        split="train",
        seed=0,
        best=nodes[-1].id,
        reward=0.5,
        mean_leaf_reward=0.5,
        calls=0,
        usd=0.0,
        input_tokens=0,
        output_tokens=0,
        nodes=tuple(nodes),
        groups=tuple(groups),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="runs of each row and setting")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    text = section(measure(args.runs, args.workers))
    print(text)
    if args.write:
        page.write("in_search", COMMAND, text)


if __name__ == "__main__":
    main()
