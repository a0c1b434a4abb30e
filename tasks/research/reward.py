"""The parts of the reward, each a number in [0, 1]: by ids, by words in common, by key facts. Pure.

A sentence counts as far as the notes that it cites were retrieved and have its words; a key fact
counts in a sentence that cites the fact's own note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from statistics import fmean

from orchestry import Problem, prose

from . import cited
from .cited import Sentence
from .notes import Fact, Note, facts, needed
from .options import Options

SUPPORTED: prose.Span = (0.2, 0.5)
"""Share of a sentence's content words that its notes, or the question, have."""
SHARED = 2
"""Content words beyond the question's that a note must share with a sentence that cites it, unless
the sentence states one of its key facts."""
UNCITED = 0.2
"""What a sentence or a key fact out of the retrieved notes is worth without its citation."""
FLUENT: prose.Span = (0.2, 0.5)
LISTED: prose.Span = (0.3, 0.18)
"""Commas and `and`s for one word: at the first number a text is a list of words."""
COPIED: prose.Span = (1.0, 0.6)
"""Share of runs of words that stand in the notes, or in the claims."""
ASKED: prose.Span = (0.9, 0.5)
"""The same of the question's, which an answer need not repeat."""
ECHOED: prose.Span = (0.76, 0.73)
"""How far an answer may be the notes' content words again, whatever stands between them."""
NOTED: prose.Span = (0.9, 0.8)
"""The same of claims, which stand nearer to the notes."""
OWNED: prose.Span = (0.0, 0.035)
"""Share of words of their own that claims and answer have together."""
CONCISE: prose.Span = (0.7, 0.6)
"""Words of a text for one of the notes' sentences that have its facts. A text that is much shorter
needs no new word to be one's own."""
CARRYING: prose.Span = (0.3, 0.2)
"""Share of idle words in it: short carriers around words of the notes are no such text."""
MOULDED: prose.Span = (0.65, 0.5)
"""Share of a text that has the shape of sentences of the notes, with other words in their slots."""
HOLLOW: prose.Span = (0.17, 0.12)
"""Share of idle words in a text that says nothing else: a carrier around words of the notes."""
AGAIN: prose.Span = (0.4, 0.25)
"""Share of runs that come again with other words in their slots."""
VERBATIM = 0.2
"""What sentences are worth that are taken from the notes."""
TRAPPED = 0.5
"""What key facts are worth in an answer that also states what the notes correct."""
BARE = 0.3
"""What citations and prose are worth in an answer without any key fact."""
MIN_WORDS = 8
CLAIM_WORDS = 120


@dataclass(frozen=True)
class Work:
    """What the three have said so far, and what there was to choose from."""

    problem: Problem
    options: Options
    pool: tuple[Note, ...]
    named: tuple[str, ...] = ()
    """The ids that the retriever named."""
    claims: str = ""
    answer: str = ""

    @cached_property
    def retrieved(self) -> tuple[Note, ...]:
        """The notes that reach the analyst."""
        return retrieved(self.pool, self.named, self.options.picks)

    @cached_property
    def seen(self) -> str:
        """All that analyst and writer may have their words from."""
        return "\n".join([self.problem.prompt, *(note.text for note in self.retrieved)])

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        return facts(self.problem)

    def covered(self, said: Sequence[Sentence]) -> list[float]:
        """For each key fact 1 if a sentence states it and cites its note, little where one
        states it and cites nothing; 0 where its note was not retrieved."""
        have = {note.id for note in self.retrieved}
        return [self._covered(fact, said) if fact.note in have else 0.0 for fact in self.facts]

    def _covered(self, fact: Fact, said: Sequence[Sentence]) -> float:
        stated = [sentence for sentence in said if fact.stated(sentence.text)]
        if any(fact.note in sentence.ids for sentence in stated):
            return 1.0
        return UNCITED if any(not sentence.ids for sentence in stated) else 0.0

    def support(self, sentence: Sentence) -> float:
        """How far the notes that a sentence cites bear it out; little where it cites none."""
        have = {note.id: note for note in self.retrieved}
        asked, topics = _stems(self.problem.prompt), _stems(sentence.text)
        known = {name: _stems(have[name].text) for name in sentence.ids or have if name in have}
        stated = {fact.note for fact in self.facts if fact.stated(sentence.text)}
        borne = [
            name in stated or len((topics - asked) & stems) >= SHARED
            for name, stems in known.items()
        ]
        share = prose.ramp(_share(topics, asked.union(*known.values())), SUPPORTED)
        if not sentence.ids:
            return UNCITED * share * any(borne)
        return share * sum(borne) / len(sentence.ids)

    def trapped(self) -> bool:
        """Whether the answer states what the notes correct."""
        said = f" {' '.join(prose.words(cited.uncited(self.answer)))} "
        traps: Sequence[str] = self.problem.data.get("traps", ())
        return any(f" {' '.join(prose.words(trap))} " in said for trap in traps)

    def copying(self, text: str) -> float:
        """The share of a text's runs of words that stand in one of the retrieved notes."""
        return self.shared(text, "\n".join(note.text for note in self.retrieved))

    def shared(self, text: str, source: str) -> float:
        """The share of a text's runs of words that stand in another, without citations."""
        words, others = (prose.words(cited.uncited(one)) for one in (text, source))
        return prose.overlap(words, others)


def retrieved(pool: Sequence[Note], named: Sequence[str], picks: int) -> tuple[Note, ...]:
    """The first notes of the pool that were named, at most so many."""
    have = {note.id: note for note in pool}
    return tuple(have[name] for name in named if name in have)[:picks]


def parts(work: Work) -> dict[str, float]:
    """The five parts."""
    said = cited.sentences(work.answer)
    covered = fmean(work.covered(said))
    borne = fmean(map(work.support, said)) if said else 0.0
    sound = prod(answer_factors(work).values())
    opened = sound * (BARE + (1 - BARE) * covered)
    trapped = TRAPPED if work.trapped() else 1.0
    return {
        "retrieval": retrieval(work),
        "claims": claims(work),
        "citations": opened * borne,
        "coverage": sound * covered * trapped * (0.5 + 0.5 * borne),
        "prose": opened * prose.ramp(work.shared(work.answer, work.claims), COPIED),
    }


def retrieval(work: Work) -> float:
    """F1 of the ids that were named, beyond that of naming all there are; 0 for none."""
    wanted = frozenset(needed(work.problem))
    named, every = frozenset(work.named), frozenset(note.id for note in work.pool)
    floor = _f1(every, wanted)
    return max(0.0, (_f1(named, wanted) - floor) / (1.0 - floor))


def claims(work: Work) -> float:
    """Key facts in the analyst's claims times how far these are supported."""
    said = cited.sentences(work.claims)
    if not said:
        return 0.0
    sound = prod(claim_factors(work).values())
    return sound * fmean(work.covered(said)) * fmean(map(work.support, said))


def claim_factors(work: Work) -> dict[str, float]:
    """What scales the claims' part, by what is wrong where it is below 1."""
    return _factors(work, work.claims, CLAIM_WORDS, NOTED)


def answer_factors(work: Work) -> dict[str, float]:
    """The same of the answer's parts."""
    shaped = prose.ramp(prose.moulded(cited.uncited(work.answer), work.seen), MOULDED)
    return {
        **_factors(work, work.answer, work.options.max_words, ECHOED),
        "neither it nor the claims have a word of their own": owned(work),
        "its sentences are the notes' with other words": _own(shaped),
    }


def _factors(work: Work, text: str, most: int, echoed: prose.Span) -> dict[str, float]:
    """How far a text counts: fluent, no list, not endless, in its own words, not the question, and
    no carrier around words of the notes."""
    plain, seen = cited.uncited(text), work.seen
    words = prose.words(plain)
    echo = max(prose.ramp(prose.echoing(plain, seen), echoed), concise(work, text))
    listed = plain.count(",") + words.count("and")
    return {
        "it does not read like sentences": prose.ramp(prose.fluency(plain, words), FLUENT),
        "its words are the notes'": _own(min(prose.ramp(work.copying(text), COPIED), echo)),
        "it says nothing about them": prose.ramp(prose.hollowness(plain, seen), HOLLOW),
        "its sentences are one with other words": prose.ramp(prose.refrain([plain]), AGAIN),
        "it repeats the question": prose.ramp(work.shared(work.problem.prompt, text), ASKED),
        "it is a list": prose.ramp(listed / max(1, len(words)), LISTED),
        "it is too short or too long": brevity(text, most),
    }


def owned(work: Work) -> float:
    """Little where claims and answer have no word of their own: all is the notes', turned about."""
    said = cited.uncited(f"{work.claims}\n{work.answer}")
    return _own(max(prose.ramp(prose.owned(said, work.seen), OWNED), concise(work, work.answer)))


def concise(work: Work, text: str) -> float:
    """1 for a text that says its facts in much fewer words than the notes' sentences with them, 0
    for one that is about as long."""
    notes = {note.id: note.text for note in work.retrieved}
    plain = cited.uncited(text)
    facts = [fact for fact in work.facts if fact.note in notes and fact.stated(plain)]
    told = {
        one.text
        for fact in facts
        for one in cited.sentences(notes[fact.note])
        if fact.stated(one.text)
    }
    length = sum(len(prose.words(one)) for one in told)
    if not length:
        return 0.0
    says = prose.ramp(prose.loose_idling(plain, work.seen), CARRYING)
    return says * prose.ramp(len(prose.words(plain)) / length, CONCISE)


def _own(share: float) -> float:
    """What a text is worth of which this share is one's own."""
    return VERBATIM + (1 - VERBATIM) * share


def brevity(text: str, most: int) -> float:
    """1 from 8 words to the limit; 0 at a third of 8 and at one and a half times the limit."""
    return prose.in_length(prose.Text(cited.uncited(text), ""), MIN_WORDS, most)


def _f1(named: frozenset[str], wanted: frozenset[str]) -> float:
    """The harmonic mean of precision and recall."""
    return 2 * len(named & wanted) / (len(named) + len(wanted)) if named or wanted else 0.0


def _share(topics: frozenset[str], known: frozenset[str]) -> float:
    return len(topics & known) / len(topics) if topics else 0.0


@lru_cache(maxsize=1024)
def _stems(text: str) -> frozenset[str]:
    return frozenset(prose.content(prose.words(text)))
