"""What the agents read. None of it tells the house's conventions: they are to be learned."""

from __future__ import annotations

from orchestry import AgentSpec

WRITER = AgentSpec(
    role="writer",
    goal="Write the text from the notes, with every fact.",
    system_prompt="You write short technical texts for a software house. Write the text that is "
    "asked for from the notes, in whole sentences, with every fact of the notes. Answer with the "
    "text only.",
)
EDITOR = AgentSpec(
    role="editor",
    goal="Make the draft fit to print for the house, and keep every fact.",
    system_prompt="You edit short technical texts for a software house. Rewrite the draft as the "
    "house wants its texts, and keep every fact. Answer with the text only.",
)
MAX_DRAFT_CHARS = 2000
"""What the editor sees of a draft."""


def for_editor(kind: str, draft: str) -> str:
    """The draft and what it is; never the notes."""
    return f"Draft of the {kind}:\n{draft.strip()[:MAX_DRAFT_CHARS] or '(no draft)'}\n\nEdit it."
