"""A learner on disk, and policies that were learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestry.backends.ppo.policy import Team
from orchestry.core.errors import ConfigError, StoreError, reason
from orchestry.core.files import refused, write_atomic
from orchestry.core.ppo import PpoConfig
from orchestry.core.seeds import derive

_PARTS = {"steps", "team", "adam", "scale", "random", "games", "roles"}
"""Of each learner's state."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a learner's state: a reader sees all of it or nothing."""
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, packed(state))
    except OSError as error:
        raise refused(path, error) from None


def packed(state: Mapping[str, Any]) -> bytes:
    """A state as bytes. Pickle alone does not bring all tensors back."""
    content = BytesIO()
    torch.save(dict(state), content)
    return content.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """The state that was packed."""
    found: dict[str, Any] = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    return found


def read(path: Path) -> dict[str, Any]:
    """A learner's state. Only tensors and numbers are read: no code. Raises StoreError for a
    missing or damaged file."""
    try:
        # `restore` copies the parts to where they belong.
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises anything, by the bytes it meets
        why = reason(error) if isinstance(error, OSError) else "it is no learner's, or cut off"
        raise StoreError(f"{path} can't be read ({why}): restore it from a copy") from None
    if not isinstance(found, dict) or not found.keys() >= _PARTS:
        raise StoreError(f"{path} can't be read (it is no learner's): restore it from a copy")
    return found


class Policy:
    """A team's learned policies, to be played: a `Script`."""

    def __init__(self, team: Team, places: tuple[int, ...], seed: int, likeliest: bool) -> None:
        """`places`: which of the team's policies plays each seat, where seats don't share one."""
        self._team, self._places = team, places
        self._random = None if likeliest else torch.Generator().manual_seed(derive(seed, "policy"))

    @classmethod
    def of(
        cls,
        settings: PpoConfig,
        state: Mapping[str, Any],
        observed: int,
        choices: tuple[int, ...],
        roles: Sequence[str],
        seed: int = 0,
        likeliest: bool = False,
    ) -> Policy:
        """From a checkpoint's state, to play these roles in games whose observations have
        `observed` numbers. Raises ConfigError where it was learned in games of another shape, or
        by agents of other roles."""
        weights = state["team"]["weights"]
        shared = settings.policies == "shared"
        learned = len(state["roles"])
        team = Team(
            learned,
            observed,
            choices,
            settings.hidden,
            shared=shared,
            central=settings.critic == "central",
            normalise=settings.normalise,
        )
        here = (state.get("observed", observed), tuple(state.get("choices", choices)))
        if here != (observed, choices) or team.flat_PW.shape != weights.shape:
            raise ConfigError(
                f"the policy was learned from {state['observed']} numbers per observation and "
                f"choices of {tuple(state['choices'])}, and these games have {observed} and "
                f"{choices}: it plays where rings and teams are of the same size"
            )
        team.restore(state["team"])
        if not team.finite:
            raise ConfigError("the policy's weights are no finite numbers: choose another run")
        missing = [role for role in roles if role not in state["roles"]]
        if missing and not shared:
            raise ConfigError(
                f"no policy of {', '.join(missing)} was learned, only of "
                f"{', '.join(state['roles'])}: let it play their seats"
            )
        places = () if shared else tuple(state["roles"].index(role) for role in roles)
        return cls(team, places, seed, likeliest)

    def begun(self, team: Team, critics: bool) -> dict[str, Any]:
        """The state of `team` if it begins as these policies; `critics`: with theirs. Raises
        ConfigError for networks of another kind, and for several policies in place of one."""
        own, actor = self._team, team.actor.size
        if (own.actor, own.normalise) != (team.actor, team.normalise):
            raise ConfigError(
                f"ppo.from learned with ppo.hidden={[*own.actor.widths[1:-1]]} and "
                f"ppo.normalise={str(own.normalise).lower()}: set the same here"
            )
        rows = own.flat_PW[[*self._places] or [0]]
        if len(rows) > team.policies:
            raise ConfigError(
                f"ppo.from learned a policy per agent, and here {len(rows)} agents share one: set "
                "ppo.policies=own"
            )
        weights = team.flat_PW.cpu().clone()
        weights[:, :actor] = rows[:, :actor]
        if critics:
            weights[:, actor:] = rows[:, actor:]
        return {"weights": weights, "seen": own.seen.state()}

    def judges_like(self, team: Team) -> bool:
        """Whether the critics see the same as a team's."""
        return (self._team.critic, self._team.central) == (team.critic, team.central)

    def act(self, observations: NDArray[np.float32], begun: NDArray[np.bool_]) -> NDArray[np.int8]:
        """See `Script`: (B, S, D) to (B, S, H). A policy remembers nothing. Raises ConfigError for
        observations of another shape."""
        observations = self._checked(observations)
        if self._team.policies == 1:
            return act_alone(self._team, observations, self._random)
        games, _, observed = observations.shape
        whole = np.zeros((games, self._team.seats, observed), np.float32)
        whole[:, [*self._places]] = observations
        with torch.no_grad():
            seen = self._team.normalised(torch.from_numpy(whole))
            actions = self._team.act(seen, self._random)[0]
        return actions[:, [*self._places]].to(torch.int8).numpy()

    def _checked(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        found = np.ascontiguousarray(observations, np.float32)
        seats, numbers = len(self._places), self._team.actor.widths[0]  # 0: any number of seats
        if found.ndim != 3 or found.shape[2] != numbers or seats not in (0, found.shape[1]):
            raise ConfigError(
                f"found observations of shape {found.shape}, expected (games, {seats or 'seats'}, "
                f"{numbers}): give those of games like the ones that the policy learned in"
            )
        return found

    def state(self) -> Mapping[str, Any]:
        """See `Script`."""
        return {} if self._random is None else {"random": self._random.get_state().tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Script`."""
        if self._random is not None:
            self._random.set_state(torch.tensor(state["random"], dtype=torch.uint8))


def act_alone(
    team: Team, observations: NDArray[np.float32], generator: torch.Generator | None
) -> NDArray[np.int8]:
    """The actions (B, S, H) of any S seats by one shared policy, whoever learned it."""
    with torch.no_grad():
        rows = torch.from_numpy(observations.reshape(-1, 1, observations.shape[-1]))
        actions = team.act(team.normalised(rows), generator)[0]
    return actions.view(*observations.shape[:2], len(team.choices)).to(torch.int8).numpy()
