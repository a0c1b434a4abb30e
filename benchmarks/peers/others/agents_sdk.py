"""Plays `examples/agent_patterns/parallelization.py` of openai-agents-python, unchanged.

Three translations into Spanish, and an agent that picks one. Reward: how much of the reference
stands in what was picked. Takes the folder of a checkout.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import sys
from difflib import SequenceMatcher

from agents import Agent, set_tracing_disabled

sys.path.insert(0, sys.argv[1])
problem = json.loads(os.environ["ORCHESTRY_PROBLEM"])
set_tracing_disabled(True)
example = importlib.import_module("examples.agent_patterns.parallelization")
for agent in vars(example).values():
    if isinstance(agent, Agent):
        agent.model = agent.name
sys.stdin = io.StringIO(problem["prompt"] + "\n")
with contextlib.redirect_stdout(io.StringIO()) as said:
    asyncio.run(example.main())
picked = said.getvalue().partition("Best translation: ")[2].strip()
alike = SequenceMatcher(None, problem["data"]["spanish"].lower(), picked.lower()).ratio()
print(json.dumps({"reward": alike, "feedback": f"{alike:.0%} of the reference"}))
