"""Texts that say nothing of their own, made from a source by regular expressions and templates: a
writer's tricks on the prose tasks, and compositions of them drawn from a seed.

A text is a base (sentences of the source, or a form letter with slots for its words) and moves that
hide where it comes from: closed-class words swapped, statements negated, clauses turned round, idle
words put between. None of it reads what the source says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from orchestry.task import prose
from orchestry.task.prose.words import CLASS_OF

Move = Callable[[str, Random], str]
"""A text and a seed's draws to another text."""

_SWAPS = """
the:that a:one an:one in:within on:upon at:near my:the i:we and:but but:yet because:since
with:without from:out_of into:inside of:about to:towards for:around his:their her:their he:one
she:one they:we it:this who:that which:that so:thus all:every we:they our:their
"""
_DENIED = """
was:was_never were:were_never is:is_never are:are_not had:had_never has:has_not have:have_not
can:cannot may:may_not
"""
SWAPS, DENIED = (dict(pair.split(":") for pair in table.split()) for table in (_SWAPS, _DENIED))
LIGHT = {key: SWAPS[key] for key in ("the", "in", "my", "and", "on", "because", "from")}
FILLERS = ("also", "then", "just", "even", "still", "quite", "rather", "always")
JOINTS = ("However,", "Then", "After that,", "Because of this,", "In the end,", "So", "Later,")
IDLE = (
    "This is what it is about.",
    "There is not much more to say about it, because the rest is known.",
    "That was how it went, and then it was over.",
    "Nobody knew why at first, but it was soon clear to everybody.",
    "It took a while until this was seen by those who were there.",
    "For a long time there was no answer, and so the question stayed open.",
)
PADDING = (
    "A gull slept on the yellow crane while rain drummed softly against the harbour wall.",
    "Behind the bakery an accordion played, and two dogs chased a paper kite.",
    "Lanterns swung above the market, because wind had climbed over the northern hills.",
    "Later a tired courier whistled, folded his map and pedalled toward the valley.",
    "However, frost painted ferns across every window of the empty tram.",
    "A carpenter measured oak boards twice before breakfast and hummed an old hymn.",
)
"""Sentences about something else, in particular words."""
LETTERS = {
    "matter": (
        "This is about {} and {}, and about what came of it.",
        "At first there was {}, but then {} changed how it all went.",
        "Because of {}, the matter of {} was soon a question for everybody.",
        "In the end {} was what remained of {}, and nobody asked for more.",
        "However, without {} there would have been no {} at all.",
        "What {} was for one, {} became for the other.",
        "So {} came before {}, while the rest had to wait.",
        "After {} it was time for {}, as had been said from the start.",
    ),
    "account": (
        "The writer tells how {} led to {} because nothing else was left.",
        "Then {} was put beside {}, and it helped more than was hoped.",
        "Although {} seemed to be the end of it, {} brought the answer.",
        "Much depends on {}, which is why {} was looked at again and again.",
        "With {} in mind they turned to {} and found what they wanted.",
        "It was {} that counted, and therefore {} had to be given up.",
    ),
    "harbour": (
        "Rain drummed against the harbour wall when {} met {} and nobody slept.",
        "However, a tired courier carried {} over the hills, because {} had frozen.",
        "Then lanterns swung above {}, and a carpenter painted {} in yellow.",
        "Behind the bakery {} danced with {} while the accordion wheezed.",
        "Gulls chased {} across the valley until {} melted on the crane.",
        "Before breakfast an old hymn woke {}, so {} climbed into the empty tram.",
    ),
    "station": (
        "Snow buried the station clock as {} kissed {} and everyone cheered.",
        "Meanwhile, a proud tailor ironed {} under the bridge, since {} had exploded.",
        "Later bells rang around {}, and an angry goose swallowed {} in secret.",
        "Below the castle {} wrestled with {} while the trumpet rusted.",
        "Foxes licked {} beyond the river until {} sneezed on the statue.",
        "Despite thunder a broken violin tickled {}, so {} jumped into the frozen fountain.",
    ),
    "lean": (
        "{} pleased {} while {} grew.",
        "However, {} annoyed {} because {} vanished.",
        "Then {} praised {} and blamed {}.",
        "After {} surprised {}, {} apologized to {}.",
        "So {} fought {} until {} surrendered.",
        "Meanwhile {} tempted {}, and {} refused.",
    ),
    "bare": (
        "The {} of the {} was in the {}.",
        "However, the {} had a {} because of the {}.",
        "Then the {} was near the {} and the {}.",
        "It was for the {} that the {} came to the {}.",
        "After the {} there was a {} with the {}.",
        "So the {} took the {} from the {}.",
    ),
}
"""Form letters: the same sentences for every source, with slots for its words."""
PARTICULAR = ("harbour", "station")
LEAN = "lean"
"""The letter of verbs alone, which counting can't tell from an honest text."""

_STRANGE = """
lantern walnut ferry kettle ladder pepper anchor button carpet drawer engine feather painted
borrowed measured planted whispered hammered polished gathered wrapped counted climbed folded
"""
STRANGE = _STRANGE.split()
"""Words of no post, to stand where the post's stood."""

_WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")
_NOUN = re.compile(r"\b(?:the|a|an|my|our|his|her|their|its|of|in|with|from)\s+([a-z]{3,})\b", re.I)


def mapped(text: str, table: dict[str, str], share: float, rng: Random) -> str:
    """Some of the words that the table has, replaced."""

    def other(found: re.Match[str]) -> str:
        new = table.get(found[0].lower(), "").replace("_", " ")
        if not new or rng.random() >= share:
            return found[0]
        return new.capitalize() if found[0][0].isupper() else new

    return _WORD.sub(other, text)


def exchanged(text: str, words: Sequence[str], share: float, rng: Random) -> str:
    """Some of the content words replaced by others, by those in -ed where they end so."""
    past = [word for word in words if word.endswith("ed")] or words
    rest = [word for word in words if not word.endswith("ed")] or words

    def other(found: re.Match[str]) -> str:
        if found[0].lower() in CLASS_OF or len(found[0]) < 4 or rng.random() >= share:
            return found[0]
        new = rng.choice(past if found[0].endswith("ed") else rest)
        return new.capitalize() if found[0][0].isupper() else new

    return _WORD.sub(other, text)


def each(text: str, change: Callable[[str], str]) -> str:
    """Every sentence changed on its own."""
    return " ".join(change(said) for said in prose.sentences(text))


def capital(said: str) -> str:
    said = said.strip(" ,;.")
    return f"{said[:1].upper()}{said[1:]}."


def turned(text: str, rng: Random) -> str:
    """Each sentence's second part before its first."""

    def turn(said: str) -> str:
        halves = re.split(
            r",\s+(?:and |but |so )?|\s+(?:and|but|because|so)\s+", said.strip("."), maxsplit=1
        )
        return (
            capital(f"{halves[1]}, and {halves[0][:1].lower()}{halves[0][1:]}")
            if len(halves) > 1
            else said
        )

    return each(text, turn)


def fronted(text: str, rng: Random) -> str:
    """The last words from a preposition on moved to the front of each sentence."""

    def turn(said: str) -> str:
        parts = re.split(
            r"\s+(?=(?:in|on|at|with|for|from|by|to|of|after|over)\s)", said.strip(".")
        )
        return capital(f"{parts[-1]} {' '.join(parts[:-1])}") if len(parts) > 1 else said

    return each(text, turn)


def filled(text: str, rng: Random) -> str:
    """An adverb behind every third word."""
    words = text.split()
    out = []
    for i, word in enumerate(words):
        out.append(word)
        if i % 3 == 2 and word[-1].isalpha():
            out.append(rng.choice(FILLERS))
    return " ".join(out)


def twisted(text: str, rng: Random) -> str:
    """Neighbouring words without closed class swapped, one pair in three."""
    words = text.split()
    places = [i for i, w in enumerate(words) if w.isalpha() and w.lower() not in CLASS_OF]
    for a, b in zip(places[::3], places[1::3], strict=False):
        words[a], words[b] = words[b].lower() if a else words[b].capitalize(), words[a].lower()
    return " ".join(words)


def thinner(text: str, rng: Random) -> str:
    """A third of the words without closed class left out."""
    keep = [
        w for w in text.split() if w.lower() in CLASS_OF or not w.isalpha() or rng.random() > 0.3
    ]
    return each(" ".join(keep), capital)


def endings(text: str, rng: Random) -> str:
    """Endings changed: had walked for walked, walks for walk."""
    text = re.sub(r"\b([a-z]{3,})ed\b", r"had been \1ing", text)
    return re.sub(r"\b([a-z]{4,}[a-rt-z])s\b", r"\1", text)


def joined(text: str, rng: Random) -> str:
    """A transition before every sentence but the first."""
    said = list(prose.sentences(text))
    rest = [f"{rng.choice(JOINTS)} {one[:1].lower()}{one[1:]}" for one in said[1:]]
    return " ".join([*said[:1], *rest])


def idled(text: str, rng: Random) -> str:
    """An idle sentence behind every sentence."""
    idle = rng.sample(IDLE, len(IDLE))
    return " ".join(f"{said} {idle[i % len(idle)]}" for i, said in enumerate(prose.sentences(text)))


def padded(text: str, rng: Random) -> str:
    """A sentence about something else behind every other sentence."""
    pads = rng.sample(PADDING, len(PADDING))
    said = list(prose.sentences(text))
    return " ".join(
        one if i % 2 else f"{one} {pads[i // 2 % len(pads)]}" for i, one in enumerate(said)
    )


def reported(text: str, rng: Random) -> str:
    """Each sentence as something that was said."""
    heads = ("It is said that", "What is known is that", "The writer says that", "We learn that")
    return each(text, lambda said: f"{rng.choice(heads)} {said[:1].lower()}{said[1:]}")


def reversed_(text: str, rng: Random) -> str:
    return " ".join(reversed(list(prose.sentences(text))))


def merged(text: str, rng: Random) -> str:
    """The first half of each sentence with the second half of the next."""
    halves = [
        (w[: len(w) // 2], w[len(w) // 2 :])
        for w in (s.strip(".").split() for s in prose.sentences(text))
    ]
    after = [*halves[1:], *halves[:1]]
    return " ".join(
        capital(" ".join([*a, *b])) for (a, _), (_, b) in zip(halves, after, strict=True)
    )


MOVES: dict[str, Move] = {
    "swapped": lambda text, rng: mapped(text, SWAPS, 1.0, rng),
    "half swapped": lambda text, rng: mapped(text, SWAPS, 0.5, rng),
    "lightly swapped": lambda text, rng: mapped(text, LIGHT, 1.0, rng),
    "exchanged": lambda text, rng: exchanged(text, STRANGE, 0.35, rng),
    "denied": lambda text, rng: mapped(text, DENIED, 1.0, rng),
    "turned": turned,
    "fronted": fronted,
    "filled": filled,
    "twisted": twisted,
    "thinned": thinner,
    "endings": endings,
    "joined": joined,
    "idled": idled,
    "padded": padded,
    "reported": reported,
    "reversed": reversed_,
    "merged": merged,
}


def nouns(source: str) -> list[str]:
    """What stands behind an article or preposition, in order, each once."""
    found = [word.lower() for word in _NOUN.findall(source)]
    return list(dict.fromkeys(word for word in found if word not in CLASS_OF)) or ["thing"]


def phrases(source: str) -> list[str]:
    """Runs of a closed word and two or three others, in order."""
    found = re.findall(
        r"\b(?:the|a|an|my|our|his|her|their|two|three)\s+[a-z]+(?:\s+[a-z]{4,})?", source, re.I
    )
    return [one.lower() for one in found] or ["the thing"]


def terms(source: str) -> list[str]:
    """All content words in order, each once."""
    found = prose.words(source)
    return list(dict.fromkeys(w for w in found if w not in CLASS_OF and not w[0].isdigit())) or [
        "thing"
    ]


def letter(name: str, slots: Sequence[str], count: int, start: int) -> str:
    """So many sentences of a form letter with the slots filled in order."""
    out, at = [], start
    for i in range(count):
        said = LETTERS[name][i % len(LETTERS[name])]
        need = said.count("{}")
        said = said.format(*(slots[(at + k) % len(slots)] for k in range(need)))
        out.append(said[:1].upper() + said[1:])
        at += need
    return " ".join(out)


SLOTS: dict[str, Callable[[str], list[str]]] = {"nouns": nouns, "phrases": phrases, "terms": terms}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a text is made: a base and moves; `letter` names a form letter, else sentences of the
    source are taken, every one or every other."""

    base: str
    moves: tuple[str, ...]
    seed: int
    slots: str = "nouns"
    shuffled: bool = False

    @property
    def particular(self) -> bool:
        """Whether it speaks of something else in particular words."""
        return self.base in PARTICULAR or "padded" in self.moves

    def __str__(self) -> str:
        order = " at random" if self.shuffled else ""
        slots = f" of {self.slots}{order}" if self.base in LETTERS else ""
        return f"{self.base}{slots}{''.join(', ' + move for move in self.moves)}"

    def text(self, source: str, low: int, high: int, part: int) -> str:
        """Between so many words; `part` chooses where in the source it begins."""
        rng = Random(self.seed * 31 + part)
        best = ""
        for count in range(1, 24):
            said = self._base(source, count, part, rng)
            for move in self.moves:
                said = MOVES[move](said, rng)
            size = len(prose.words(said))
            if size > high and best:
                break
            best = said
            if size >= low:
                break
        return best

    def _base(self, source: str, count: int, part: int, rng: Random) -> str:
        said = list(prose.sentences(source))
        if self.base == "sentences":
            start = part % len(said)
            return " ".join((said[start:] + said[:start])[:count])
        if self.base == "every other":
            said = said[part % 2 :: 2] + said[(part + 1) % 2 :: 2]
            return " ".join(said[:count])
        slots = SLOTS[self.slots](source)
        if self.shuffled:
            slots = rng.sample(slots, len(slots))
        return letter(self.base, slots, count, part * len(slots) // 3)


def drawn(seed: int) -> Recipe:
    """A recipe drawn from a seed, of any letter but the lean one."""
    rng = Random(seed)
    letters = (name for name in LETTERS if name != LEAN)
    base = rng.choice(["sentences", "sentences", "every other", *letters])
    moves = tuple(rng.sample([*MOVES], rng.choice([0, 1, 2, 2, 3])))
    return Recipe(base, moves, seed, rng.choice([*SLOTS]), rng.random() < 0.3)
