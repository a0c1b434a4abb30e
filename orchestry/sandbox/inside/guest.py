"""The candidate's side inside CPython for WASI: an interpreter that serves one run and ends.

It has the standard streams and nothing else, and they lead nowhere: the host answers pread and
pwrite alone, where the offset is a channel. No signal, thread or process exists here, so nothing
but the end of the whole run stops a call.
"""

from __future__ import annotations

import os
import random
import sys

from orchestry.sandbox.inside.candidate import answer_calls, answer_test
from orchestry.sandbox.inside.tagged import loads
from orchestry.sandbox.inside.tester import run_test
from orchestry.sandbox.inside.wire import HEAD, framed

INBOX, RECORDS, PEER = 1, 3, 4
"""Channels: what comes in, what is said to the host, what is said to the instance beside."""
_IN, _OUT = 0, 1  # descriptors
_MOST = 1 << 16


def main() -> None:
    """Reads one job and answers it."""
    os.environ.clear()
    random.seed(0)  # verdicts repeat
    read, write = os.pread, os.pwrite  # a candidate can't swap what is kept here

    def receive() -> bytes:
        return _exactly(int.from_bytes(_exactly(HEAD), "big"))

    def _exactly(size: int) -> bytes:
        parts = []
        while size:
            part = read(_IN, min(size, _MOST), INBOX)
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def send(channel: int, content: bytes) -> None:
        data = framed(content)
        while data:
            data = data[write(_OUT, data[:_MOST], channel) :]

    def ask(args: bytes) -> bytes:
        send(PEER, args)
        return receive()

    def say(record: bytes) -> None:
        send(PEER if peer else RECORDS, record)

    for name in [name for name in sys.modules if name.startswith("orchestry")]:
        del sys.modules[name]  # a candidate has no business with them
    job = loads(receive())
    peer = "calls" not in job and "test" not in job
    sys.setrecursionlimit(job["recursion"])
    if "test" in job:
        run_test(job, ask, say)
    elif peer:
        answer_test(job, receive, say)
    else:
        answer_calls(job, say)
