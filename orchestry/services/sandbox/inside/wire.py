"""Messages on a descriptor: a length of four bytes, then the content."""

from __future__ import annotations

import os

HEAD = 4


def send(fd: int, content: bytes) -> None:
    """All of it, however the kernel cuts it."""
    data = len(content).to_bytes(HEAD, "big") + content
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> bytes:
    """One message. Raises EOFError where the other end is closed."""
    return read(fd, int.from_bytes(read(fd, HEAD), "big"))


def read(fd: int, size: int) -> bytes:
    """Exactly `size` bytes. Raises EOFError where they do not come."""
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
