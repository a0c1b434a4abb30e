"""Plays the team of AutoGen's tutorial (`tutorial/teams.ipynb`): a writer and a critic, in turns.

Takes the notebook's path. Its first two cells run with the changes below. Reward: the last poem
names its subject and is short; and the critic approved of it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

CHANGES = {
    "model_client = OpenAI": "model_client = lambda role: OpenAI",
    'model="gpt-4o-2024-08-06",': "model=role, model_info=INFO,",
    r'"(\w+)",\n    model_client=model_client': r'"\1",\n    model_client=model_client("\1")',
    r"=text_termination\)": "=text_termination, max_turns=4)",
    '"Write a short poem about the fall season."': "PROMPT",
}
"""By pattern: for each agent its own model's name, and an end if the critic never
approves."""
INFO = {
    "vision": False,
    "function_calling": False,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}
SHORT, LONG = 20, 60
"""Words: all of the reward for brevity up to the first, none from the second on."""


def changed(path: Path, changes: dict[str, str] = CHANGES) -> str:
    """The notebook's first two cells, with changes; RuntimeError where one fits nothing."""
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    text = "\n".join("".join(cell["source"]) for cell in cells[:2])
    for old, new in changes.items():
        text, times = re.subn(old, new, text)
        if not times:
            raise RuntimeError(f"{path} has no {old!r} any more")
    return text


async def play(code: str, prompt: str) -> list[Any]:
    """The messages of the conversation, the user's first."""
    names: dict[str, Any] = {"PROMPT": prompt, "INFO": INFO}
    compiled = compile(code, "teams.ipynb", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(io.StringIO()):
        if inspect.iscoroutine(waiting := eval(compiled, names)):
            await waiting
    return list(names["result"].messages)


def reward(problem: dict[str, Any], messages: list[Any]) -> dict[str, Any]:
    """The program's last line."""
    poem = [one.content for one in messages if one.source == "primary"][-1]
    subject = problem["data"]["subject"]
    named = bool(re.search(rf"\b{subject}", poem, re.IGNORECASE))
    words = len(poem.split())
    brief = max(0.0, min(1.0, (LONG - words) / (LONG - SHORT)))
    approved = messages[-1].source == "critic" and "APPROVE" in messages[-1].content
    value = named * (0.75 * brief + 0.25 * approved)
    said = f"{words} words; {subject} {'' if named else 'not '}named; approved: {approved}"
    return {"reward": value, "feedback": said}


if __name__ == "__main__":
    told = json.loads(os.environ["ORCHESTRY_PROBLEM"])
    spoken = asyncio.run(play(changed(Path(sys.argv[1])), told["prompt"]))
    print(json.dumps(reward(told, spoken)))
