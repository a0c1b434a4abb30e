"""The candidate's side inside CPython for WASI: an interpreter that serves one run and ends.

It has only the standard streams, which are not connected: the host implements only pread and
pwrite, with the offset as a channel. There are no signals, threads or processes, so only the end of
the whole run stops a call.
"""

from __future__ import annotations

import os
import random
import sys

from orchestry.sandbox.inside.candidate import answer_calls, answer_test
from orchestry.sandbox.inside.objects import Served
from orchestry.sandbox.inside.pytester import run_pytest
from orchestry.sandbox.inside.tagged import loads
from orchestry.sandbox.inside.tester import run_test
from orchestry.sandbox.inside.wire import PREFIX, framed

INBOX, RECORDS, PEER = 1, 3, 4
"""Channels: input, output to the host, output to the other instance."""
_IN, _OUT = 0, 1  # descriptors
_MOST = 1 << 16


def main() -> None:
    """Reads one job and answers it."""
    os.environ.clear()
    random.seed(0)  # outcomes repeat
    read, write = os.pread, os.pwrite  # so that a candidate can't replace it

    def receive() -> bytes:
        return _exactly(int.from_bytes(_exactly(PREFIX), "big"))

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
        del sys.modules[name]  # not for candidates
    job = loads(receive())
    peer = "calls" not in job and "test" not in job
    sys.setrecursionlimit(job["recursion"])
    if "library" in job:
        run_pytest(job, ask, say)
    elif "test" in job:
        run_test(job, ask, say)
    elif "entry_point" not in job:
        Served(job, receive, say).until_told()
    elif peer:
        answer_test(job, receive, say)
    else:
        answer_calls(job, say)
