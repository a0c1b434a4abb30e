"""Calls in which an agent prepares its move: what it is asked there, and how they are recognised.

An agent may first say what it believes its partners will do (a belief), and take steps such as a
plan. What it says is shown to itself alone, when it acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Kind = Literal["belief", "step", ""]
"""What a call is for; '': the action itself."""

STEPS = {
    "plan": "First write a short plan of your answer. Do not write the answer yet.",
    "draft": "First write a draft of your answer. You will write the final answer after it.",
    "doubts": "First name what could go wrong in your answer. Do not write the answer yet.",
}
"""Steps that have a name; any other text is the instruction itself."""
_BELIEF = "Write this one line only; nobody but you will see it."
_STEP = "Write this only; nobody but you will see it."


def ask_belief(others: Sequence[str]) -> str:
    """The instruction to say what these partners will do."""
    who = " and ".join(others) or "the others"
    return f"Before you act: in one line, what do you believe {who} will do or write? {_BELIEF}"


def ask_step(step: str) -> str:
    """The instruction of one step of a chain."""
    return f"{STEPS.get(step, step)} {_STEP}"


def kind_of(asked: str) -> Kind:
    """What a call is for, by the last message that the agent got."""
    return "belief" if _BELIEF in asked else "step" if _STEP in asked else ""
