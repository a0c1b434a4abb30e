"""Texts and data in the page: each line of text once, and JSON that can't become code."""

from __future__ import annotations

import json
import re
from typing import Any

_UNSAFE = re.compile("[<\u2028\u2029\ud800-\udfff]")
"""`<` could end or nest the element; half a surrogate pair can't be written as UTF-8."""
TEXTS = ("content", "text", "feedback", "judge_feedback")
"""Fields of a record with texts of models and tasks."""


class LineTable:
    """Stores every line once. Observations repeat other agents' messages, so this halves pages."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> list[int]:
        """The numbers of the text's lines, in order."""
        return [self._number(line) for line in text.split("\n")]

    def cut(self, length: int) -> None:
        """Drops all lines after the first `length`."""
        for line in self.all[length:]:
            del self._numbers[line]
        del self.all[length:]

    def _number(self, line: str) -> int:
        number = self._numbers.setdefault(line, len(self.all))
        if number == len(self.all):
            self.all.append(line)
        return number


def numbered(data: Any, lines: LineTable) -> Any:
    """Plain data of a record, with line numbers in place of each text."""
    if isinstance(data, dict):
        return {
            key: lines.add(value)
            if key in TEXTS and isinstance(value, str)
            else numbered(value, lines)
            for key, value in data.items()
        }
    return [numbered(one, lines) for one in data] if isinstance(data, list) else data


def embedded(data: Any) -> str:
    """JSON that is safe in a script element, whatever its texts contain."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda char: f"\\u{ord(char[0]):04x}", text)
