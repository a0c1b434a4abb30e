"""What a task offers to learners that play many of its games at once, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from orchestry.core.errors import ConfigError
from orchestry.core.files import is_player

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SELF = "self"
"""Who plays: earlier versions of the policy that learns."""


class Vectors(Protocol):
    """B games of N agents, all of whom act in every step. D numbers are an observation, H choices
    an action.

    The arrays are the games' own, and `step` writes into them. A game that is over begins anew in
    the same step: then `observations` has its first ones, and `final` its last.
    """

    choices: tuple[int, ...]
    """An action is H numbers: the h-th is from 0 to below choices[h]."""

    @property
    def observations(self) -> NDArray[np.float32]:
        """What each agent sees, (B, N, D)."""
        ...

    @property
    def final(self) -> NDArray[np.float32]:
        """(B, N, D): of games that were over in the last step, what each agent saw last."""
        ...

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Of the last step, (B, N)."""
        ...

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Games that ended by the rules in the last step, (B,)."""
        ...

    @property
    def cut(self) -> NDArray[np.bool_]:
        """Games that were cut off in the last step, and might have gone on, (B,)."""
        ...

    def step(self, actions: NDArray[np.int8]) -> None:
        """Plays a step of all games; `actions` is (B, N, H)."""
        ...

    def state(self) -> Mapping[str, NDArray[Any]]:
        """All that the games' future depends on, as copies."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from a `state`."""
        ...


class Script(Protocol):
    """Plays the same seats of many games by fixed rules."""

    def act(self, observations: NDArray[np.float32], begun: NDArray[np.bool_]) -> NDArray[np.int8]:
        """The actions (B, S, H) of S seats that see `observations` (B, S, D). `begun`, (B,): games
        of which this is the first step."""
        ...

    def state(self) -> Mapping[str, Any]:
        """All that its future depends on besides observations: numbers, lists and arrays."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`."""
        ...


class Player(NamedTuple):
    """Who plays where."""

    script: Script
    seats: tuple[int, ...]
    """Its seats, by their place in the task's agents."""
    games: NDArray[np.intp] | slice = slice(None)
    """Its games, by their place among all that are played at once."""


@runtime_checkable
class VectorTask(Protocol):
    """A task whose games can be played as arrays, by the rules of its text."""

    def vectors(self, games: int, seed: int) -> Vectors:
        """So many games, begun. Raises ConfigError for options that can't be played so."""
        ...

    def script(self, name: str, seats: tuple[int, ...], games: int, seed: int) -> Script:
        """A scripted player by name, in these seats. Raises ConfigError for an unknown name."""
        ...

    def seen(self, state: Any) -> NDArray[np.float32]:
        """What each agent sees in a state of the game by text, as in `vectors`: (N, D)."""
        ...

    def said(self, state: Any, action: NDArray[np.int8]) -> str:
        """The answer by which an agent does this in that state; `action` is (H,)."""
        ...


def play_seats(
    players: Iterable[Player],
    observations: NDArray[np.float32],
    begun: NDArray[np.bool_],
    actions: NDArray[np.int8],
) -> None:
    """Writes what each player does in its seats and games into `actions`, (B, N, H)."""
    for script, seats, games in players:
        seen = observations[games][:, [*seats]]
        done = script.act(seen, begun[games])
        for place, seat in enumerate(seats):
            actions[games, seat] = done[:, place]


def run_named(name: str) -> Path | None:
    """The run's folder, or the file of its checkpoint, that plays; None for a scripted player.
    Raises ConfigError for a path at which nothing lies."""
    if is_player(path := Path(name)):
        return path
    if len(path.parts) > 1:
        raise ConfigError(
            f"{name}: no run lies there: give the folder of a run of backend ppo, or a file in its "
            "folder `checkpoints` (where a run's opponent moved, a resume takes agents.ROLE.plays)"
        )
    return None
