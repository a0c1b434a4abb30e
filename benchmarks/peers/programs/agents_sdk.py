"""Two agents of the OpenAI Agents SDK: a writer, then an editor."""

from __future__ import annotations

import asyncio
import json
import os

from agents import Agent, Runner, set_tracing_disabled
from reward import reward

set_tracing_disabled(True)  # OPENAI_BASE_URL and OPENAI_API_KEY are in the environment
writer = Agent(name="writer", instructions="Sum up the post in one sentence.", model="writer")
editor = Agent(name="editor", instructions="Improve the draft: shorter, clearer.", model="editor")


async def main() -> None:
    problem = json.loads(os.environ["ORCHESTRY_PROBLEM"])
    draft = await Runner.run(writer, problem["prompt"])
    final = await Runner.run(editor, f"{problem['prompt']}\n\nDraft: {draft.final_output}")
    print(json.dumps(reward(problem, str(final.final_output))))


asyncio.run(main())
