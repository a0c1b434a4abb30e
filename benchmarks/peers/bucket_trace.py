"""Games of Bucket Brigade, played by upstream's own Python and written down for our tests.

    python -m benchmarks.peers.bucket_trace CHECKOUT

CHECKOUT is a copy of the repository rjwalters/bucket-brigade. Its environment gets our random
numbers in place of its own generator's, and random actions. What came out, night by night, goes
into tests/tasks/bucket_brigade_trace.jsonl, and of every eighth night what one agent sees, as its
trainer flattens it; a test plays the same games with our rules.

One thing is set right: on the first night, upstream's Python takes all houses for safe on the
evening before, so that nobody is paid for fires that are put out on that night. Its Rust, which
its README calls canonical, pays for them, and so do we.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from benchmarks import page
from benchmarks.peers.bucket_speed import module

TRACE = page.ROOT / "tests" / "tasks" / "bucket_brigade_trace.jsonl"
NIGHTS = 40
"""A game without an end is cut off."""
SEEN = 8
"""Nights between two observations."""
_SLOTS = {
    "_extinguish_fires_bernoulli": lambda seen, n: seen["house_idx"],
    "_spread_fires": lambda seen, n: n + 2 * seen["house_idx"] + (seen["neighbor_offset"] > 0),
    "_spark_fires": lambda seen, n: 3 * n + seen["house_idx"],
    "_initialize_houses": lambda seen, n: 3 * n + seen["house_idx"],
}
"""Which of the night's numbers each of upstream's functions takes."""
VARIANTS: tuple[Mapping[str, Any], ...] = (
    {"num_agents": 7},
    {"num_houses": 6, "num_agents": 5},
    {"action_validity_mode": "adjacent_only"},
    {"commitment_mode": "two_phase"},
    {"distance_cost_alpha": 0.3, "reward_other_house_survives": 3.0},
    {"extinguish_mode": "continuous", "suppression_per_worker": 0.3, "num_houses": 12},
    {"penalty_other_house_burns": 2.5, "reward_rest": 0.2, "prob_house_catches_fire": 0.3},
    {
        "prob_house_catches_fire": 0.2,
        "extinguish_mode": "continuous",
        "suppression_per_worker": 0.4,
    },
)
"""Of the scenario `default`."""


class Luck:
    """Stands in for upstream's generator: the number that our rules would take."""

    def __init__(self, houses: int) -> None:
        self._houses = houses
        self.night: tuple[float, ...] = ()

    def random(self) -> float:
        """For the house that the caller is at."""
        caller = sys._getframe(1)
        return self.night[_SLOTS[caller.f_code.co_name](caller.f_locals, self._houses)]


def seen(env: Any, turn: int) -> list[float]:
    """What an agent sees, by turns, as upstream's trainer makes it."""
    sys.modules["bucket_brigade_core"] = MagicMock()  # its Rust: imported, but not used for this
    from bucket_brigade.training.joint_trainer import flatten_dict_obs

    flat = flatten_dict_obs(
        env._get_observation(),
        turn % env.num_agents,
        env.num_agents,
        include_round1_signals=env.scenario.commitment_mode == "two_phase",
    )
    return [round(float(one), 4) for one in flat]


def record(env: Any, luck: Luck, seed: str, game: Any) -> Iterator[dict[str, Any]]:
    """The first evening, then each night's actions and what came of them."""
    chooser = random.Random(seed)
    agents, houses = env.num_agents, env.num_houses
    luck.night = game.draws(seed, -1, houses)
    env.rng = luck
    env.reset()
    env._prev_houses_state = env.houses.copy()
    yield {"houses": env.houses.tolist()}
    import numpy as np

    for night in range(NIGHTS):
        if env.done:
            return
        sizes = (houses, 2, 2)
        acts = [[chooser.randrange(size) for size in sizes] for _ in range(agents)]
        luck.night = game.draws(seed, night, houses)
        said = list[int]()
        if env.scenario.commitment_mode == "two_phase":
            said = [chooser.randrange(2) for _ in range(agents)]
            _, rewards, _, _ = env.step_two_phase(np.array(said), np.array(acts))
        else:
            _, rewards, _, _ = env.step(np.array(acts))
        yield {
            "acts": acts,
            **({"said": said} if said else {}),
            "houses": env.houses.tolist(),
            "rewards": [round(float(one), 4) for one in rewards],
            "done": bool(env.done),
            **({} if night % SEEN else {"seen": seen(env, night // SEEN)}),
        }


def main() -> None:
    """Plays each scenario twice and each variant once, and writes a line per game."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    sys.path.insert(0, str(parser.parse_args().checkout))
    from bucket_brigade.envs import bucket_brigade_env, scenarios_generated

    game = module("game")
    known = {one.name for one in fields(scenarios_generated.Scenario)}
    plays = [(name, {}) for name in scenarios_generated.SCENARIO_REGISTRY for _ in range(2)]
    plays += [("default", change) for change in VARIANTS]
    lines = []
    for number, (name, change) in enumerate(plays):
        assert set(change) <= known, change
        base = vars(scenarios_generated.get_scenario_by_name(name, 4))
        plain = {**base, **change}
        if plain["num_agents"] != 4:  # numbers per agent are the same for all
            plain |= {
                key: value[0] for key, value in base.items() if isinstance(value, list) and value
            }
        env = bucket_brigade_env.BucketBrigadeEnv(scenarios_generated.Scenario(**plain))
        seed = f"trace:{number}"
        nights = [*record(env, Luck(env.num_houses), seed, game)]
        lines.append(
            json.dumps({"scenario": name, "rules": change, "seed": seed, "nights": nights})
        )
    TRACE.write_text("".join(f"{line}\n" for line in lines))
    print(f"{TRACE}: {len(lines)} games")


if __name__ == "__main__":
    main()
