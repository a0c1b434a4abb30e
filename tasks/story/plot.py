"""What a story must contain: elements that sentences use, and beats told in order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from statistics import fmean
from typing import Any

from orchestry import Problem, errors, prose

BESIDES = 2
"""Content words that a sentence says beside the elements it names, else it only lists them."""
NAMED = 0.5
"""What a beat is worth whose words stand there, but not together or not in its place."""
MOST_PARTS = 3
"""Parts that a story is written in at most: each needs a beat."""
Stems = frozenset[str]


@dataclass(frozen=True, slots=True)
class Plot:
    """The elements and beats of a premise; a beat is known by its key words."""

    elements: tuple[str, ...]
    beats: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, problem: Problem) -> Plot:
        """Raises TaskError if the problem's data are not those of a story."""
        try:
            data: Any = problem.data
            elements = (*data["characters"], data["object"], data["place"])
            beats, keys = zip(*data["beats"], strict=True)
            plot = cls(elements, beats, keys)
            if len(beats) < MOST_PARTS or not all(map(stems, (*elements, *keys))):
                raise ValueError(f"a beat or an element has no word, or beats are {len(beats)}")
        except (KeyError, TypeError, ValueError) as error:
            raise errors.TaskError(
                f"problem '{problem.id}' is no premise of a story ({errors.reason(error)}): give "
                "its data characters, object, place, and at least three beats, each with key words"
            ) from None
        return plot

    def part(self, index: int, of: int) -> Plot:
        """The same elements with the beats of one part of so many."""
        chosen = [i for i in range(len(self.beats)) if i * of // len(self.beats) == index]
        return Plot(
            self.elements, tuple(self.beats[i] for i in chosen), tuple(self.keys[i] for i in chosen)
        )

    def unused(self, text: str) -> list[str]:
        """The elements that no sentence of the text uses."""
        named = [stems(element) for element in self.elements]
        every = frozenset[str]().union(*named)
        saying = [said for said in sentences(text) if len(said - every) >= BESIDES]
        return [
            element
            for element, wanted in zip(self.elements, named, strict=True)
            if not any(wanted <= said for said in saying)
        ]

    def told(self, text: str) -> list[float]:
        """How far each beat is told: 1 where its key words stand in two neighbouring sentences
        after those of the beat before it; up to `NAMED` for the share of them that stand anywhere.
        """
        said = sentences(text)
        windows = [one | other for one, other in zip_longest(said, said[1:], fillvalue=Stems())]
        place, found = 0, []
        for wanted in map(stems, self.keys):
            later = (i for i in range(place, len(windows)) if wanted <= windows[i])
            if (here := next(later, None)) is not None:
                place = here + 1
                found.append(1.0)
                continue
            most = max((len(wanted & window) for window in windows), default=0)
            found.append(NAMED * most / len(wanted))
        return found

    def named(self, text: str) -> float:
        """The share of events that are only named. The sentence that has most of an event's words
        has them in a row, as in a slot, and none of them says what is done."""
        said, every = prose.roles(text), stems(" ".join(self.elements))
        return fmean(_slotted(said, stems(beat), every) for beat in self.beats)

    def content(self, text: str, share: int = 1) -> float:
        """Elements and beats in the text, 0.4 to 0.6; a part of so many needs its share of the
        elements."""
        needed = -(-len(self.elements) // share)
        used = min(1.0, (len(self.elements) - len(self.unused(text))) / needed)
        told = self.told(text)
        return 0.4 * used + 0.6 * sum(told) / len(told)


def _slotted(said: Sequence[Sequence[tuple[str, bool]]], beat: Stems, elements: Stems) -> bool:
    """A sentence that has none of a beat's words but elements says nothing of the beat."""
    rows = [
        [(place, verb) for place, (word, verb) in enumerate(one) if word in beat]
        for one in said
        if any(word in beat - elements for word, _ in one)
    ]
    most = max(map(len, rows), default=0)
    return most > 1 and all(_in_a_row(row) for row in rows if len(row) == most)


def _in_a_row(row: Sequence[tuple[int, bool]]) -> bool:
    return row[-1][0] - row[0][0] == len(row) - 1 and not any(verb for _, verb in row)


@lru_cache(maxsize=256)  # a story's sentences are asked for element by element, beat by beat
def stems(text: str) -> Stems:
    return frozenset(prose.content(prose.words(text)))


def sentences(text: str) -> Sequence[Stems]:
    return [stems(sentence) for sentence in prose.sentences(text)]
