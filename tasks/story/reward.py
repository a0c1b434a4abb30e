"""The three parts of the reward, one an agent's own work: draft, revision, telling.

Each is a product of what must hold at once, a number in [0, 1] without cliffs, by counting alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestry import Problem, prose

from .craft import coherence, polish
from .options import Options
from .plot import Plot

WEIGHTS = {"draft": 0.3, "revision": 0.3, "telling": 0.4}
GROUNDED: prose.Span = (0.02, 0.12)
COPIED: prose.Span = (0.7, 0.3)
"""Of the premise, in a passage: a story is mostly words of its own."""
RETOLD: prose.Span = (0.1, 0.35)
RECITED: prose.Span = (0.9, 0.5)
"""The same of the edited story, in the telling."""
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
    """What was written for a problem so far: a draft and an edited text a round, and the telling."""

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
        return prose.Text(self.telling, "\n".join(self.edits), grounded=RETOLD, copied=RECITED)

    def passage(self, raw: str) -> prose.Text:
        """A draft or edited text beside the premise."""
        return prose.Text(raw, self.problem.prompt, grounded=GROUNDED, copied=COPIED)

    def parts(self) -> dict[str, float]:
        """The three parts; a passage or telling that is yet to come is worth 0."""
        rounds = self.options.rounds
        pairs = enumerate(zip(self.drafts, self.edits, strict=False))
        return {
            "draft": sum(self.worth(i, draft) for i, draft in enumerate(self.drafts)) / rounds,
            "revision": sum(self.revision(i, *pair) for i, pair in pairs) / rounds,
            "telling": self.narration(),
        }

    def worth(self, index: int, raw: str) -> float:
        """How good a passage is in its place: sound, of the right length, coherent, no repeat of
        what came before, and with its share of the plot."""
        rounds, text = self.options.rounds, self.passage(raw)
        size = self.options.min_words // rounds, self.options.max_words // rounds
        before = "\n".join(self.edits[:index])
        return (
            text.soundness
            * prose.in_length(text, *size)
            * coherence(raw, before)
            * prose.ramp(prose.overlap(text.tokens, prose.words(before)), AGAIN)
            * self.plot.part(index, rounds).content(raw, rounds)
        )

    def revision(self, index: int, draft: str, edited: str) -> float:
        """The edited passage's worth and polish, as far as it changes the draft, keeps what the
        draft said well, and does not spoil it."""
        old, new = self.passage(draft), self.passage(edited)
        before, after = self.worth(index, draft), self.worth(index, edited)
        kept = len(old.topics & new.topics) / len(old.topics) if old.topics else 0.0
        return (
            after
            * polish(edited)
            * changed(draft, edited)
            * (1.0 - old.soundness * (1.0 - prose.ramp(kept, KEPT)))
            * prose.ramp(after - before, WORSE)
        )

    def narration(self) -> float:
        """How well the telling keeps the whole plot, in the narrator's own words."""
        text = self.told
        size = self.options.min_told, self.options.max_told
        return (
            text.soundness
            * prose.in_length(text, *size)
            * coherence(self.telling)
            * self.plot.content(self.telling)
        )


def changed(draft: str, edited: str) -> float:
    """How far an edited passage is no copy of its draft."""
    return prose.ramp(prose.overlap(prose.words(edited), prose.words(draft)), CHANGED)
