"""The answer cache: answers kept between runs, in the user cache. It can be deleted at any time.

Values are JSON text inside SQLite. diskcache would unpickle, and so execute, any row marked as
pickled; `_JsonDisk` refuses every row except plain text.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diskcache
from pydantic import ValidationError

from orchestry.core.errors import reason
from orchestry.core.files import cache
from orchestry.core.types import Completion

SIZE_LIMIT = 2**30
"""Size limit in bytes; the oldest answers are dropped first."""
PER_TRANSACTION = 32
"""Answers per transaction; batches take half the time of single writes."""
_MODE_RAW = 1


class _JsonDisk(diskcache.Disk):
    """Text in the database itself: no pickle, and no file whose name a foreign row could choose."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> str:
        if mode != _MODE_RAW or not isinstance(value, str):
            raise ValueError("it is not text")
        return value

    def remove(self, file_path: str) -> None:
        """Removes nothing: a file name in a foreign row is not ours."""


class AnswerCache:
    """Completions by request key. `on_warn` gets one line per kind of problem.

    Puts are batched; `close` writes the last ones. A disk error turns the cache off; the journal
    has the answers anyway.
    """

    def __init__(self, folder: Path, on_warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._on_warn = on_warn
        self._batch: dict[str, str] = {}
        self._cache: Any = None
        try:
            self._cache = _open(folder)
        except (OSError, sqlite3.Error) as error:
            self._turn_off(error)

    def get(self, key: str) -> Completion | None:
        """The answer under a key; a damaged one is deleted and counts as missing."""
        if self._cache is None:
            return None
        try:
            text = self._batch.get(key) or self._cache.get(key)
            return None if text is None else Completion.model_validate_json(text)
        except (ValidationError, ValueError) as error:
            self._drop(key, error)
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            self._turn_off(error)
        return None

    def put(self, key: str, completion: Completion) -> None:
        """Keeps an answer."""
        if self._cache is None:
            return
        self._batch[key] = completion.model_dump_json()
        if len(self._batch) >= PER_TRANSACTION:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def _flush(self) -> None:
        if self._cache is None or not self._batch:
            return
        try:
            with self._cache.transact():
                for key, text in self._batch.items():
                    self._cache.set(key, text)
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            self._turn_off(error)
        self._batch.clear()

    def _drop(self, key: str, error: Exception) -> None:
        self._on_warn(
            f"the cached answer {key} in {self._folder} is damaged and was dropped "
            f"({reason(error)}); it is asked for again"
        )
        self._batch.pop(key, None)
        try:
            assert self._cache is not None
            self._cache.delete(key)
        except (OSError, sqlite3.Error, diskcache.Timeout) as trouble:
            self._turn_off(trouble)

    def _turn_off(self, error: Exception) -> None:
        if self._cache is not None:
            with contextlib.suppress(OSError, sqlite3.Error):
                self._cache.close()
        self._cache = None
        self._on_warn(
            f"the answer cache {self._folder} can't be used ({error}): the run continues without "
            "it; free space there, or set cache.dir to another folder"
        )


def default_folder() -> Path:
    """Answers in the user's cache."""
    return cache() / "answers"


def _open(folder: Path) -> Any:
    """WAL and no fsync: after a power failure the newest answers may have to be paid again, but
    none is wrong."""
    cache: Any = diskcache.Cache
    return cache(
        str(folder),
        disk_min_file_size=SIZE_LIMIT,
        timeout=2,
        disk=_JsonDisk,
        size_limit=SIZE_LIMIT,
        eviction_policy="least-recently-stored",
        sqlite_journal_mode="wal",
        sqlite_synchronous=0,
    )
