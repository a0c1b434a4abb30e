"""Measures for the rewards of writing tasks: words, fluency, grounding and copying, by counting
alone. No model, no tokenizer; English only.

A task imports it as `from orchestry import prose`.
"""

from __future__ import annotations

from .fluency import bonds, fluency, novelty, shape
from .score import (
    Four,
    PairBounds,
    Positive,
    Share,
    Span,
    Words,
    opened,
    plateau,
    ramp,
    transitions,
)
from .sense import (
    Sense,
    deeds,
    echoing,
    hollowness,
    idling,
    kept,
    loose_idling,
    mixture,
    moulded,
    novel,
    owned,
    refrain,
    roles,
    straying,
    tracing,
)
from .text import Text, faults, in_length, jaccard, overlap, pair_soundness, ratio, remark, variety
from .words import content, sentences, stem, words

__all__ = [
    "Four",
    "PairBounds",
    "Positive",
    "Sense",
    "Share",
    "Span",
    "Text",
    "Words",
    "bonds",
    "content",
    "deeds",
    "echoing",
    "faults",
    "fluency",
    "hollowness",
    "idling",
    "in_length",
    "jaccard",
    "kept",
    "loose_idling",
    "mixture",
    "moulded",
    "novel",
    "novelty",
    "opened",
    "overlap",
    "owned",
    "pair_soundness",
    "plateau",
    "ramp",
    "ratio",
    "refrain",
    "remark",
    "roles",
    "sentences",
    "shape",
    "stem",
    "straying",
    "tracing",
    "transitions",
    "variety",
    "words",
]
