"""One run in a plain interpreter of its own: the simplest harness there is, a contestant.

Started by benchmarks.peers.sandbox with `-I -S`. Reads code, entry point and calls as JSON, lowers
its limits, answers with the values as a JSON list. Confines nothing.
"""

from __future__ import annotations

import json
import resource
import sys

CPU_S, MEMORY = 60, 256 << 20


def main() -> None:
    """Runs what stdin says."""
    job = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    names: dict[str, object] = {}
    exec(job["code"], names)
    function = names[job["entry_point"]]
    assert callable(function)
    json.dump([function(*args) for args in job["calls"]], sys.stdout)


if __name__ == "__main__":
    main()
