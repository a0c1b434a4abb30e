"""PettingZoo's tic-tac-toe (AEC): player_1 learns against player_2."""

from __future__ import annotations

import re
from typing import Any

import pettingzoo

from orchestry import AgentSpec
from orchestry.ext.bridges.pettingzoo import PettingZooTask

TOLD = "You play noughts and crosses. You are X."


class Noughts(PettingZooTask):
    name = "noughts"
    agents = (
        AgentSpec(role="player_1", system_prompt=TOLD),
        AgentSpec(role="player_2", system_prompt=TOLD),
    )
    low, high, earner = -1.0, 1.0, "player_1"

    def make(self) -> Any:
        return pettingzoo.make("aec", "classic/tictactoe-v3")

    def render(self, observation: Any, agent: str) -> str:
        planes = observation["observation"].reshape(9, 2)
        board = "".join("X" if mine else "O" if theirs else "." for mine, theirs in planes)
        free = [str(n) for n, legal in enumerate(observation["action_mask"]) if legal]
        return f"Board: {board}. Free squares: {' '.join(free)}. Answer with the number of one."

    def parse(self, text: str, observation: Any, agent: str) -> Any:
        free = [n for n, legal in enumerate(observation["action_mask"]) if legal]
        named = [int(digit) for digit in re.findall(r"\d", text)]
        # Else the first free one: a small model would never end a game.
        return next((n for n in named if n in free), free[0])
