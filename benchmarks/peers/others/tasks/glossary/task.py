"""The glossary of verifiers: an agent looks words up by a tool of its environment."""

from __future__ import annotations

from orchestry import AgentSpec
from orchestry.ext.bridges.verifiers import VerifiersTask


class Glossary(VerifiersTask):
    name = "glossary"
    agents = (AgentSpec(role="agent"),)
    environment = "glossary"
