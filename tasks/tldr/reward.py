"""The four parts of the reward, each a number in [0, 1], scaled by how far the pair is sound.

After the writing reward of MAGRPO (Liu et al. 2025, arXiv:2508.04652): lengths, length ratio,
unique-word ratio, style, where a level that fails stops the sum. That one is fooled by `so` inside
of words, by shuffled words and by copies. Here a level opens the next in proportion, and all of
them count as far as both texts are sound. README.md says where the numbers differ, and why.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestry import prose

from .options import Options

TRACED: prose.Span = (0.88, 0.75)
"""Share of neighbouring content words that stand together in the post too."""
SENSE = prose.Sense(
    mixed=(0.2, 0.4),
    idle=(0.4, 0.3),
    new=(0.0, 0.06),
    done=(0.04, 0.08),
    again=(0.45, 0.3),
    strayed=(0.25, 0.36),
    moulded=(0.6, 0.35),
)
"""What is asked of a pair read as one text."""


def text(raw: str, post: str) -> prose.Text:
    """One agent's text beside the post."""
    return prose.Text(raw, post, traced=TRACED)


def parts(concise: prose.Text, detailed: prose.Text, options: Options) -> dict[str, float]:
    """The four parts of a pair, each opened by those before it and scaled by soundness."""
    low, high = options.min_words, options.max_words
    levels = {
        "length": prose.in_length(concise, low, high) * prose.in_length(detailed, low, high),
        "ratio": prose.plateau(prose.ratio(concise, detailed), options.ratio),
        "words": prose.ramp(prose.variety(concise, detailed), options.unique),
        "style": style(concise, detailed, options),
    }
    if levels["length"] == 0.0:
        return dict.fromkeys(levels, 0.0)
    return prose.opened(levels, prose.pair_soundness(concise, detailed, SENSE))


def style(concise: prose.Text, detailed: prose.Text, options: Options) -> float:
    """0.4 for transitions, 0.6 for words in common."""
    common = min(1.0, prose.jaccard(concise, detailed) / options.jaccard)
    return 0.4 * prose.transitions(detailed.tokens) + 0.6 * common


def tags(concise: prose.Text, detailed: prose.Text, found: Mapping[str, float]) -> list[str]:
    """What is counted over a run's leaves."""
    holds = {
        "sound": prose.pair_soundness(concise, detailed, SENSE) >= 0.5,
        "whole": all(value > 1.0 - 1e-9 for value in found.values()),
        **prose.faults(concise, detailed),
    }
    return [tag for tag, held in holds.items() if held]


def remarks(concise: prose.Text, detailed: prose.Text) -> str:
    """What was measured, in prose."""
    pair = (("concise", concise), ("detailed", detailed))
    if empty := [name for name, text in pair if not text.tokens]:
        return f"No words in: {', '.join(empty)}."
    ratio_found = prose.ratio(concise, detailed)
    variety_found = len(detailed.topics) / max(1, len(concise.topics))
    return " ".join(
        [
            f"The detailed text has {ratio_found:.1f} times the characters and {variety_found:.1f} "
            "times the content words of the concise one.",
            *(prose.remark(name, text, "post") for name, text in pair),
        ]
    )
