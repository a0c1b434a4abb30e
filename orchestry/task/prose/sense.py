"""What a text says about its source: whether content words stand together as in the source, whether
anything is done in it, how many words are idle. By counting alone. Pure.

Closed-class words and endings are ignored, so that `within one kitchen` equals `in the kitchen`,
and `was never cold` equals `was cold`: only the order of content words is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from .fluency import EDGE, word_class
from .score import Span, ramp
from .words import CLASS_OF, grams, sentences, stem, words

REACH = 3
"""Two content words of a source stand together if they are at most this far apart."""
STEP = 2
"""The same for a text, which may put a new word between them."""
_PRIOR_PAIRS = 1
"""Pairs that stand apart, added to a text's own, because few pairs prove little."""
_COPIED: Span = (0.85, 0.65)
FOREIGN: Span = (0.0, 0.12)
"""Limits for a single sentence: copied from the source at one end, on another subject at the
other."""
HELD: Span = (0.15, 0.4)
"""Share of source words in a sentence, from which its other words count as about the source."""
_ROOT = 4
"""Common first letters of two words that differ only in their endings; one less if the stem is
cut."""
STRAYED = 0.5
"""The highest soundness of a text that strays from its source."""
SAYING: Span = (0.0, 0.15)
"""Share of deeds and new words, from which a text says something."""
SKELETON = 4
"""Length of the runs of closed-class words and gaps that identify a form letter."""
GAP = "*"
MOULD = 7
"""Length of the runs that show a sentence of the source with other words in its slots."""
NOMINAL = frozenset({"det", "poss", "of", "prep"})
"""Classes after which a noun begins."""
VERBAL = frozenset({"subj", "modal", "to", "have", "do", "not", "obj"})
"""Classes after which a verb comes."""
OBJECTS = frozenset({"det", "poss", "obj", "to"})
"""Classes before which a verb comes."""
OPEN = frozenset({"other", "-s", "-ing"})
BEFORE_NOUN = frozenset({"det", "poss", "of", "and", EDGE})
AFTER_NOUN = frozenset({"of", "and", "be", "have", "modal", EDGE})
"""A word behind one of the open classes, behind one of the first, is the verb to a noun, but before
one of the last a noun itself."""
AFTER_BE = frozenset({"prep", "to", EDGE})
_IDLE = """
thing things matter matters case cases way ways point points question questions answer answers fact
facts part parts kind kinds sort end ends ended start starts started begin begins began begun
beginning time times long short day days year years people person everybody nobody one two first
last next other others same different rest whole place
say says said tell tells told telling speak speaks spoke spoken speaking talk talks talked ask asks
asked know knows knew known think thinks thought mean means meant see sees saw seen look looks
looked find finds found show shows shown learn learns learned read hear heard call called name
go goes went gone going come comes came coming get gets got make makes made take takes took taken
give gives gave given bring brings brought keep keeps kept let lets leave leaves left turn
turns turned become becomes became happen happens happened seem seems seemed stay stays stayed
remain remains remained change changes changed lead leads led follow follows followed deal deals
dealt concern concerns concerned depend depends depended need needs needed want wants wanted wait
waited try tries tried help helps helped work works worked hope hoped expect expected
count counts counted stand stands stood lie lies lay set hold holds held
good better best bad worse new old big small little great right wrong true clear simple important
well alway upon toward thus hence plus whilst amid per via
writer author authors note notes source sources text story post account book words word
"""
IDLE = frozenset(map(stem, _IDLE.split()))
"""Stems of general nouns, light verbs and words about texts: enough for a form letter."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A source's stems, pairs of stems that stand together, and stems that are verbs."""

    stems: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence's words, and the stems of its content words with whether each is a verb."""

    tokens: tuple[str, ...]
    stems: tuple[str, ...]
    verbs: tuple[bool, ...]


@lru_cache(maxsize=64)  # all measures read the same few texts
def _read(text: str) -> tuple[_Sentence, ...]:
    return tuple(_parsed(tuple(words(sentence))) for sentence in sentences(text))


@lru_cache(maxsize=64)  # k samples, and each agent's text, are measured beside one source
def _source(text: str) -> _Source:
    told = _read(text)
    near = {
        pair
        for said in told
        for i, one in enumerate(said.stems)
        for other in said.stems[i + 1 : i + 1 + REACH]
        for pair in ((one, other), (other, one))
    }
    stems = frozenset(word for said in told for word in said.stems)
    return _Source(stems, frozenset(near), frozenset(w for w, verb in _roles(text) if verb))


def tracing(text: str, source: str) -> float:
    """The share of neighbouring content words that stand together in the source, in any order, also
    with one new word between them. New idle words are skipped."""
    known = _source(source)
    counts = [_traced(said, known) for said in _read(text)]
    hits, pairs = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return hits / (pairs + _PRIOR_PAIRS)


def _traced(sentence: _Sentence, known: _Source) -> tuple[int, int]:
    """The number of pairs in a sentence that stand together in the source, and of all pairs."""
    said = [w for w in sentence.stems if w in known.stems or w not in IDLE]
    places = [i for i, word in enumerate(said) if word in known.stems]
    hits = sum(j - i <= STEP and (said[i], said[j]) in known.pairs for i, j in pairwise(places))
    return hits, max(0, len(said) - 1)


def _stems(text: str) -> list[str]:
    return [word for said in _read(text) for word in said.stems]


def _rooted(said: _Sentence, known: _Source) -> list[bool]:
    """Per content word: whether it has a neighbour with which it stands together in the source."""
    words = said.stems
    return [
        any((word, other) in known.pairs for other in words[max(0, i - STEP) : i + STEP + 1])
        for i, word in enumerate(words)
    ]


def idling(text: str, source: str) -> float:
    """The share of content words that are idle and not in the source."""
    said, known = _stems(text), _source(source).stems
    return sum(word in IDLE and word not in known for word in said) / len(said) if said else 0.0


def loose_idling(text: str, source: str) -> float:
    """The share of idle words that do not stand as in the source, even if the source has them."""
    known, said = _source(source), _read(text)
    idle = [
        word in IDLE and not rooted
        for one in said
        for word, rooted in zip(one.stems, _rooted(one, known), strict=True)
    ]
    return sum(idle) / len(idle) if idle else 0.0


def novel(text: str, source: str) -> float:
    """The share of content words that are new and not idle."""
    said, known = _stems(text), _source(source).stems
    return sum(word not in known | IDLE for word in said) / len(said) if said else 0.0


def owned(text: str, source: str) -> float:
    """The same, for sentences that keep to the source only; so a copy among sentences on another
    subject scores nothing. A source word with another ending is not new."""
    told = _source(source).stems - IDLE
    known = told | IDLE
    begun = known | {word[:end] for word in known for end in range(_ROOT - 1, len(word))}
    own = count = 0.0
    for said in _read(text):
        new = [word for word in said.stems if word not in begun and not _begins(word, known)]
        shared = sum(word in told for word in said.stems) / max(1, len(said.stems))
        own += ramp(shared, HELD) * len(new)
        count += ramp(shared, HELD) * len(said.stems)
    return own / count if count else 0.0


def _begins(word: str, known: frozenset[str]) -> bool:
    """Whether it begins with a known word."""
    return any(word[:end] in known for end in range(_ROOT, len(word) + 1))


def straying(text: str, source: str) -> float:
    """How far the text uses the source's words for something else: new words and deeds, minus kept
    neighbours and kept verbs. A source verb in another place counts as new."""
    known = _source(source)
    theirs = known.stems | IDLE
    kept, own, count = set[str](), 0, 0
    for said in _read(text):
        for word, verb, rooted in zip(said.stems, said.verbs, _rooted(said, known), strict=True):
            moved = word in known.stems and verb and not rooted
            own += moved or word not in theirs
            count += 1
            if verb and rooted:
                kept.add(word)
    held = len(kept & known.verbs) / max(1, len(known.verbs))
    return own / max(1, count) + deeds(text, source) - tracing(text, source) - held


def deeds(text: str, source: str) -> float:
    """The share of content words that say what is done: verbs that are not idle, and that the
    source has as verbs or not at all."""
    known, roles = _source(source), list(_roles(text))
    told = sum(
        verb and word not in IDLE and (word in known.verbs or word not in known.stems)
        for word, verb in roles
    )
    return told / len(roles) if roles else 0.0


def refrain(texts: Sequence[str]) -> float:
    """The share of repeated runs, with every content word replaced by a gap: the same sentence with
    other words in its slots."""
    runs = [
        run
        for text in texts
        for said in _read(text)
        for run in grams([w if w in CLASS_OF else GAP for w in said.tokens], SKELETON)
    ]
    return 1.0 - len(set(runs)) / len(runs) if runs else 0.0


def moulded(text: str, source: str) -> float:
    """The share of a text that has the shape of the source's sentences: runs of closed classes and
    gaps that occur there too, whatever words fill the gaps. Adverbs are skipped, so that they can't
    hide it. A copy with some of its words exchanged has the shape of all its source."""
    known = {run for shape in _shapes(source) for run in grams(shape, MOULD)}
    shapes = _shapes(text)
    covered = {
        (number, i + step)
        for number, shape in enumerate(shapes)
        for i, run in enumerate(grams(shape, MOULD))
        if run in known
        for step in range(MOULD)
    }
    return len(covered) / max(1, sum(map(len, shapes)))


@lru_cache(maxsize=64)
def _shapes(text: str) -> tuple[tuple[str, ...], ...]:
    """Per sentence: the class of each closed-class word but adverbs, and a gap for any other."""
    told = ([CLASS_OF.get(word, GAP) for word in said.tokens] for said in _read(text))
    return tuple(tuple(kind for kind in kinds if kind != "not") for kinds in told)


def echoing(text: str, source: str) -> float:
    """How far the text repeats the source: its content words stand as there, and it adds none."""
    return tracing(text, source) - 1.5 * novel(text, source) - 0.5 * idling(text, source)


def hollowness(text: str, source: str) -> float:
    """The share of idle content words, reduced by deeds and new words: high for a carrier around
    words of the source."""
    said = deeds(text, source) + novel(text, source)
    return idling(text, source) * (1.0 - ramp(said, SAYING))


def kept(text: str, source: str) -> int:
    """How many of the source's verbs are verbs in the text."""
    known = _source(source)
    return len({word for word, verb in _roles(text) if verb} & known.verbs)


def mixture(text: str, source: str) -> float:
    """The share of words in sentences that mix source words with other words. A copied sentence
    beside one on another subject does not mix."""
    known = _source(source)
    total = mixed = 0.0
    for said in _read(text):
        hits, pairs = _traced(said, known)
        shared = sum(word in known.stems for word in said.stems) / max(1, len(said.stems))
        own = ramp(hits / (pairs + _PRIOR_PAIRS), _COPIED)
        total += len(said.tokens)
        mixed += len(said.tokens) * own * ramp(shared, FOREIGN)
    return mixed / total if total else 0.0


def roles(text: str) -> list[list[tuple[str, bool]]]:
    """Per sentence: each content word's stem, and whether its neighbours or ending make it a
    verb."""
    return [list(zip(said.stems, said.verbs, strict=True)) for said in _read(text)]


def _roles(text: str) -> Iterator[tuple[str, bool]]:
    return (role for said in roles(text) for role in said)


def _parsed(tokens: tuple[str, ...]) -> _Sentence:
    kinds = [EDGE, EDGE, *map(word_class, tokens), EDGE]
    places = [i for i, word in enumerate(tokens) if word not in CLASS_OF]
    verbs = tuple(_verb(*kinds[i : i + 4]) for i in places)
    return _Sentence(tokens, tuple(stem(tokens[i]) for i in places), verbs)


def _verb(early: str, before: str, kind: str, after: str) -> bool:
    """Whether a word is a verb, by its class and those of the two words before it and the one after
    it."""
    if before in NOMINAL:
        return False
    behind_noun = before in OPEN and early in BEFORE_NOUN and after not in AFTER_NOUN
    between = before in VERBAL or after in OBJECTS or (before == "be" and after in AFTER_BE)
    return between or (behind_noun and kind != "-ing") or kind in ("-ed", "-ing")


@dataclass(frozen=True, slots=True)
class Sense:
    """Requirements for a text, or for several read as one: 0 at the first number of each span, 1 at
    the second. Each task sets its own, because a summary is closer to its source than a story."""

    mixed: Span
    idle: Span
    new: Span
    done: Span
    again: Span
    strayed: Span
    kept: Span = (-1.0, 0.0)
    moulded: Span = (2.0, 1.0)

    def worth(self, source: str, *texts: str) -> float:
        """How far the texts say something about the source."""
        text = "\n".join(texts)
        return (
            ramp(mixture(text, source), self.mixed)
            * ramp(loose_idling(text, source), self.idle)
            * ramp(owned(text, source), self.new)
            * ramp(deeds(text, source), self.done)
            * ramp(kept(text, source), self.kept)
            * ramp(refrain(texts), self.again)
            * ramp(moulded(text, source), self.moulded)
        )

    def most(self, source: str, *texts: str) -> float:
        """The highest soundness that the texts can have."""
        strayed = 1.0 - ramp(straying("\n".join(texts), source), self.strayed)
        return STRAYED + (1.0 - STRAYED) * strayed
