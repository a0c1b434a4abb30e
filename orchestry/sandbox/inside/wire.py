"""Messages on a descriptor: a length of four bytes, then the content."""

from __future__ import annotations

import os

PREFIX = 4
_AT_ONCE = 1 << 16
_read, _write = os.read, os.write  # so that a candidate that patches `os` changes nothing here


def framed(content: bytes) -> bytes:
    """A message in its sent form."""
    return len(content).to_bytes(PREFIX, "big") + content


def send(fd: int, content: bytes) -> None:
    """One message."""
    write(fd, framed(content))


def write(fd: int, data: bytes) -> None:
    """Writes all of it, in as many writes as needed."""
    while data:
        data = data[_write(fd, data) :]


def receive(fd: int) -> bytes:
    """One message. Raises EOFError if the other end is closed."""
    return read(fd, int.from_bytes(read(fd, PREFIX), "big"))


def read(fd: int, size: int) -> bytes:
    """Exactly `size` bytes. Raises EOFError if they do not come."""
    part = _read(fd, size) if size <= _AT_ONCE else b""
    if len(part) == size:
        return part
    parts = [part]
    size -= len(part)
    while size:
        part = _read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
