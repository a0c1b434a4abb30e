"""A task whose games are played as arrays, and who plays in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.backends.local.model import device_of
from orchestry.core.config import AgentConfig, RunConfig
from orchestry.core.errors import ConfigError, unknown
from orchestry.core.ppo import PpoConfig
from orchestry.core.seeds import derive
from orchestry.engine.games import check_needs, learned_state, load_player, policy_from
from orchestry.store.trackers import check_trackers
from orchestry.task.base import BaseTask
from orchestry.task.registry import load_task
from orchestry.task.vector import SELF, Player, Script, Vectors, VectorTask, run_named

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Itself = Callable[[tuple[int, ...], int, int], Script]
"""Makes what plays as `self`: in these seats of so many games, with this seed."""


@dataclass(frozen=True, slots=True)
class Arena:
    """A task whose games are played as arrays, and who learns in them."""

    task: BaseTask[Any]
    config: RunConfig
    learning: tuple[int, ...]
    """Seats, by their place in the task's agents."""
    learned: dict[str, tuple[PpoConfig, dict[str, Any]]] = field(default_factory=dict)
    """Runs that play, as they were when they were first asked for: they may go on learning, and
    delete their checkpoints."""

    @property
    def roles(self) -> list[str]:
        """The task's agents in order."""
        return [spec.role for spec in self.task.agents]

    @property
    def learners(self) -> list[str]:
        """The agents that learn."""
        return [self.roles[seat] for seat in self.learning]

    def games(self, count: int, *path: object) -> Vectors:
        """So many games; `path` tells their seed from others'."""
        return _vectors(self.task).vectors(count, derive(self.config.seed, *path))

    def others(
        self, count: int, itself: Itself, *path: object, first: int = 0
    ) -> tuple[Player, ...]:
        """Who plays the seats that don't learn, in so many games. `first`: games before these, in
        other processes; all together have every combination of players."""
        import numpy as np

        by_names: dict[tuple[str, ...], list[int]] = {}
        for seat, role in enumerate(self.roles):
            if seat not in self.learning:
                by_names.setdefault(self.config.agents[role].plays, []).append(seat)
        found = list[Player]()
        for names, seats in by_names.items():
            for own, games, name in _shared_out(names, seats, np.arange(first, first + count)):
                # its last name: where its run lies may change
                seed = derive(self.config.seed, *path, Path(name).name, *own)
                script = (
                    itself(own, len(games), seed)
                    if name == SELF
                    else self.player(name, own, len(games), seed)
                )
                found.append(Player(script, own, games - first))
        return tuple(found)

    def player(self, name: str, seats: tuple[int, ...], games: int, seed: int) -> Script:
        """A scripted player, or the policy of a run or of its checkpoint, in these seats of so many
        games."""
        if name not in self.learned and (place := run_named(name)):
            self.learned[name] = learned_state(load_player(place))
        if name not in self.learned:
            return _vectors(self.task).script(name, seats, games, seed)
        roles = [self.roles[seat] for seat in seats]
        return policy_from(*self.learned[name], self.games(1, "shape"), roles, seed)


def _shared_out(
    names: tuple[str, ...], seats: list[int], games: NDArray[np.intp]
) -> Iterator[tuple[tuple[int, ...], NDArray[np.intp], str]]:
    """Which seats of which games each name plays. Of several names, each seat has one per game, and
    all combinations come up."""
    if len(names) == 1:
        yield tuple(seats), games, names[0]
        return
    for rank, seat in enumerate(seats):
        turn = games // len(names) ** rank % len(names)
        for number, name in enumerate(names):
            if len(own := games[turn == number]):
                yield (seat,), own, name


def _vectors(task: object) -> VectorTask:
    assert isinstance(task, VectorTask)
    return task


def arena(config: RunConfig, note: Callable[[str], None], alone: bool = False) -> Arena:
    """Makes all checks that cost nothing; raises ConfigError or TaskError. `alone`: the other
    players are not looked at."""
    check_needs("backend ppo")
    check_trackers(config.trackers)
    task = load_task(config.task, config.task_path, config.weights, config.options, warn=note)
    if not isinstance(task, VectorTask):
        raise ConfigError(
            f"backend ppo needs a task whose games can be played as arrays: {config.task} lacks "
            "`vectors`, `script`, `seen` or `said`: choose bucket_brigade, or another backend"
        )
    roles = [spec.role for spec in task.agents]
    for role in config.agents:
        if role not in roles:
            raise ConfigError(unknown(f"agent of task {config.task}", role, roles))
    given = [bool(config.agents.get(role, AgentConfig()).plays) for role in roles]
    learning = tuple(seat for seat, plays in enumerate(given) if not plays)
    if not learning:
        raise ConfigError("agents.ROLE.plays is set for all agents: at least one must learn")
    if config.ppo.policies == "own" and any(SELF in one.plays for one in config.agents.values()):
        raise ConfigError(
            "agents.ROLE.plays=self needs one policy for all seats: leave out ppo.policies=own"
        )
    device_of(config.ppo.device)
    found = Arena(task, config, learning)
    if odd := [n for n in found.games(1, "check").choices if not 1 <= n <= 128]:
        raise ConfigError(
            f"task {config.task} has a choice of {odd[0]} values, and actions are bytes from 0 to "
            "127: divide it into several choices"
        )
    for role in () if alone else config.agents:  # told before anything is written
        for name in config.agents[role].plays:
            if name != SELF:
                try:
                    found.player(name, (roles.index(role),), 1, 0)
                except ConfigError as error:
                    raise ConfigError(f"agents.{role}.plays={name}: {error}") from None
    return found
