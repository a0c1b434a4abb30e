"""Messages on a descriptor: a length of four bytes, then the content."""

from __future__ import annotations

import os

HEAD = 4
_AT_ONCE = 1 << 16
_read, _write = os.read, os.write  # a candidate that patches `os` changes nothing here


def framed(content: bytes) -> bytes:
    """A message as it goes over."""
    return len(content).to_bytes(HEAD, "big") + content


def send(fd: int, content: bytes) -> None:
    """One message."""
    put(fd, framed(content))


def put(fd: int, data: bytes) -> None:
    """All of it, however the kernel cuts it."""
    while data:
        data = data[_write(fd, data) :]


def receive(fd: int) -> bytes:
    """One message. Raises EOFError if the other end is closed."""
    return read(fd, int.from_bytes(read(fd, HEAD), "big"))


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
