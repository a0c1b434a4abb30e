"""Where an answer ends: at the model's end token, at a stop string, or at its length."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

Ending = Literal["end", "stop", "length"]
UNFINISHED = "\ufffd"
"""What a token decodes to that holds only some bytes of a character."""


class Endings:
    """Tells endings of answers token by token; decodes no more than it must."""

    def __init__(self, tokenizer: Any, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._completes: dict[tuple[int, str], bool] = {}

    def of(self, ids: Sequence[int], max_tokens: int, stop: tuple[str, ...]) -> Ending | None:
        """How the answer ended with its last id, or None. Asked after every id."""
        if ids[-1] in self._end_ids:
            return "end"
        if any(self._stops(ids, string) for string in stop):
            return "stop"
        return "length" if len(ids) >= max_tokens else None

    def text(self, ids: Sequence[int], stop: tuple[str, ...]) -> str:
        """The answer without special tokens, cut before the first stop string."""
        text = self._decode(ids)
        found = [place for string in stop if (place := text.find(string)) >= 0]
        return text[: min(found)] if found else text

    def _stops(self, ids: Sequence[int], stop: str) -> bool:
        """Whether the last id completed the stop string."""
        if not self._may_complete(ids[-1], stop):
            return False
        # Each token holds a byte or more; the one before them keeps a decoder that strips the
        # first space from stripping one of the string.
        tail = ids[-(len(stop.encode()) + 1) :]
        return stop in self._decode(tail) and stop in self._decode(ids)

    def _may_complete(self, token: int, stop: str) -> bool:
        """Whether a stop string can end within this token; true in doubt."""
        known = self._completes.get((token, stop))
        if known is None:
            own = self._decode([token])
            known = stop[-1] in own or UNFINISHED in own or not own or stop[-1].isspace()
            self._completes[token, stop] = known
        return known

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
