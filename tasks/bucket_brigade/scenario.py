"""What a game of Bucket Brigade is played by: chances, rewards, ring, modes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from orchestry import Frozen, errors

SCENARIOS = Path(__file__).with_name("scenarios.json")
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Scenario(Frozen):
    """A scenario. Names and numbers are those of rjwalters/bucket-brigade, definitions/
    scenarios.json; probabilities are per night, rewards per night and agent."""

    about: str = ""
    num_agents: int = Field(4, ge=1, le=10)
    num_houses: int = Field(10, ge=2, le=64)
    prob_house_catches_fire: float = Field(0.02, ge=0, le=1)
    """Of a safe house, by itself."""
    prob_solo_agent_extinguishes_fire: float = Field(0.5, ge=0, le=1)
    """Of each worker at a burning house, independently."""
    prob_fire_spreads_to_neighbor: float = Field(0.25, ge=0, le=1)
    """To each neighbour that is safe. Where fires burn out (`bernoulli`) none is left to spread."""
    team_reward_house_survives: Amount = 100.0
    """Times the share of houses that are safe; everybody gets it."""
    team_penalty_house_burns: Amount = 100.0
    """Times the share of houses that are ruined; everybody pays it."""
    reward_own_house_survives: Amount = 0.0
    """Once, when a fire at an own house is put out."""
    reward_other_house_survives: Amount = 0.0
    penalty_own_house_burns: Amount = 0.0
    """Every night for each own house that is ruined."""
    penalty_other_house_burns: Amount = 0.0
    cost_to_work_one_night: Amount = 0.5
    reward_rest: Amount = 0.5
    distance_cost_alpha: Amount = 0.0
    """More cost of work per house between home and the place of work."""
    agent_home_positions: tuple[int, ...] = ()
    """Empty: agent i lives at house i, around the ring."""
    min_nights: int = Field(12, ge=0)
    """The game ends on the first night after so many on which nothing burns."""
    extinguish_mode: Literal["bernoulli", "continuous"] = "bernoulli"
    """`bernoulli`: a fire is put out with a chance, else the house is ruined on the same night.
    `continuous`: work adds up until it is out; until then it burns and spreads."""
    suppression_per_worker: Amount = 0.0
    """Of a fire, by one worker on one night; for `continuous`."""
    action_validity_mode: Literal["always_valid", "adjacent_only"] = "always_valid"
    """`adjacent_only`: who goes further than one house from home stays at home."""
    commitment_mode: Literal["simultaneous", "two_phase"] = "simultaneous"
    """`two_phase`: all announce something each night before they act; it binds nobody."""

    @model_validator(mode="after")
    def _playable(self) -> Self:
        homes = self.agent_home_positions
        if homes and len(homes) != self.num_agents:
            raise ValueError(
                f"agent_home_positions has {len(homes)} homes for {self.num_agents} agents: give "
                "each agent one"
            )
        if wrong := [home for home in homes if not 0 <= home < self.num_houses]:
            raise ValueError(
                f"agent_home_positions has house {wrong[0]}: give houses from 0 to "
                f"{self.num_houses - 1}"
            )
        if self.extinguish_mode == "continuous" and not self.suppression_per_worker:
            raise ValueError(
                "suppression_per_worker is 0, so with extinguish_mode=continuous no fire can be "
                "put out: give more, such as 0.5"
            )
        low, high = self.bounds
        if low >= high:
            raise ValueError(
                "all rewards, penalties and costs are 0, so nothing can be learned: give one, such "
                "as team_reward_house_survives=100"
            )
        return self

    @property
    def homes(self) -> tuple[int, ...]:
        """The house each agent lives at."""
        return self.agent_home_positions or tuple(
            agent % self.num_houses for agent in range(self.num_agents)
        )

    def owned(self, agent: int) -> tuple[int, ...]:
        """The houses of an agent: every `num_agents`-th."""
        return tuple(range(agent, self.num_houses, self.num_agents))

    def distance(self, agent: int, house: int) -> int:
        """Houses from the agent's home, the shorter way round."""
        apart = abs(self.homes[agent] - house)
        return min(apart, self.num_houses - apart)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that a team's mean reward per night can be.

        The least: all houses are ruined, and all work as far from home as they can. The most: all
        are safe, and all rest; or, where that pays more, as many fires as possible are put out. A
        house burns for an evening before it is saved, so at most half of them are per night, and
        each takes a worker. The first evening is not paid: fires there may bring a little more.
        """
        agents, houses = self.num_agents, self.num_houses
        far = 1 if self.action_validity_mode == "adjacent_only" else houses // 2
        work = self.cost_to_work_one_night
        ruined = self._mean(self.penalty_own_house_burns, self.penalty_other_house_burns)
        worst = -self.team_penalty_house_burns - work - self.distance_cost_alpha * far
        gain = self._mean(self.reward_own_house_survives, self.reward_other_house_survives)
        gain -= self.team_reward_house_survives / houses + (self.reward_rest + work) / agents
        best = self.team_reward_house_survives + self.reward_rest
        return worst - ruined * houses, best + min(agents, houses / 2) * max(0.0, gain)

    def _mean(self, own: float, other: float) -> float:
        """Over agents, of what a house brings to its owner and to each other agent."""
        return (own + other * (self.num_agents - 1)) / self.num_agents


def scenario(name: str, changes: Mapping[str, Any]) -> Scenario:
    """The scenario of that name, or of a .json file, with changes.

    Raises ConfigError for an unknown name or field, and for numbers that don't fit.
    """
    known = _shipped()
    path = Path(name)
    if path.suffix == ".json":
        plain = _read(path)
    elif name in known:
        plain = known[name]
    else:
        raise errors.ConfigError(errors.unknown("scenario", name, [*known]))
    for field in (*plain, *changes):
        if field not in Scenario.model_fields:
            raise errors.ConfigError(
                errors.unknown(f"rule of options.scenario={name}", field, [*Scenario.model_fields])
            )
    try:
        return Scenario(**{**plain, **changes})
    except ValidationError as error:
        raise errors.ConfigError(f"options.scenario={name}: {errors.reason(error)}") from None


def _read(path: Path) -> dict[str, Any]:
    """The scenario in a file."""
    fix = "give a .json file with an object of a scenario's fields, or a scenario that ships"
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or errors.reason(error)
        raise errors.ConfigError(f"options.scenario={path} can't be read ({why}): {fix}") from None
    if not isinstance(plain, dict):
        raise errors.ConfigError(f"options.scenario={path} holds {plain!r:.40}: {fix}")
    return plain


def names() -> tuple[str, ...]:
    """All that ship."""
    return tuple(_shipped())


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(SCENARIOS.read_bytes())
    return found
