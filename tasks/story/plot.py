"""What a story must contain: elements that sentences use, and beats told in order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, zip_longest
from typing import Any

from orchestry import Problem, errors, prose

BESIDES = 2
"""Content words that a sentence says beside the elements it names, else it only lists them."""
NAMED = 0.5
"""What a beat is worth whose words stand there, but not together or not in its place."""
ROW = 3
"""Words of a beat in a row that are the beat itself."""
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
        """Raises TaskError where the problem's data are not those of a story."""
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
        """The share of beats that a sentence only names: their key words, or three of their words,
        with nothing between but closed-class words, as in a slot."""
        said = [prose.content(prose.words(sentence)) for sentence in prose.sentences(text)]
        found = [
            any(_in_a_row(one, stems(beat), stems(keys)) for one in said)
            for beat, keys in zip(self.beats, self.keys, strict=True)
        ]
        return sum(found) / len(found)

    def content(self, text: str, share: int = 1) -> float:
        """Elements and beats in the text, 0.4 to 0.6; a part of so many needs its share of the
        elements."""
        needed = -(-len(self.elements) // share)
        used = min(1.0, (len(self.elements) - len(self.unused(text))) / needed)
        told = self.told(text)
        return 0.4 * used + 0.6 * sum(told) / len(told)


def _in_a_row(said: Sequence[str], beat: Stems, keys: Stems) -> bool:
    """Whether a run of a beat's words has its key words and no other, or three words."""
    runs = [tuple(run) for held, run in groupby(said, beat.__contains__) if held]
    return any(len(run) >= ROW or keys == set(run) for run in runs)


@lru_cache(maxsize=256)  # a story's sentences are asked for element by element, beat by beat
def stems(text: str) -> Stems:
    return frozenset(prose.content(prose.words(text)))


def sentences(text: str) -> Sequence[Stems]:
    return [stems(sentence) for sentence in prose.sentences(text)]
