"""Kuhn poker of verifiers: player0 learns against player1."""

from __future__ import annotations

from orchestry import AgentSpec
from orchestry.ext.bridges.verifiers import VerifiersTask


class Kuhn(VerifiersTask):
    name = "kuhn"
    agents = (AgentSpec(role="player0"), AgentSpec(role="player1"))
    environment = "kuhn-poker"
    low, high, earner, limit = -2.0, 2.0, "player0", 100
