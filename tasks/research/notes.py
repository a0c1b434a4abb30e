"""The source notes, and which of them a problem's retriever may choose from. Pure, but for one
reading of the file beside it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orchestry import Problem, prose

PATH = Path(__file__).with_name("notes.jsonl")


@dataclass(frozen=True, slots=True)
class Note:
    """One short source."""

    id: str
    topic: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """What an answer has to say: one of some wordings, out of one note."""

    note: str
    any: tuple[str, ...]

    def stated(self, text: str) -> bool:
        """Whether a text has one of the wordings, as whole words."""
        said = f" {' '.join(prose.words(text))} "
        return any(f" {' '.join(prose.words(wording))} " in said for wording in self.any)


@lru_cache(maxsize=1)
def notes() -> dict[str, Note]:
    """All notes by id, in their order."""
    with PATH.open("rb") as lines:
        return {note.id: note for note in (Note(**json.loads(line)) for line in lines)}


def facts(problem: Problem) -> tuple[Fact, ...]:
    """What the answer to a problem has to say."""
    return tuple(Fact(one["note"], tuple(one["any"])) for one in problem.data["facts"])


def needed(problem: Problem) -> tuple[str, ...]:
    """The ids of the notes that its facts stand in."""
    return tuple(dict.fromkeys(fact.note for fact in facts(problem)))


def pool(problem: Problem, size: int) -> tuple[Note, ...]:
    """`size` notes to choose from, in an order of the problem's own: those that are needed, then
    the others of their topic, then any. A question without facts (`orchestry ask`) needs the note
    whose title and text have most of its words."""
    wanted = needed(problem) if "facts" in problem.data else (_nearest(problem.prompt),)
    topics = {notes()[name].topic for name in wanted}

    def rank(note: Note) -> tuple[bool, bool, str]:
        return note.id not in wanted, note.topic not in topics, _draw(problem, note)

    chosen = sorted(notes().values(), key=rank)[: max(size, len(wanted))]
    return tuple(sorted(chosen, key=lambda note: _draw(problem, note)))


def _nearest(question: str) -> str:
    """The note that shares most words with the question; rare words count more."""
    said = {note.id: set(prose.words(f"{note.title} {note.text}")) for note in notes().values()}
    spread = Counter(word for words in said.values() for word in words)
    asked = set(prose.words(question))
    return max(said, key=lambda name: sum(1 / spread[word] for word in said[name] & asked))


def _draw(problem: Problem, note: Note) -> str:
    return hashlib.sha256(f"{problem.id} {note.id}".encode()).hexdigest()


def shown(chosen: Sequence[Note]) -> str:
    """Notes in full, as they are shown."""
    return "\n\n".join(f"{note.id}: {note.text}" for note in chosen)
