"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from orchestry import AgentSpec

BACKGROUND = AgentSpec(
    role="background",
    goal="Expand the abstract by a paragraph on background and motivation.",
    system_prompt="Expand the abstract into a paragraph of about 110 words on its background and "
    "motivation: what was known, what was missing and why it matters. Write full sentences in "
    "your own words, joined by words such as because, however and therefore.",
)
METHOD = AgentSpec(
    role="method",
    goal="Expand the abstract by a longer paragraph on method and implications.",
    system_prompt="Expand the abstract into a paragraph of about 150 words on its method and its "
    "implications: what was done, what was found and what follows from it. Write full sentences "
    "in your own words, joined by words such as because, then and therefore.",
)
ALONE = AgentSpec(
    role="alone",
    goal="Expand the abstract by a paragraph on its background and one on its method.",
    system_prompt="Expand the abstract into two paragraphs of full sentences in your own words, "
    "joined by words such as because, however and therefore. First write the line `## background` "
    "and under it about 110 words on background and motivation: what was known, what was missing "
    "and why it matters. Then write the line `## method` and under it about 150 words on method "
    "and implications: what was done, what was found and what follows from it.",
)
RUBRIC = """\
Each paragraph says nothing that the abstract contradicts. What it adds is what a reader of the \
field would expect beside the abstract, not results, names or numbers of its own.
The background paragraph says what was known, what was missing and why it matters; the method \
paragraph what was done, what was found and what follows. Together they read as one text that \
tells nothing twice. Sentences that would fit any abstract are worth nothing, however fluent they \
are."""
"""What the reward can't count (README, "Not caught"), for the judge."""
MAX_ABSTRACT_CHARS = 2400  # what a small model's context holds beside two paragraphs


def ask(abstract: str) -> str:
    """The abstract, and nothing else: what is wanted stands in the system prompt."""
    return abstract[:MAX_ABSTRACT_CHARS]
