"""The three parts of the reward, one per agent: draft, revision, telling.

Each is a product of what must hold at once, a number in [0, 1] without cliffs, by counting alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from orchestry import Problem, prose

from .craft import coherence, polish
from .options import Options
from .plot import Plot

WEIGHTS = {"draft": 0.3, "revision": 0.3, "telling": 0.4}
GROUNDED: prose.Span = (0.02, 0.12)
COPIED: prose.Span = (0.7, 0.3)
"""Of the premise, in a passage: a story is mostly words of its own."""
AGREED: prose.Span = (0.28, 0.4)
"""Neighbouring words that stand together in the premise too: of random ones a quarter do."""
QUOTED: prose.Span = (0.95, 0.7)
"""Share of the runs of the premise's events that a text repeats, however much it adds."""
TRACED: prose.Span = (0.55, 0.44)
"""Share of neighbouring content words that stand together in the premise too."""
STATED: prose.Span = (0.88, 0.75)
"""Share of the events' neighbouring content words that stand together in a text."""
NAMED: prose.Span = (0.75, 0.4)
"""Share of the events that are only named."""
NEW: prose.Span = (0.12, 0.25)
"""Share of content words that are neither the premise's nor idle."""
DONE: prose.Span = (0.05, 0.1)
"""Share of content words that say what is done."""
RETOLD: prose.Span = (0.1, 0.35)
RECITED: prose.Span = (0.9, 0.5)
"""The same of the edited story, in the telling."""
RETRACED: prose.Span = (0.58, 0.45)
CHANGED: prose.Span = (0.95, 0.6)
"""Share of the edited passage's runs of words that are the draft's: a copy, and a revision."""
KEPT: prose.Span = (0.15, 0.4)
"""Share of the draft's content words that the edited passage keeps."""
WORSE: prose.Span = (-0.5, -0.1)
"""How much an edited passage may lose beside its draft."""
AGAIN: prose.Span = (0.6, 0.2)
"""Share of a passage's runs that earlier passages have."""


@dataclass(frozen=True, slots=True)
class Work:
    """What was written so far: a draft and an edited text a round, and the telling."""

    problem: Problem
    options: Options
    drafts: tuple[str, ...]
    edits: tuple[str, ...]
    telling: str

    @property
    def plot(self) -> Plot:
        return Plot.of(self.problem)

    @property
    def told(self) -> prose.Text:
        """The telling beside the edited story, which is all that the narrator sees."""
        return _beside(self.telling, "\n".join(self.edits), RETOLD, RECITED, RETRACED)

    def passage(self, raw: str) -> prose.Text:
        """A draft or edited text beside the premise."""
        return _beside(raw, self.problem.prompt, GROUNDED, COPIED, TRACED)

    def parts(self) -> dict[str, float]:
        """The three parts; a passage or telling that is yet to come is worth 0."""
        rounds = self.options.rounds
        return {
            "draft": sum(self.worth(i, self.drafts) for i in range(len(self.drafts))) / rounds,
            "revision": sum(self.revision(i) for i in range(len(self.edits))) / rounds,
            "telling": self.narration(),
        }

    def worth(self, index: int, written: tuple[str, ...]) -> float:
        """How good a passage of all that one agent has written is in its place: sound, in agreement
        with the premise as is all before it, of the right length, coherent, no repeat of the story
        so far, and with its share of the plot."""
        rounds, text = self.options.rounds, self.passage(written[index])
        size = self.options.min_words // rounds, self.options.max_words // rounds
        before, so_far = "\n".join(self.edits[:index]), "\n".join(written[: index + 1])
        plot = self.plot.part(index, rounds)
        return (
            text.soundness
            * self._agreement(so_far)
            * self._saying(so_far)
            * self._happening(so_far)
            * prose.in_length(text, *size)
            * coherence(text.raw, before)
            * prose.ramp(prose.overlap(text.tokens, prose.words(before)), AGAIN)
            * _unquoted(text, plot)
            * plot.content(text.raw, rounds)
        )

    def revision(self, index: int) -> float:
        """An edited passage's worth and polish, as far as it changes the draft, keeps what the
        draft said well, and does not spoil it."""
        draft, edited = self.passage(self.drafts[index]), self.passage(self.edits[index])
        before, after = self.worth(index, self.drafts), self.worth(index, self.edits)
        kept = len(draft.topics & edited.topics) / max(1, len(draft.topics))
        return (
            after
            * polish(edited.raw)
            * changed(draft.raw, edited.raw)
            * (1.0 - draft.soundness * (1.0 - prose.ramp(kept, KEPT)))
            * prose.ramp(after - before, WORSE)
        )

    def narration(self) -> float:
        """How well the telling keeps the whole plot, in the narrator's own words."""
        text = self.told
        size = self.options.min_told, self.options.max_told
        return (
            text.soundness
            * self.passage(self.telling).own
            * prose.in_length(text, *size)
            * coherence(self.telling)
            * self._agreement(self.telling)
            * self._saying(self.telling)
            * self._happening(self.telling)
            * _unquoted(text, self.plot)
            * self.plot.content(self.telling)
        )

    def _saying(self, raw: str) -> float:
        """How far a text says something in words of its own, something is done in it, and the
        events are not those of the premise again."""
        premise = self.problem.prompt
        stated = prose.tracing("\n".join(self.plot.beats), raw)
        new, done = prose.novel(raw, premise), prose.deeds(raw, premise)
        return prose.ramp(new, NEW) * prose.ramp(done, DONE) * prose.ramp(stated, STATED)

    def _happening(self, raw: str) -> float:
        """How far the events of the whole plot are told and not only named."""
        return prose.ramp(self.plot.named(raw), NAMED)

    def _agreement(self, raw: str) -> float:
        """How far neighbouring words belong together after the premise."""
        return prose.ramp(self.passage(raw).agreement, AGREED)


@lru_cache(maxsize=32)  # parts, tags and remarks all measure the same few texts
def _beside(
    raw: str, source: str, grounded: prose.Span, copied: prose.Span, traced: prose.Span
) -> prose.Text:
    return prose.Text(raw, source, grounded=grounded, copied=copied, traced=traced)


def changed(draft: str, edited: str) -> float:
    """How far an edited passage is no copy of its draft."""
    return prose.ramp(prose.overlap(prose.words(edited), prose.words(draft)), CHANGED)


def _unquoted(text: prose.Text, plot: Plot) -> float:
    """How far a text says the events in other words than the premise."""
    return prose.ramp(prose.overlap(prose.words(" ".join(plot.beats)), text.tokens), QUOTED)
