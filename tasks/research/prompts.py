"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from collections.abc import Sequence

from orchestry import AgentSpec

from .notes import Note, shown

RETRIEVER = AgentSpec(
    role="retriever",
    goal="Choose the notes that the question needs, and no others.",
    system_prompt="You choose sources. Answer with the ids of the two notes, or three, that are "
    "needed to answer the question, and nothing else.",
)
ANALYST = AgentSpec(
    role="analyst",
    goal="Take from the notes what answers the question, with the id of each note.",
    system_prompt="You extract facts from notes. Write one short sentence a line in your own "
    "words, only what answers the question, each with the id of its note in brackets at the end.",
)
WRITER = AgentSpec(
    role="writer",
    goal="Answer the question in one to three sentences that cite the notes.",
    system_prompt="You answer a question from a list of facts. Write one to three whole sentences "
    "in your own words, each with the id of its note in brackets before the full stop.",
)
ALONE = AgentSpec(
    role="alone",
    goal="Answer the question from the notes that it needs, in sentences that cite them.",
    system_prompt="You answer a question from notes. Two of them are needed, or three. Write one "
    "to three whole sentences in your own words, each with the id of its note in brackets before "
    "the full stop.",
)
RUBRIC = """\
An answer that settles the question from the notes alone. Each sentence answers it, says what \
the cited note says and nothing contrary to it, and stands in the writer's own words.
Notes that the question does not need, claims that it does not ask for, facts that no note has, \
and sentences that only mention a note's words are faults. Where two notes disagree, the newer and \
better informed one is right, and the answer says what it says."""
"""What the reward can't count (README, "Not caught"), for the judge."""
MAX_CLAIMS_CHARS = 1500
"""What the writer sees of the analyst's claims: small models have small contexts."""


def for_retriever(question: str, pool: Sequence[Note]) -> str:
    """The question and the titles of the notes."""
    titles = "\n".join(f"{note.id}: {note.title}" for note in pool)
    return f"{titles}\n\nQuestion: {question}\n\nWhich two notes are needed?"


def for_analyst(question: str, retrieved: Sequence[Note]) -> str:
    """The question and the notes that were retrieved, in full."""
    return f"{shown(retrieved) or '(no notes)'}\n\nQuestion: {question}\n\nFacts, with their ids:"


def for_one(question: str, pool: Sequence[Note]) -> str:
    """The question and all notes in full."""
    return f"{shown(pool)}\n\nQuestion: {question}\n\nAnswer, with ids in brackets:"


def for_writer(question: str, claims: str) -> str:
    """The question and the claims, never the notes."""
    facts = claims.strip()[:MAX_CLAIMS_CHARS] or "(no facts)"
    return f"Facts:\n{facts}\n\nQuestion: {question}\n\nAnswer, with ids in brackets:"
