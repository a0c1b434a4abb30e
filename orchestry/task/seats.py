"""Seats of a game by text that are played by numbers: scripted players and learned policies.

The task is wrapped, so that every backend, search and credit plays it as it plays any task: the
agents that are asked are those whose seats are left.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.seeds import derive
from orchestry.core.types import Problem, Score
from orchestry.task.arrangements import Gathered, Wrapped
from orchestry.task.base import BaseTask
from orchestry.task.vector import SELF, Script, VectorTask, run_named

Opener = Callable[[Path, VectorTask, str, int], Script]
"""Opens the policy of a run's folder, for an agent of a task, with a seed."""


@dataclass(frozen=True, slots=True)
class Seating(Gathered):
    """The task's own state, and who plays which seat, with what they remember."""

    players: tuple[tuple[str, str, bytes], ...] = ()
    """Role, name, and the script's state, pickled: a state can be hashed."""
    begun: bool = False
    """Whether they have acted before."""


class Seated(Wrapped):
    """The task, some of whose agents are played by scripts: they act with those who are asked."""

    def __init__(
        self, task: BaseTask[Any], plays: Mapping[str, tuple[str, ...]], policy: Opener
    ) -> None:
        super().__init__(task)
        roles = [spec.role for spec in task.agents]
        agents = tuple(spec for spec in task.agents if spec.role not in plays)
        vars(self).update(agents=agents, roles=roles, plays=plays, policy=policy)
        scripts = {
            (role, name): self._script(role, name, 0) for role in plays for name in plays[role]
        }
        vars(self).update(scripts=scripts)

    roles: list[str]
    plays: Mapping[str, tuple[str, ...]]
    policy: Opener
    scripts: Mapping[tuple[str, str], Script]

    def reset(self, problem: Problem, seed: int) -> Seating:
        players = list[tuple[str, str, bytes]]()
        for role, names in self.plays.items():
            own = derive(seed, problem.id, role)
            name = names[own % len(names)]
            players.append((role, name, _frozen(self._script(role, name, own))))
        first = Seating(problem, self.task.reset(problem, seed), players=tuple(players))
        return self._until_asked(first)

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return tuple(role for role in self.task.to_act(state.inner) if role not in self.plays)

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Seating:
        assert isinstance(state, Seating)
        return self._until_asked(self._played(state, actions))

    def told(self, state: Gathered, score: Score) -> Gathered:
        """See BaseTask."""
        return replace(state, inner=self.task.told(state.inner, score))

    def _until_asked(self, state: Seating) -> Seating:
        """Plays stages in which only scripts act."""
        while self.task.to_act(state.inner) and not self.to_act(state):
            state = self._played(state, {})
        return state

    def _played(self, state: Seating, actions: Mapping[str, str]) -> Seating:
        """The state after these answers and those of the scripts."""
        import numpy as np

        seen, players, said = self._game.seen(state.inner), [], dict[str, str]()
        acting = self.task.to_act(state.inner)
        for role, name, memory in state.players:
            script, seat = self.scripts[role, name], self.roles.index(role)
            if role in acting:
                script.restore(pickle.loads(memory))
                action = script.act(seen[None, [seat]], np.array([not state.begun]))[0, 0]
                said[role] = self._game.said(state.inner, action)
                memory = _frozen(script)
            players.append((role, name, memory))
        inner = self.task.step(state.inner, {**said, **actions})
        return replace(state, inner=inner, players=tuple(players), begun=True)

    def _script(self, role: str, name: str, seed: int) -> Script:
        if folder := run_named(name):
            return self.policy(folder, self._game, role, seed)
        return self._game.script(name, (self.roles.index(role),), 1, seed)

    @property
    def _game(self) -> VectorTask:
        game: object = self.task
        assert isinstance(game, VectorTask)
        return game


def _frozen(script: Script) -> bytes:
    return pickle.dumps(dict(script.state()))


def seated(config: RunConfig, task: BaseTask[Any], policy: Opener) -> BaseTask[Any]:
    """The task with the seats taken that the config gives to scripts; the task itself if it gives
    none. Raises ConfigError for a task without games as arrays, for unknown players, and where
    nobody is left to ask."""
    plays = {role: own.plays for role, own in config.agents.items() if own.plays}
    if not plays:
        return task
    if not isinstance(task, VectorTask):
        raise ConfigError(
            f"agents.{next(iter(plays))}.plays: task {config.task} has no games that can be played "
            "as arrays: leave it out"
        )
    if any(SELF in names for names in plays.values()):
        raise ConfigError(
            "agents.ROLE.plays=self is earlier versions of the policy that learns in backend ppo: "
            "name a scripted player, or the folder of a run of backend ppo"
        )
    if all(spec.role in plays for spec in task.agents):
        raise ConfigError("agents.ROLE.plays is set for all agents: at least one must be asked")
    return Seated(task, plays, policy)
