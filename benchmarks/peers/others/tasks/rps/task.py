"""PettingZoo's rock, paper, scissors (Parallel): player_0 learns against player_1."""

from __future__ import annotations

import re
from typing import Any

import pettingzoo

from orchestry import AgentSpec
from orchestry.ext.bridges.pettingzoo import PettingZooTask

SIGNS = ("rock", "paper", "scissors")
ROUNDS = 4
TOLD = "You play rock, paper, scissors. Answer with one word."


class Rps(PettingZooTask):
    name = "rps"
    agents = tuple(AgentSpec(role=role, system_prompt=TOLD) for role in ("player_0", "player_1"))
    low, high, earner = -float(ROUNDS), float(ROUNDS), "player_0"

    def make(self) -> Any:
        return pettingzoo.make("parallel", "classic/rps-v2", max_cycles=ROUNDS)

    def render(self, observation: Any, agent: str) -> str:
        shown = (*SIGNS, "nothing yet")[min(int(observation), len(SIGNS))]
        return f"The other player showed {shown}. You show:"

    def parse(self, text: str, observation: Any, agent: str) -> Any:
        found = re.search("|".join(SIGNS), text.lower())
        return SIGNS.index(found[0]) if found else 0  # else a small model would never end a game
