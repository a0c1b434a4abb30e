"""EnvPool's vectors beside ours, in an environment of its own: prints its steps per second.

Its CartPole: another game, with one agent that sees four numbers.
"""

from __future__ import annotations

import json
import sys

import envpool
import numpy as np

from benchmarks.peers.rate import rate


def main(games: int) -> None:
    """Random actions in so many games at once, on one thread."""
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=games, num_threads=1)
    pool.reset()
    acts = np.random.default_rng(0).integers(0, 2, (32, games)).astype(np.int32)

    def play() -> int:
        for one in acts:
            pool.step(one)
        return len(acts) * games

    print(json.dumps(rate(play)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
