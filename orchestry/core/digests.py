"""Digests of files by content, so that a copy in another place has the same digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from orchestry.core.files import cache, to_json, write_atomic

SMALL = 1 << 20
"""Bytes of a file that is always read; the digests of larger files are cached."""


def file_digest(path: Path) -> str:
    """BLAKE2b of a file's content, 128 bits in hex; raises OSError if it can't be read."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def text_digest(text: str) -> str:
    """The same for a text."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


def folder_digest(
    folder: Path, files: Iterable[Path], environ: Mapping[str, str] = os.environ
) -> str:
    """One digest over these files of a folder: their relative names and contents.

    A large file is read once; its digest is cached by path, size, times and inode, so a base of
    many GB costs nothing the second time. Raises OSError for a file that can't be read.
    """
    named = sorted((file.relative_to(folder).as_posix(), file) for file in files)
    return text_digest("\n".join(f"{_remembered(file, environ)}  {name}" for name, file in named))


def with_whole(name: str, mark: str, parts: Mapping[str, str]) -> dict[str, str]:
    """The digest of each text, as `NAME MARK PART`, after the digest of all of them, as `NAME`."""
    found = {f"{name}{mark}{part}": text_digest(text) for part, text in sorted(parts.items())}
    return {name: text_digest(to_json(found)), **found}


def remembered(
    kind: str,
    facts: Iterable[object],
    find: Callable[[], str],
    environ: Mapping[str, str] = os.environ,
) -> str:
    """What `find` returned the first time that it was asked for by these facts, from the cache."""
    note = cache(environ) / kind / text_digest("\n".join(map(str, facts)))
    with suppress(OSError):
        return note.read_text(encoding="ascii")
    found = find()
    with suppress(OSError):  # it only saves time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, found.encode("ascii"))
    return found


def _remembered(file: Path, environ: Mapping[str, str]) -> str:
    real = file.resolve()
    stat = real.stat()
    if stat.st_size < SMALL:
        return file_digest(real)
    facts = (real, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_dev, stat.st_ino)
    return remembered("digests", facts, lambda: file_digest(real), environ)
