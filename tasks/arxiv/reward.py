"""The five parts of the reward, each a number in [0, 1], scaled by how far the pair is sound.

After the arXiv reward of MAGRPO (Liu et al. 2025, arXiv:2508.04652): lengths, length ratio,
unique-word ratio, style, where a level that fails stops the sum. Here a level opens the next in
proportion, all count as far as both texts are sound (`orchestry.prose`), and a fifth part asks
whether each agent wrote of its own half of the abstract. README.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestry import prose

from .options import Options

WEIGHTS = {"length": 0.5, "ratio": 1.0, "words": 0.5, "coverage": 0.5, "style": 1.0}
"""MAGRPO's, but for `coverage`."""
GROUNDED: prose.Span = (0.1, 0.35)
COPIED: prose.Span = (0.7, 0.3)
"""An expansion brings more words of its own than a summary, and quotes less."""
AGREED: prose.Span = (0.35, 0.46)
"""Neighbouring words that stand together in the abstract too: of random ones a quarter do."""
QUOTED: prose.Span = (0.3, 0.05)
"""Share of a text's words in quotations of the abstract, whatever stands around them."""
TRACED: prose.Span = (0.75, 0.6)
"""Share of neighbouring content words that stand together in the abstract too."""
SENSE = prose.Sense(
    mixed=(0.4, 0.6),
    idle=(0.45, 0.32),
    new=(0.0, 0.08),
    done=(0.06, 0.11),
    kept=(0.0, 2.0),
    again=(0.5, 0.33),
    strayed=(0.05, 0.2),
    moulded=(0.45, 0.25),
)
"""What is asked of a pair read as one text."""
COVERED: prose.Span = (0.1, 0.5)
"""Share of the content words of its half of the abstract that a text takes up."""


def text(raw: str, abstract: str) -> prose.Text:
    """One agent's text beside the abstract."""
    return prose.Text(
        raw,
        abstract,
        grounded=GROUNDED,
        copied=COPIED,
        agreed=AGREED,
        quoted=QUOTED,
        traced=TRACED,
    )


def parts(background: prose.Text, method: prose.Text, options: Options) -> dict[str, float]:
    """The five parts of a pair, each opened by those before it and scaled by soundness."""
    low, high = options.min_words, options.max_words
    levels = {
        "length": prose.in_length(background, low, high) * prose.in_length(method, low, high),
        "ratio": prose.plateau(prose.ratio(background, method), options.ratio),
        "words": prose.plateau(prose.variety(background, method), options.unique),
        "coverage": sum(covered(background, method)) / 2,
        "style": style(background, method, options),
    }
    if levels["length"] == 0.0:
        return dict.fromkeys(levels, 0.0)
    return prose.opened(levels, prose.pair_soundness(background, method, SENSE))


def covered(background: prose.Text, method: prose.Text) -> tuple[float, float]:
    """How far each text takes up its half of the abstract: the first the sentences up to the
    middle, where background stands, the second those after it."""
    sentences = list(prose.sentences(background.source))
    middle = (len(sentences) + 1) // 2
    first, second = " ".join(sentences[:middle]), " ".join(sentences[middle:])
    return _taken_up(background, first), _taken_up(method, second or first)


def _taken_up(text: prose.Text, half: str) -> float:
    wanted = frozenset(prose.content(prose.words(half)))
    return prose.ramp(len(text.topics & wanted) / len(wanted), COVERED) if wanted else 0.0


def style(background: prose.Text, method: prose.Text, options: Options) -> float:
    """0.4 for transitions in either text, 0.6 for words in common."""
    joined = sum(prose.transitions(text.tokens) for text in (background, method)) / 2
    common = min(1.0, prose.jaccard(background, method) / options.jaccard)
    return 0.4 * joined + 0.6 * common


def tags(background: prose.Text, method: prose.Text, found: Mapping[str, float]) -> list[str]:
    """What is counted over a run's leaves."""
    holds = {
        "sound": prose.pair_soundness(background, method, SENSE) >= 0.5,
        "whole": all(value > 1.0 - 1e-9 for value in found.values()),
        "swapped": sum(covered(method, background)) > sum(covered(background, method)),
        **prose.faults(background, method),
    }
    return [tag for tag, held in holds.items() if held]


def remarks(background: prose.Text, method: prose.Text) -> str:
    """What was measured, in prose."""
    pair = (("background", background), ("method", method))
    if empty := [name for name, text in pair if not text.tokens]:
        return f"No words in: {', '.join(empty)}."
    ratio_found = prose.ratio(background, method)
    variety_found = len(method.topics) / max(1, len(background.topics))
    first, second = covered(background, method)
    return " ".join(
        [
            f"The method text has {ratio_found:.1f} times the characters and {variety_found:.1f} "
            "times the content words of the background text; words in common "
            f"{prose.jaccard(background, method):.2f}. The first half of the abstract is taken up "
            f"to {first:.2f}, the second to {second:.2f}.",
            *(prose.remark(name, text, "abstract") for name, text in pair),
        ]
    )
