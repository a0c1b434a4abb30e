"""The game in words: what agents are told, and how their answers are read."""

from __future__ import annotations

import re
from itertools import groupby

from orchestry import AgentSpec

from .game import BURNING, REST, RUINED, SAFE, WORK, Action, Ring
from .scenario import Scenario

STATES = {SAFE: "safe", BURNING: "burning", RUINED: "ruined"}
MODES = {REST: "rest", WORK: "work"}
_HOUSE = re.compile(r"house\W{0,3}(\d{1,3})", re.IGNORECASE)
_MODE = re.compile(r"\b(work|rest)", re.IGNORECASE)
_SIGNAL = re.compile(r"signal\w*\W{0,3}(work|rest)", re.IGNORECASE)


def role(agent: int) -> str:
    """The name of an agent."""
    return f"agent_{agent}"


def spec(scenario: Scenario, agent: int) -> AgentSpec:
    """An agent, who knows the rules and its own houses."""
    own = ", ".join(map(str, scenario.owned(agent))) or "none"
    return AgentSpec(
        role=role(agent),
        goal="Keep the houses safe, and do not pay for work that is not needed.",
        system_prompt=f"You are agent {agent} of a bucket brigade. Your houses: {own}. You live at "
        f"house {scenario.homes[agent]}. {rules(scenario)} Answer with one line and nothing else, "
        f"{_form(scenario)}",
    )


def rules(scenario: Scenario) -> str:
    """The scenario in a few sentences."""
    s = scenario
    alone = f"{s.prob_solo_agent_extinguishes_fire:.0%}"
    fire = (
        f"Each worker at a burning house puts it out with a chance of {alone}; if nobody does on "
        "that night, it is ruined for good."
    )
    if s.extinguish_mode == "continuous":
        fire = (
            f"Each worker at a burning house does {s.suppression_per_worker:.0%} of what puts it "
            f"out; until then it burns, and may light each neighbour "
            f"({s.prob_fire_spreads_to_neighbor:.0%} per night)."
        )
    said = [
        f"{s.num_agents} agents guard {s.num_houses} houses on a ring, 0 to {s.num_houses - 1}.",
        "Each night all act at once: everybody goes to a house, works or rests there, and signals "
        "work or rest to all, truly or not.",
        fire,
        f"A safe house catches fire with a chance of {s.prob_house_catches_fire:.0%} per night.",
        f"Work costs {s.cost_to_work_one_night:g}, rest earns {s.reward_rest:g}.",
        f"Each night everybody gets {s.team_reward_house_survives:g} times the share of safe "
        f"houses and pays {s.team_penalty_house_burns:g} times the share of ruined ones.",
        f"Your own houses: {s.reward_own_house_survives:g} when one is saved, "
        f"-{s.penalty_own_house_burns:g} per night for each that is ruined.",
    ]
    if s.distance_cost_alpha:
        said.append(f"Work costs {s.distance_cost_alpha:g} more per house away from home.")
    if s.action_validity_mode == "adjacent_only":
        said.append("You reach your home and the houses beside it; else you stay at home.")
    return " ".join(said)


def _form(scenario: Scenario) -> str:
    example = f"such as: house {min(3, scenario.num_houses - 1)}, work, signal work"
    if scenario.commitment_mode == "two_phase":
        return f"{example}. Where you are asked what to announce first: announce work, or rest."
    return example


def observation(scenario: Scenario, ring: Ring, agent: int, announcing: bool) -> str:
    """The evening as all see it, and what is asked of the agent."""
    lines = [f"Night {ring.night}, at least {scenario.min_nights} nights.", _street(ring)]
    if ring.night:
        lines += [_did(number, act) for number, act in enumerate(ring.last)]
    if scenario.commitment_mode == "two_phase" and not announcing:
        said = ", ".join(f"{role(i)} {MODES[mode]}" for i, mode in enumerate(ring.promised))
        lines.append(f"Announced for tonight: {said}.")
    ask = "What do you announce?" if announcing else "What do you do?"
    return "\n".join([*lines, f"You are {role(agent)}. {ask}"])


def _street(ring: Ring) -> str:
    """Houses by state; rows of neighbours in short."""
    found = []
    for state, name in STATES.items():
        numbers = [house for house, now in enumerate(ring.houses) if now == state]
        rows = [
            [house for _, house in row]
            for _, row in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        ]
        short = [
            f"{row[0]}-{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows
        ]
        found.append(f"{name}: {', '.join(short) or 'none'}")
    return f"Houses {'; '.join(found)}."


def _did(agent: int, act: Action) -> str:
    did = {WORK: "worked", REST: "rested"}[act.mode]
    return f"Last night {role(agent)} {did} at house {act.house} and signalled {MODES[act.signal]}."


def action(text: str, scenario: Scenario, agent: int) -> Action | None:
    """What an answer says; None if it names no house of the ring or neither work nor rest.

    Without a signal it is honest.
    """
    signal = _SIGNAL.search(text)
    rest = text if signal is None else text.replace(signal.group(), " ", 1)
    house, mode = _HOUSE.search(rest), _MODE.search(rest)
    if house is None or mode is None or int(house.group(1)) >= scenario.num_houses:
        return None
    does = _mode(mode)
    return Action(int(house.group(1)), does, does if signal is None else _mode(signal))


def announced(text: str) -> int | None:
    """The announcement in an answer; None if there is none."""
    found = _MODE.search(text)
    return None if found is None else _mode(found)


def _mode(found: re.Match[str]) -> int:
    return WORK if found.group(1).lower() == "work" else REST
