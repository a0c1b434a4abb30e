"""Words in an order that says nothing: what tricks on writing tasks are made of."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from orchestry.task import prose
from orchestry.task.prose.fluency import word_class
from orchestry.task.prose.words import CLASS_OF

_WORD = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")


def shuffled(words: Sequence[str], count: int, seed: int) -> str:
    """So many of the words, or all, as one sentence in an order drawn from the seed."""
    return " ".join(random.Random(seed).sample(words, min(count, len(words)))).capitalize() + "."


def in_sentences(words: Sequence[str], count: int, seed: int) -> str:
    """So many sentences of nine of the words each."""
    return " ".join(shuffled(words, 9, 100 * seed + number) for number in range(count))


def thinned(text: str) -> str:
    """A text without every fourth word."""
    return " ".join(word for i, word in enumerate(text.split()) if i % 4 != 3)


def refilled(text: str, source: str, seed: int) -> str:
    """Sound sentences that say nothing: each content word of the text is replaced by one of the
    source's of the same class, drawn from the seed."""
    rng = random.Random(seed)
    stock: dict[str, list[str]] = {}
    for word in sorted(set(prose.words(source)) - set(CLASS_OF)):
        stock.setdefault(word_class(word), []).append(word)

    def other(found: re.Match[str]) -> str:
        word = found[0].lower()
        if word in CLASS_OF or not stock:
            return found[0]
        new = rng.choice(stock.get(word_class(word)) or stock.get("other") or [word])
        return new.capitalize() if found[0][0].isupper() else new

    return _WORD.sub(other, text)
