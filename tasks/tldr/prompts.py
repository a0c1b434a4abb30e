"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from orchestry import AgentSpec

CONCISE = AgentSpec(
    role="concise",
    goal="Sum up the post in one sentence.",
    system_prompt="You sum up posts in one short sentence of your own words. Never copy the post. "
    "Answer with the sentence alone.",
)
DETAILED = AgentSpec(
    role="detailed",
    goal="Sum up the post in two or three sentences.",
    system_prompt="You sum up posts in two or three sentences of your own words, joined by words "
    "such as because, however, then. Never copy the post. Answer with the summary alone.",
)
_ASKED = {
    CONCISE.role: "Say in one short sentence what happened to the writer of this post.",
    DETAILED.role: "Tell in two or three sentences what happened to the writer of this post.",
}
MAX_POST_CHARS = 2400  # posts of the data set are longer than a small model's context allows


def ask(post: str, agent: str) -> str:
    """The post, and which summary is wanted."""
    return f"{post[:MAX_POST_CHARS]}\n\n{_ASKED[agent]}"
