"""What every contestant of the overhead benchmark shares: its arguments, its clock and its report.

Only the standard library: the contestants run in environments of their own.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

MODEL = "claude-haiku-5-5"
MAX_TOKENS = 256
ANSWER = "[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]"
"""What the server answers: the form that DSPy's default adapter asks for; all get the same."""


@dataclass(frozen=True, slots=True)
class Heat:
    """One contestant's run: how many calls to make, and how many at once."""

    url: str
    calls: int
    concurrency: int


def compete(play: Callable[[Heat], int]) -> None:
    """Plays a small heat, then the measured one, and prints its wall clock as JSON.

    The small heat makes lazy imports and first connections happen before the clock starts, for
    every contestant alike. `play` returns how many calls its algorithm must make one after
    another at the least, given its places: the critical path, in calls.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("calls", type=int)
    parser.add_argument("concurrency", type=int)
    heat = Heat(**vars(parser.parse_args()))
    play(Heat(heat.url, 6, 2))
    urllib.request.urlopen(f"{heat.url}/reset", data=b"", timeout=30).close()
    started = time.perf_counter()
    chain = play(heat)
    wall_s = time.perf_counter() - started
    print(json.dumps({"wall_s": wall_s, "chain": chain}))
