"""Rollouts that do nothing but call: for benchmarks.guarantees.endpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from orchestry import AgentSpec, AgentTask, Frozen, Problem, Split


class Options(Frozen):
    """Calls per rollout."""

    calls: int = 10


class Caller(AgentTask):
    """Its reward is the share of calls that were answered."""

    name = "caller"
    agents = (AgentSpec(role="caller"),)
    options_type = Options
    command = ("set", "by", "options")

    def asked_agents(self) -> tuple[AgentSpec, ...]:
        client = str(Path(__file__).with_name("client.py"))
        vars(self)["command"] = (sys.executable, "-S", client, str(self.options.calls))
        vars(self)["max_turns"] = self.options.calls
        return super().asked_agents()

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(id=f"{split}-{n}", prompt=str(n), split=split) for n in range(1000)]
