"""The parts of the reward, each a number in [0, 1]; the examples have already been run. Pure.

Every public name counts the same. What is said of it counts as far as it is sound: fluent, about
programs or this one, neither the code over again nor what is said of other names too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import fmean

from orchestry import prose

from . import claims, section
from .examples import Example
from .module import Module, Name
from .vocabulary import WORDS

SIZE: prose.Span = (1, 6)
"""Words of a description that is one."""
LONG: prose.Span = (240, 120)
"""Words of a section, without its examples, that nobody reads to the end."""
FLUENT: prose.Span = (-0.1, 0.3)
"""Fluency of one section: few words prove little, so that the foot of the ramp is below 0."""
FLUENT_WHOLE: prose.Span = (0.1, 0.6)
"""Fluency of all descriptions together."""
GROUNDED: prose.Span = (0.15, 0.4)
COPIED: prose.Span = (0.8, 0.4)
ECHOED: prose.Span = (0.9, 0.6)
UNSHOWN = 0.5
"""What sentences count for where no example shows that they are about what the module does."""
WRONG = 0.1
"""What an example is worth that calls what it documents and says wrongly what comes of it."""


@dataclass(frozen=True)
class Document:
    """What a team said of a module: a section for each name that has one."""

    module: Module
    sections: Mapping[str, section.Section]
    ran: Mapping[str, Sequence[Example]]
    _sound: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, module: Module, texts: Mapping[str, str], ran: Mapping[str, Sequence[Example]]
    ) -> Document:
        names = {name.qualified: name for name in module.names}
        return cls(module, {q: section.read(text, names[q]) for q, text in texts.items()}, ran)

    @cached_property
    def whole(self) -> float:
        """Fluency of all descriptions together: many words prove more than few."""
        said = "\n".join(plain(one.description) for one in self.sections.values())
        return prose.ramp(prose.fluency(said, prose.words(said)), FLUENT_WHOLE)

    def described(self, name: Name) -> float:
        """1 from half of full soundness on."""
        return min(1.0, 2 * self.sound(name))

    def sound(self, name: Name) -> float:
        """How far the description of a name counts; 0 if there is none."""
        if name.qualified not in self._sound:
            self._sound[name.qualified] = self._found_sound(name)
        return self._sound[name.qualified]

    def _found_sound(self, name: Name) -> float:
        said = self.sections.get(name.qualified)
        if said is None or not said.description:
            return 0.0
        text = prose.Text(plain(said.description), self.module.source)
        return (
            self.whole
            * prose.ramp(len(text.tokens), SIZE)
            * prose.ramp(text.fluency, FLUENT)
            * prose.ramp(grounding(text), GROUNDED)
            * prose.ramp(text.copying, COPIED)
            * prose.ramp(self._echoed(name), ECHOED)
            * self._of_its_own(name)
        )

    def _of_its_own(self, name: Name) -> bool:
        """Whether a description has a word more than each other one, beside what things are called;
        sentences with slots that take turns have none."""
        words = {other: {*prose.content(tokens)} for other, tokens in self._masked.items()}
        mine = words.pop(name.qualified)
        return all(mine - other for other in words.values())

    def _echoed(self, name: Name) -> float:
        """The share of a description that stands in that of another name as well, whatever the two
        are called."""
        masked = self._masked
        others = [tokens for other, tokens in masked.items() if other != name.qualified]
        return max((prose.overlap(masked[name.qualified], other) for other in others), default=0.0)

    @cached_property
    def _masked(self) -> dict[str, list[str]]:
        """The words of every description but those that names, parameters and exceptions are called
        by, in any inflection: what is left of a sentence with slots is the same for every name."""
        names = self.module.names
        called = (one for n in names for one in (n.qualified, *n.params, *n.raises))
        own = {*map(prose.stem, prose.words(" ".join(called).replace("_", " ")))}
        found = {}
        for name in names:
            if said := self.sections.get(name.qualified):
                tokens = prose.words(plain(said.description).replace("_", " "))
                found[name.qualified] = [word for word in tokens if prose.stem(word) not in own]
        return found


def parts(document: Document) -> dict[str, float]:
    """The five parts."""
    names = document.module.names
    if not names or not document.sections:
        return dict.fromkeys(("names", "parameters", "examples", "truth", "prose"), 0.0)
    described = [document.described(name) for name in names]
    told = [
        document.described(name) * documented(document, name, param)
        for name in names
        for param in name.params
    ]
    said = {
        "names": fmean(described),
        "parameters": fmean(told or described),
        "truth": fmean(document.described(one) * claimed(document, one).share for one in names),
        "prose": fmean(document.sound(one) * brevity(document, one) for one in names),
    }
    best = shown(document)
    evidence = fmean(value == 1.0 for value in best) if best else 1.0
    counted = {part: (UNSHOWN + (1 - UNSHOWN) * evidence) * value for part, value in said.items()}
    return {**counted, "examples": fmean(best) * honesty(document) if best else counted["truth"]}


def documented(document: Document, name: Name, param: str) -> float:
    """1 for a parameter with an entry of some substance, or that a sentence names in passing."""
    said = document.sections.get(name.qualified)
    if said is None:
        return 0.0
    if param in said.entries:
        others = [text for other, text in said.entries.items() if other != param]
        return float(_tells(said.entries[param], param) and said.entries[param] not in others)
    return float(any(_mentions(one, param, name) for one in prose.sentences(said.description)))


def _tells(entry: str, param: str) -> bool:
    """At least two words, one of them neither a function word nor the parameter itself."""
    words = prose.words(entry)
    return len(words) >= 2 and bool({*prose.content(words)} - {*prose.content([param.lower()])})


def _mentions(sentence: str, param: str, name: Name) -> bool:
    """Whether a sentence of at least as many other words has the parameter, spelt as in the code.

    One that is a function word too (`a`) has to stand in backticks or quotes.
    """
    if not prose.content([param.lower()]):
        return re.search(rf"[`'\"*]{re.escape(param)}[`'\"*]", sentence) is not None
    found = re.findall(r"\w+", sentence)
    return param in found and len(found) >= 2 * len({*found} & {*name.params})


def claimed(document: Document, name: Name) -> claims.Claims:
    """What a section says that can be checked."""
    said = document.sections.get(name.qualified, section.Section())
    ran = document.ran.get(name.qualified, ())
    shown = frozenset(one.raised for one in ran if one.holds and one.raised)
    return claims.check(said, name, shown)


def shown(document: Document) -> list[float]:
    """What the best example of each function and class that does something is worth."""
    best = dict.fromkeys(document.module.shown, 0.0)
    for name, ran in document.ran.items():
        top = name.partition(".")[0]
        if top in best:
            best[top] = max([best[top], *map(worth, ran)])
    return [*best.values()]


def honesty(document: Document) -> float:
    """Half, and half the share of examples that hold; those that say of nothing what comes out
    are left aside."""
    every = [one for ran in document.ran.values() for one in ran if one.shows or not one.holds]
    return 0.5 + 0.5 * fmean(one.holds for one in every) if every else 0.0


def worth(example: Example) -> float:
    """1 for one that holds and shows what its name does; little for a wrong one, 0 for trivia."""
    if not example.tells:
        return 0.0
    return 1.0 if example.holds else WRONG


def brevity(document: Document, name: Name) -> float:
    """1 up to 120 words on a name without the examples, 0 from 240 on."""
    said = document.sections.get(name.qualified)
    return prose.ramp(len(prose.words(said.text)), LONG) if said else 0.0


def grounding(text: prose.Text) -> float:
    """The share of a text's content words that its module has, or that all programs share."""
    known = WORDS | _stems(text.source)
    return len(text.topics & known) / len(text.topics) if text.topics else 0.0


def plain(text: str) -> str:
    """A description without marks of layout."""
    return re.sub(r"[`*#]", "", text)


@lru_cache(maxsize=256)
def _stems(source: str) -> frozenset[str]:
    return frozenset(prose.content(prose.words(source)))
