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
ALONE = AgentSpec(
    role="alone",
    goal="Sum up the post twice, once in short and once at length.",
    system_prompt="Sum up the input text twice, objectively and in your own words. First write "
    "the line `## concise` and under it one short sentence. Then write the line `## detailed` and "
    "under it two or three sentences, joined by words such as because, however and then.",
)
RUBRIC = """\
Each text says only what the post says, and says it truly: what happened, to whom, and what the \
writer asks. A fluent sentence that is false, or that turns the post's sense round, is worth less \
than none.
The concise text has the post's point. The detailed one has the same point and the reasons for it, \
and does not contradict the concise one. Sentences that would fit any post are worth nothing."""
"""What the reward can't count (README, "Not caught"), for the judge."""
MAX_POST_CHARS = 2400  # posts of the data set are longer than a small model's context allows


def ask(post: str) -> str:
    """The post, and nothing else: what is wanted stands in the system prompt."""
    return post[:MAX_POST_CHARS]
