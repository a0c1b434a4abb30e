"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from orchestry import AgentSpec

CONCISE = AgentSpec(
    role="concise",
    goal="Sum up the post in one short sentence.",
    system_prompt="Provide a concise, objective summary of the input text in one short sentence, "
    "in your own words.",
)
DETAILED = AgentSpec(
    role="detailed",
    goal="Sum up the post in two or three sentences.",
    system_prompt="Provide a detailed, objective summary of the input text in two or three "
    "sentences, in your own words, joined by words such as because, however and then.",
)
MAX_POST_CHARS = 2400  # posts of the data set are longer than a small model's context allows


def ask(post: str) -> str:
    """The post, and nothing else: what is wanted stands in the system prompt."""
    return post[:MAX_POST_CHARS]
