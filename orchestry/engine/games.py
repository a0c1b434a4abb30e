"""Policies that backend ppo learned: out of their runs, and into games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.core.config import RunConfig, validate
from orchestry.core.digests import file_digest
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, StoreError
from orchestry.core.ppo import PpoConfig
from orchestry.store.journal import Event, Learned
from orchestry.store.run import Run, load_run
from orchestry.task.vector import Player, Script, Vectors, VectorTask, play_seats, run_named

if TYPE_CHECKING:
    from orchestry.backends.ppo.checkpoint import Policy

NEEDS = ("numba", "numpy", "torch")
"""Of backend ppo."""


def last_checkpoint(events: Sequence[Event]) -> Learned | None:
    """The journal's last checkpoint."""
    return next((e for e in reversed(events) if isinstance(e, Learned)), None)


def checkpoint_of(folder: Path, event: Learned) -> Path:
    """Its file; raises StoreError if it is gone or was changed."""
    path = folder / str(event.state["checkpoint"])
    if not path.is_file() or file_digest(path) != event.state["digest"]:
        raise StoreError(f"{path} is gone or was changed: restore it from a copy")
    return path


def load_player(path: Path) -> Run:
    """The run at a path. Of a checkpoint's file: its run, with the journal up to that checkpoint.
    Raises as `load_run`, and ConfigError where the journal doesn't know the file."""
    if not path.is_file():
        return load_run(path)
    run = load_run(path.parent.parent)
    name = f"{path.parent.name}/{path.name}"
    known = [isinstance(e, Learned) and e.state.get("checkpoint") == name for e in run.events]
    if not any(known):
        raise ConfigError(f"{path} is no checkpoint that {run.folder} wrote: choose another file")
    run.events = run.events[: len(known) - known[::-1].index(True)]
    return run


def policy_of(
    run: Run, games: Vectors, roles: Sequence[str], seed: int = 0, likeliest: bool = False
) -> Script:
    """The last policy of a run of backend ppo, for these roles of these games. `likeliest`: it
    takes the likeliest action each time, and draws none. Raises ConfigError for another run, and
    where it was learned in games of another shape."""
    return policy_from(*learned_state(run), games, roles, seed, likeliest)


def learned_state(run: Run) -> tuple[PpoConfig, dict[str, Any]]:
    """The settings of a run of backend ppo, and the learner's state in its last checkpoint. Raises
    ConfigError for another run, and for one without a checkpoint."""
    from orchestry.backends.ppo.checkpoint import read

    if not run.neural:
        raise ConfigError(f"{run.folder} is no run of backend ppo")
    last = last_checkpoint(run.events)
    if last is None:
        raise ConfigError(f"{run.folder} has no checkpoint yet: let it play on")
    state = read(checkpoint_of(run.folder, last))
    return validate({"ppo": run.config["ppo"]}).ppo, state


def check_needs(what: str) -> None:
    """Raises ConfigError where the extra `ppo` is not installed."""
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise ConfigError(f"{what} needs {', '.join(missing)}: {install('ppo')}")


def seat_policy(path: Path, task: VectorTask, role: str, seed: int) -> Script:
    """What a run of backend ppo, or its checkpoint, plays in one seat of a game by text. Raises as
    `policy_of`."""
    check_needs(f"agents.{role}.plays={path}")
    return policy_of(load_player(path), task.vectors(1, 0), [role], seed)


def policy_from(
    settings: PpoConfig,
    state: Mapping[str, Any],
    games: Vectors,
    roles: Sequence[str],
    seed: int,
    likeliest: bool = False,
) -> Policy:
    """The policy of a learner's state; see `policy_of`."""
    from orchestry.backends.ppo.checkpoint import Policy

    _, agents, observed = games.observations.shape
    if state.get("agents", agents) != agents:
        raise ConfigError(
            f"the policy was learned in games of {state['agents']} agents, and these have "
            f"{agents}: it plays where teams are of the same size"
        )
    return Policy.of(settings, state, observed, games.choices, roles, seed, likeliest)


def play_games(games: Vectors, players: Sequence[Player]) -> list[list[float]]:
    """Each agent's return in the first game that each of the B places plays: (B, N)."""
    import numpy as np

    count, agents, _ = games.observations.shape
    returns_BN = np.zeros((count, agents))
    on_B, begun_B = np.ones(count, np.bool_), np.ones(count, np.bool_)
    actions = np.zeros((count, agents, len(games.choices)), np.int8)
    while on_B.any():
        play_seats(players, games.observations, begun_B, actions)
        games.step(actions)
        returns_BN[on_B] += games.rewards[on_B]
        begun_B = games.ended | games.cut
        on_B &= ~begun_B
    found: list[list[float]] = returns_BN.tolist()
    return found


def players_digests(config: RunConfig) -> Mapping[str, str]:
    """Of the policies of other runs that play, by role and place among its players: their runs may
    have moved, or learned more since."""
    found = {}
    for role, agent in config.agents.items():
        for place, name in enumerate(agent.plays):
            path = run_named(name)
            if path and (last := last_checkpoint(load_player(path).events)):
                found[f"agents.{role}.plays.{place}"] = str(last.state["digest"])
    return found
