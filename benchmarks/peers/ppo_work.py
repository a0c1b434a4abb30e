"""What both contestants of the PPO benchmark do: the same settings, games and measures."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from orchestry.core.seeds import derive
from orchestry.engine.games import play_games
from orchestry.task.registry import load_task
from orchestry.task.vector import Player, Script, Vectors

AGENTS, GAMES = 4, 1000
"""Of an evaluation."""


@dataclass(frozen=True, slots=True)
class Work:
    """Settings under the names that `ppo.*` has; one policy plays all agents, and learns from the
    team's mean reward."""

    scenario: str
    steps: int
    games: int
    horizon: int
    passes: int
    minibatch: int
    learning_rate: float
    seed: int
    entropy: float = 0.01
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    norm: float = 0.5

    def vectors(self, games: int, what: str) -> Vectors:
        """Games of the scenario, with seeds of their own."""
        task: Any = load_task("bucket_brigade", options={"scenario": self.scenario})
        found: Vectors = task.vectors(games, derive(self.seed, what))
        return found


def compete(learn: Callable[[Work], tuple[Callable[[], int], Callable[[], Script]]]) -> None:
    """Prepares, then learns while the clock runs, and plays the same games before and after; prints
    one line of JSON. `learn` returns what takes the steps and says how many, and what gives the
    policy of that moment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    work = Work(**json.loads(parser.parse_args().work))
    steps, policy = learn(work)
    untrained = _returns(work, policy())
    wall, began = time.perf_counter(), time.process_time()
    taken = steps()
    spent, wall = time.process_time() - began, time.perf_counter() - wall
    figures = {"steps": taken, "cpu_s": spent, "wall_s": wall}
    print(json.dumps({**figures, "untrained": untrained, "returns": _returns(work, policy())}))


def _returns(work: Work, policy: Script) -> list[float]:
    """A team's, game by game."""
    games = work.vectors(GAMES, "measured")
    played = play_games(games, (Player(policy, tuple(range(AGENTS))),))
    return [statistics.fmean(one) for one in played]


def plain(work: Work) -> str:
    """As the contestants take it."""
    return json.dumps(asdict(work))
