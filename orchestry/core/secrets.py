"""What keeps secrets out of files, logs, messages and feedback.

What a user writes down is refused if it looks like a key. A vendor's error loses what looks like
one. What a model's program returns or raises loses the secrets of this process's environment:
confined code (levels 1 to 3 of the sandbox) can't read them, but what it is asked may hold one, and
at level 4 it is a process of the same user, which reads files and, as root, this environment. What
is spelled in another way (reversed, in pieces, encoded) passes: this is no confinement.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_KEY = re.compile(r"\b(?:sk|pk)-[\w-]{12,}")
_MAYBE_KEY = re.compile(r"\b(?:sk|key|pk)-[\w*.-]{6,}|(?<=Bearer )\S+", re.IGNORECASE)
"""Also keys that a vendor cut short or starred out."""
_SUFFIXES = ("_API_KEY", "_TOKEN", "_SECRET", "_KEY", "PASSWORD", "_STORAGE")
_NAME = re.compile(
    r"(^|[-_])(\w*auth\w*|api-?key|\w*key|\w*token|secret|password|cookie|sig(nature)?|code)([-_]|$)"
)
_LONGEST_VERSION = 20
_MIN_CHARS = 8  # shorter values occur in honest answers too
_MARK = "[secret]"
REFUSED = "_ORCHESTRY_REFUSED_"
"""Before the name of an address in a file .env that was not taken, the environment variable that
says why: whoever would ask there raises it."""
_SEQUENCES = (list, tuple, set, frozenset)


def looks_like_key(text: str) -> bool:
    """Whether a text may contain an API key, so that it must not be shown or written."""
    return _KEY.search(text) is not None


def without_keys(text: str, key: str = "") -> str:
    """A vendor's text without this key or anything that looks like one."""
    return _MAYBE_KEY.sub("***", without_key(text, key))


def without_key(text: str, key: str) -> str:
    """A text without this key."""
    # A shorter one is a placeholder such as "none", no secret.
    return text.replace(key, "***") if len(key) >= 6 else text


def named_secret(name: str) -> bool:
    """Whether a header or a field of an address's query holds a key, by its name."""
    return _NAME.search(name.lower()) is not None


def keys_in_query(url: str) -> list[str]:
    """What an address's query holds under names of keys, or is as long as one.

    >>> keys_in_query("https://h/v1?api-version=2024-10-21&key=abc")
    ['abc']
    """
    found = parse_qsl(urlsplit(url).query)
    return [held for name, held in found if named_secret(name) or len(held) > _LONGEST_VERSION]


def bare_address(url: str) -> str:
    """An address without its secret parts: user, password, query and fragment.

    Raises ValueError for a host that can't be read.
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


class Redactor:
    """Replaces the values of environment variables whose names look secret."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        named = {v.strip() for k, v in environ.items() if k.upper().endswith(_SUFFIXES)}
        # A secret may contain another one, so the longest comes first.
        secrets = sorted((s for s in named if len(s) >= _MIN_CHARS), key=len, reverse=True)
        never = "(?!)"
        self._text = re.compile("|".join(map(re.escape, secrets)) or never)
        data = b"|".join(re.escape(os.fsencode(secret)) for secret in secrets)
        self._data = re.compile(data or never.encode())

    def text(self, text: str, limit: int) -> str:
        """The first `limit` characters; a secret at the cut is removed as a whole."""
        ends = (match.end() for match in self._text.finditer(text) if match.start() < limit)
        return self._text.sub(_MARK, text[: max((limit, *ends))])

    def value(self, value: Any, source: bytes = b"\\") -> Any:
        """A plain value with the strings and bytes in it redacted, at any depth.

        The search is skipped if its tagged JSON shows that it contains no secret.
        """
        if b"\\" in source or b'"b"' in source or self._data.search(source):
            return self._value(value)
        return value

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self._text.sub(_MARK, value)
        if kind is bytes:
            return self._data.sub(_MARK.encode(), value)
        if kind is dict:
            return {self._value(key): self._value(item) for key, item in value.items()}
        if kind in _SEQUENCES:
            return kind(self._value(item) for item in value)
        return value
