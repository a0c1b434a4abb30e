"""The game in words: what agents are told, and how their answers are read."""

from __future__ import annotations

import re
from itertools import groupby

from orchestry import AgentSpec

from .game import BURNING, REST, RUINED, SAFE, WORK, Action, Ring
from .scenario import Scenario

STATES = {SAFE: "safe", BURNING: "burning", RUINED: "ruined"}
MODES = {REST: "rest", WORK: "work"}
_NUMBER = r"house[^\w\-]{0,8}(\d{1,2})(?!\d|\.\d)"
_WORD = r"(work|rest)(?:ing)?\b"
_DENIAL = r"(?:not|never|cannot|no(?=\W+(?:work|rest)))\b"
_LOOSE = re.compile(_NUMBER, re.IGNORECASE | re.ASCII)
_LINE = re.compile(
    rf"{_NUMBER}\W{{1,8}}(?:(?!{_DENIAL})\w{{1,8}}\W{{1,8}})?{_WORD}", re.IGNORECASE | re.ASCII
)
"""What is asked for: a house and a mode, at most one word between them, and no denial."""
_MODE = re.compile(rf"\b{_WORD}", re.IGNORECASE)
_SIGNAL = re.compile(rf"signal\w{{0,8}}\W{{0,8}}(?:(?:is|to|as)\W{{1,8}})?{_WORD}", re.IGNORECASE)
_EITHER = re.compile(rf"\b{_WORD}\s*(?:[/|]|(?:,\s*)?or\b)\s*{_WORD}", re.IGNORECASE)
"""A choice that is left open; it says nothing."""
_NOT = re.compile(rf"\b{_DENIAL}|n['\u2019]t\b", re.IGNORECASE)


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
    return " ".join(
        [
            f"{s.num_agents} agents guard houses 0 to {s.num_houses - 1}, which form a ring.",
            "Each night all act at once: everybody goes to a house, works or rests there, and "
            "signals work or rest to all, truly or not.",
            *_of_fire(s),
            f"The game ends when nothing burns after {s.min_nights} nights.",
            f"Work costs {s.cost_to_work_one_night:g}, rest earns {s.reward_rest:g}.",
            f"Each night everybody gets {s.team_reward_house_survives:g} times the share of safe "
            f"houses and pays {s.team_penalty_house_burns:g} times the share of ruined ones.",
            *_of_houses(s),
            *_of_places(s),
        ]
    )


def _of_fire(s: Scenario) -> tuple[str, str]:
    lit = f"A safe house catches fire with {_percent(s.prob_house_catches_fire)} chance per night."
    if s.extinguish_mode == "continuous":
        return (
            f"Each worker at a burning house does {_percent(s.suppression_per_worker)} of what "
            "puts it out; until then it burns, and may light each neighbour "
            f"({_percent(s.prob_fire_spreads_to_neighbor)} per night).",
            lit,
        )
    return (
        "Each worker at a burning house puts it out with a chance of "
        f"{_percent(s.prob_solo_agent_extinguishes_fire)}; if nobody does on that night, it is "
        "ruined for good.",
        lit,
    )


def _of_houses(s: Scenario) -> list[str]:
    """What single houses are worth, where they are worth something."""
    kinds = (
        ("one of your own houses", s.reward_own_house_survives, s.penalty_own_house_burns),
        ("one of the others' houses", s.reward_other_house_survives, s.penalty_other_house_burns),
    )
    saved = [f"You get {amount:g} when {what} is saved." for what, amount, _ in kinds if amount]
    lost = [
        f"You pay {amount:g} per night while {what} is ruined."
        for what, _, amount in kinds
        if amount
    ]
    return [*saved, *lost]


def _of_places(s: Scenario) -> list[str]:
    far = f"Work costs {s.distance_cost_alpha:g} more per house away from home."
    near = "You reach your home and the houses beside it; else you stay at home."
    only = s.action_validity_mode == "adjacent_only"
    return [far] * bool(s.distance_cost_alpha) + [near] * only


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


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


def action(text: str, scenario: Scenario) -> Action | None:
    """What an answer says last; None if it names no house of the ring, neither work nor rest, or a
    signal that is neither.

    Without a signal it is honest.
    """
    text = _EITHER.sub(" ", text)
    signals = [*_SIGNAL.finditer(text)]
    if not signals and "signal" in text.lower():
        return None
    found = _said(_SIGNAL.sub(" ", text))
    if found is None or found[0] >= scenario.num_houses:
        return None
    house, mode = found
    return Action(house, mode, _mode(signals[-1].group(1)) if signals else mode)


def _said(text: str) -> tuple[int, int] | None:
    """House and mode: of the line that was asked for, else from anywhere, if nothing is denied."""
    lines = _LINE.findall(text)
    if lines:
        return int(lines[-1][0]), _mode(lines[-1][1])
    houses, modes = _LOOSE.findall(text), _MODE.findall(text)
    if not houses or not modes or _NOT.search(text):
        return None
    return int(houses[-1]), _mode(modes[-1])


def answer(act: Action, announcing: bool) -> str:
    """What `action` reads, or where it is asked for `announced`."""
    if announcing:
        return f"announce {MODES[act.signal]}"
    return f"house {act.house}, {MODES[act.mode]}, signal {MODES[act.signal]}"


def announced(text: str) -> int | None:
    """What an answer announces last; None if it announces nothing, or denies anything."""
    found = _MODE.findall(_EITHER.sub(" ", text))
    return None if not found or _NOT.search(text) else _mode(found[-1])


def _mode(word: str) -> int:
    return WORK if word.lower() == "work" else REST
