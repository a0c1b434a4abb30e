"""Keeps the secrets of this process's environment out of what a candidate says.

Confined code (levels 1 to 3) can't read them, but what it is asked may hold one. At level 4 it is
a process of the same user: it reads this one's environment in `/proc` wherever `hide_process` does
not hold, and files besides. What it returns or raises lands in feedback, logs and the run
directory. What is spelled in another way (reversed, in pieces, encoded) passes: this is no
confinement.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

SUFFIXES = ("_API_KEY", "_TOKEN", "_SECRET", "_KEY", "_PASSWORD")
MIN_CHARS = 8  # what is shorter occurs in honest answers too
MARK = "[secret]"
_PR_SET_DUMPABLE = 4
_SEQUENCES = (list, tuple, set, frozenset)


class Redactor:
    """Replaces the values of variables that are named like secrets, in text and plain values."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        named = {v.strip() for k, v in environ.items() if k.upper().endswith(SUFFIXES)}
        # A secret may hold another one, so the longest is tried first.
        secrets = sorted((s for s in named if len(s) >= MIN_CHARS), key=len, reverse=True)
        never = "(?!)"
        self._text = re.compile("|".join(map(re.escape, secrets)) or never)
        data = b"|".join(re.escape(os.fsencode(secret)) for secret in secrets)
        self._data = re.compile(data or never.encode())

    def text(self, text: str, limit: int) -> str:
        """The first `limit` characters; a secret that the cut would halve goes as a whole."""
        ends = (match.end() for match in self._text.finditer(text) if match.start() < limit)
        return self._text.sub(MARK, text[: max((limit, *ends))])

    def value(self, value: Any, source: bytes = b"\\") -> Any:
        """A plain value with the strings and bytes in it redacted, at any depth.

        It is not searched if the tagged JSON that it came from tells that no secret is in it.
        """
        if b"\\" in source or b'"b"' in source or self._data.search(source):
            return self._value(value)
        return value

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self._text.sub(MARK, value)
        if kind is bytes:
            return self._data.sub(MARK.encode(), value)
        if kind is dict:
            return {self._value(key): self._value(item) for key, item in value.items()}
        if kind in _SEQUENCES:
            return kind(self._value(item) for item in value)
        return value


@functools.cache
def hide_process() -> None:
    """Closes this process's environment and memory to others of its user, where Linux has it.

    Root reads on. A profiler or debugger that is to attach needs root from then on, too.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # no libc to load, or none with prctl
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
