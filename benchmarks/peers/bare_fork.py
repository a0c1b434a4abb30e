"""Forks of the sandbox's warm interpreter that do nothing: below this no fork server can come.

Started by benchmarks.peers.sandbox with the path of the sandbox's image.py, in the way in which the
sandbox starts its servers. Reads a number of forks per line, answers with a JSON list per line:
pairs of the seconds that the fork took, and the seconds until the child's end was known.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time


def forked() -> tuple[float, float]:
    """One fork, its child's exit, and the wait for it."""
    began = time.perf_counter()
    pid = os.fork()
    if not pid:
        os._exit(0)
    forking = time.perf_counter() - began
    os.waitpid(pid, 0)
    return forking, time.perf_counter() - began


def warm(path: str) -> None:
    """Loads what a server has loaded when it forks, in the same way: forks run no hooks."""
    os.register_at_fork = lambda **hooks: None
    spec = importlib.util.spec_from_file_location("image", path)
    assert spec is not None
    assert spec.loader is not None
    image = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(image)
    image.serve_imports()
    gc.disable()
    gc.collect()
    gc.freeze()


def main() -> None:
    """Answers until its input ends."""
    warm(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps([forked() for _ in range(int(line))]), flush=True)


if __name__ == "__main__":
    main()
