"""A game as numbers, for neural policies: what an agent sees, as upstream's flat observations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .game import Ring
from .scenario import Scenario

FACTS = 12
"""Numbers of the scenario in an observation."""


def facts(scenario: Scenario) -> NDArray[np.float32]:
    """The scenario's numbers in upstream's order, (FACTS,)."""
    s = scenario
    chances = (
        s.prob_fire_spreads_to_neighbor,
        s.prob_solo_agent_extinguishes_fire,
        s.prob_house_catches_fire,
    )
    team = (s.team_reward_house_survives, s.team_penalty_house_burns)
    saved = (s.reward_own_house_survives, s.reward_other_house_survives)
    ruined = (s.penalty_own_house_burns, s.penalty_other_house_burns)
    sizes = (s.cost_to_work_one_night, s.min_nights, s.num_agents)
    return np.array([*chances, *team, *saved, *ruined, *sizes], dtype=np.float32)


def two_phases(scenario: Scenario) -> bool:
    """Whether all announce something before they act: two steps a night."""
    return scenario.commitment_mode == "two_phase"


def width(scenario: Scenario) -> int:
    """Numbers of an observation: houses, signals, places, last actions, the scenario, which agent
    it is; before that, where there are two phases, announcements and whether the first is on."""
    announced = (scenario.num_agents + 1) * two_phases(scenario)
    return scenario.num_houses + 5 * scenario.num_agents + announced + FACTS


def phase(scenario: Scenario) -> int:
    """Where an observation says 1 in the first of two phases, and 0 in the second. The kernel
    leaves it to its callers."""
    return -scenario.num_agents - 1


def observation(
    scenario: Scenario, ring: Ring, agent: int, announcing: bool
) -> NDArray[np.float32]:
    """What an agent sees, (D,): all see the same but for who they are."""
    changing = [
        *ring.houses,
        *(act.signal for act in ring.last),
        *(act.house for act in ring.last),
        *(number for act in ring.last for number in (act.house, act.mode)),
    ]
    promised = (*ring.promised, announcing) if two_phases(scenario) else ()
    own = np.eye(scenario.num_agents)[agent]
    return np.concatenate([changing, facts(scenario), promised, own]).astype(np.float32)
