"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from orchestry import AgentSpec

from .plot import Plot

WRITER = AgentSpec(
    role="writer",
    goal="Write the passage of the story that is asked for, with all that it must contain.",
    system_prompt="You write short stories in plain prose. Use the characters, the object and the "
    "place by name, and let the events happen in their order. Answer with the story only.",
)
EDITOR = AgentSpec(
    role="editor",
    goal="Revise the draft: keep what happens, rewrite how it is said.",
    system_prompt="You edit stories. Rewrite the draft in better words: keep the characters and "
    "events, add what is missing, begin sentences in different ways, and mix short sentences with "
    "long ones. Answer with the rewritten story only.",
)
NARRATOR = AgentSpec(
    role="narrator",
    goal="Tell the story in your own words, with all characters, things, places and events.",
    system_prompt="You tell stories aloud. Tell the story again in your own words, and shortly: in "
    "three to six sentences. Name the characters, things and places, and keep the order of "
    "events. Answer with the telling only.",
)
ALONE = AgentSpec(
    role="alone",
    goal="Write the story, better it, and tell it shortly.",
    system_prompt="You write short stories in plain prose. Use the characters, the object and the "
    "place by name, and let the events happen in their order. First write the line `## writer` and "
    "under it the story. Then write the line `## editor` and under it the whole story again, "
    "better told: the same events in other words, with short sentences and long ones. Then write "
    "the line `## narrator` and under it the story in three to six sentences, in new words.",
)
RUBRIC = """\
A story in which something happens: the three events of the premise, in their order, each told by \
what is done, seen and said. Naming an event, or dropping its words into other clauses, does not \
tell it.
The editor's passage is better told than the draft, and loses nothing that happens.
The narrator tells the whole again in new words. Sentences that would fit any premise are worth \
nothing, however fluent they are."""
"""What the reward can't count (README, "Not caught"), for the judge."""
MAX_CHARS = 3000  # of a text that another agent reads: small models have small contexts


def ask_writer(premise: str, plot: Plot, story: str, words: int) -> str:
    """The premise, the story so far, and which events come now."""
    so_far = f"\n\nThe story so far:\n{story[-MAX_CHARS:]}" if story else ""
    task = "Continue the story" if story else "Write the story"
    return f"{premise}{so_far}\n\n{task} in about {words} words, up to this: {plot.beats[-1]}."


def ask_editor(premise: str, draft: str) -> str:
    return f"{premise}\n\nDraft:\n{draft[:MAX_CHARS]}\n\nRewrite the draft."


def ask_narrator(story: str) -> str:
    return f"{story[:MAX_CHARS]}\n\nTell this story in three to six sentences."
