"""Collapses of runs: planted ones are found in time, noise is none, and a resume finds the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.config import RunConfig
from orchestry.core.resolve import leaves
from orchestry.store.collapse import (
    _ADVICE,
    BEST,
    FLAT,
    HALF,
    Collapses,
    Glance,
    collapses,
)
from orchestry.store.journal import Learned
from orchestry.store.progress import Row

EVERY, UPDATES, G = 8, 500, 4
Noise = Callable[[random.Random], list[float]]
"""A run's rewards, one per episode."""


def _config(backend: str = "local", **changes: Any) -> dict[str, Any]:
    sections = {"learn": {"every": EVERY}, "behaviors": {"every": EVERY}}
    return RunConfig.model_validate({"backend": backend, **sections, **changes}).model_dump(
        mode="json", by_alias=True
    )


def _events(entropies: Sequence[float], samples: Sequence[int] = ()) -> list[Learned]:
    """One per entropy, of agent main."""
    return [
        Learned(
            update=number + 1,
            state={
                "samples": samples[number] if samples else 4,
                "by_agent": {"main": {"entropy": entropy}},
            },
            at=0.0,
        )
        for number, entropy in enumerate(entropies)
    ]


def _glances(
    rewards: Sequence[float], lengths: Sequence[float] = (), differ: Sequence[float] = ()
) -> dict[int, Glance]:
    """One per reward, with lengths and shares of samples that differ, by update."""
    found = {}
    for number, reward in enumerate(rewards):
        update = number // EVERY
        sums = {("length", "main"): (2 * lengths[update], 2.0)} if lengths else {}
        sums |= {("variety", "main"): (3 * differ[update], 3.0)} if differ else {}
        found[number] = Glance(reward, False, sums)
    return found


def _told(rewards: Sequence[float], **config: Any) -> dict[str, int]:
    """The kinds of collapse of a run whose other figures stay, by the update at which each was
    told."""
    updates = len(rewards) // EVERY
    found = collapses(_config(**config), _events([0.5] * updates), _glances(rewards))
    return _places(found)


def _places(found: Collapses) -> dict[str, int]:
    return {kind: int(text.split()[3].rstrip(":")) for kind, text in found.told.items()}


def _binomial(rng: random.Random, share: float) -> float:
    return sum(rng.random() < share for _ in range(G)) / G


def _even(share: float) -> Noise:
    return lambda rng: [_binomial(rng, share) for _ in range(UPDATES * EVERY)]


def _by_problem(rng: random.Random) -> list[float]:
    """A bank of 50 problems, most of them easy or hard, in passes of seeded order."""
    shares = [rng.betavariate(0.3, 0.3) for _ in range(50)]
    order = [one for _ in range(UPDATES * EVERY // 50) for one in rng.sample(shares, 50)]
    return [_binomial(rng, share) for share in order]


def _normal(rng: random.Random) -> list[float]:
    return [rng.gauss(0.5, 0.1) for _ in range(UPDATES * EVERY)]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [_even(0.5), _even(0.9), _even(0.02), _by_problem, _normal])
def test_noise_is_called_a_collapse_in_less_than_one_of_fifty_runs(noise: Noise) -> None:
    """Of 500 updates whose reward, entropy, lengths and share of differing samples do not move."""
    runs, called = 60, 0
    for seed in range(runs):
        rng = random.Random(seed)
        entropies, lengths = ([rng.lognormvariate(0, 0.25) for _ in range(UPDATES)] for _ in "ab")
        glances = _glances(noise(rng), lengths)
        called += bool(collapses(_config(), _events(entropies), glances).told)
    assert called / runs < 0.02


@pytest.mark.parametrize(("runs", "within", "share"), [(40, 1.0, 0.7), (40, 1.5, 0.85)])
def test_a_fall_by_two_standard_deviations_is_found_soon(
    runs: int, within: float, share: float
) -> None:
    """Of an update's mean, after 50 updates; windows are of 10."""
    found = 0
    for seed in range(runs):
        rng, after = random.Random(seed), round(BEST[0] * within)
        rewards = [rng.gauss(0.5, 0.1) for _ in range((50 + after) * EVERY)]
        rewards[50 * EVERY :] = [one - 2 * 0.1 / EVERY**0.5 for one in rewards[50 * EVERY :]]
        found += _told(rewards).get("reward", 0) > 50
    assert found / runs >= share


def test_the_sentence_has_the_figures_the_interval_and_what_helps() -> None:
    rewards = [float(n % 2) for n in range(20 * EVERY)] + [n % 8 / 28 for n in range(20 * EVERY)]
    found = collapses(_config(), _events([0.5] * 40), _glances(rewards))
    (text,) = found.told.values()
    assert text.startswith("warning after update 30: reward has fallen from its best: 0.5 over ")
    figures = r"update 20, 0\.125 over the last 10; difference -0\.375 \[-0\.\d+, -0\.\d+\]; what"
    assert re.search(figures, text)
    assert "learn.learning_rate (now 0.0001)" in text
    assert "learn.from" in text
    assert "\n" not in text


def test_a_reward_that_comes_back_is_said_to_have_done_so() -> None:
    rewards = [0.5, 0.6] * 80 + [0.0, 0.1] * 80 + [0.5, 0.6] * 80
    found = collapses(_config(), _events([0.5] * 60), _glances(rewards))
    (said,) = found.said()
    assert said.endswith("; after the last update this no longer holds.")


@pytest.mark.parametrize(
    "changes",
    [
        {"curriculum": "success"},
        {"curriculum": "grade"},
        {"backend": "ppo", "agents": {"agent_1": {"plays": ["self"]}}},
    ],
)
def test_rewards_that_can_not_be_compared_are_not(changes: dict[str, Any]) -> None:
    """Problems that a curriculum chooses, and opponents that learn too."""
    rewards = [0.8, 0.9] * 80 + [0.1, 0.2] * 80
    assert "reward" in _told(rewards)
    if changes.get("backend") != "ppo":
        assert "reward" not in _told(rewards, **changes)
    rows: list[Row] = [{"steps": n, "episode/reward": one} for n, one in enumerate(rewards)]
    assert "reward" in collapses(_config("ppo"), (), {}, rows).told
    if changes.get("backend") == "ppo":
        assert "reward" not in collapses(_config(**changes), (), {}, rows).told


def _falling(high: float, low: float, jitter: float = 0.1) -> list[float]:
    """Two windows of each, around it."""
    steps = [high] * 2 * HALF[0] + [low] * 2 * HALF[0]
    return [one * (1 + jitter * (-1) ** n) for n, one in enumerate(steps)]


def test_each_agents_entropy_and_length_are_watched() -> None:
    steady = [0.5] * EVERY * 20
    events = _events(_falling(0.6, 0.2))
    found = collapses(_config(), events, _glances(steady, _falling(90, 30)))
    assert _places(found) == {"entropy": 14, "length": 14}
    assert (
        "entropy has halved: main 0.612 nats, then 0.268 nats (the first and the last 5 updates; "
        "reward 0.5, then 0.5)" in found.told["entropy"]
    )
    assert "half as long: main 91.8 tokens, then 40.2 tokens" in found.told["length"]
    for event in events:  # another agent, whose entropy stays
        event.state["by_agent"]["aux"] = {"entropy": 0.4}
    again = collapses(_config(), events, _glances(steady))
    assert "aux" not in again.told["entropy"]


def test_a_little_less_is_no_collapse_nor_is_a_fall_within_the_noise() -> None:
    steady = [0.5] * EVERY * 20
    assert not collapses(_config(), _events(_falling(0.6, 0.35)), _glances(steady)).told
    noisy = collapses(_config(), _events(_falling(0.6, 0.28, jitter=0.9)), _glances(steady))
    assert not noisy.told


def test_samples_that_become_alike_are_told_of_served_models() -> None:
    steady, differ = [0.5] * EVERY * 20, _falling(0.9, 0.3)
    found = collapses(_config("api"), _events([]), _glances(steady, differ=differ))
    assert not found.told  # no update, so nothing that could be at fault
    events = [Learned(update=n + 1, state={}, at=0.0) for n in range(20)]
    found = collapses(_config("api"), events, _glances(steady, differ=differ))
    assert _places(found) == {"variety": 14}
    assert "main 92% differ, then 40% differ (" in found.told["variety"]
    local = collapses(_config(), _events([0.5] * 20), _glances(steady, differ=differ))
    assert not local.told  # there the entropy says it


@pytest.mark.parametrize(("reward", "helps"), [(0, "distil"), (0.5, "group_size"), (1, "harder")])
def test_updates_without_a_difference_are_told_once(reward: float, helps: str) -> None:
    samples = [4, 4, 0, 0, 0, 0, 4, 0, 0, 0]
    glances = _glances([reward] * EVERY * 10)
    found = collapses(_config(), _events([0.5] * 10, samples), glances)
    assert _places(found) == {"flat": 2 + FLAT[0]}
    assert f"(reward {reward:.3f})" in found.told["flat"]
    assert helps in found.told["flat"]
    flat = {number: one._replace(flat=True) for number, one in glances.items()}
    events = [Learned(update=n + 1, state={}, at=0.0) for n in range(10)]
    assert _places(collapses(_config("api"), events, flat)) == {"flat": FLAT[0]}


def test_weights_that_only_a_kl_moves_have_flat_groups_too() -> None:
    """With learn.kl no action is left out for want of a difference."""
    events = _events([0.5] * 3)
    for event in events:
        event.state.update(samples=64, skipped=0, flat=1.0)
    assert _places(collapses(_config(), events, _glances([0.5] * 24))) == {"flat": 3}
    events[1].state["flat"] = 0.9
    assert not collapses(_config(), events, _glances([0.5] * 24)).told


def test_a_policy_that_grows_sure_is_no_collapse_unless_it_earns_less() -> None:
    """Of backend ppo, whose entropy always falls."""

    def rows(change: float) -> list[Row]:
        spread = [3.0] * 20 + [0.2] * 20
        return [
            {"steps": 64.0 * n, "learn/entropy": one, "episode/reward": 90 + n % 3 + change * n}
            for n, one in enumerate(spread, 1)
        ]

    assert not collapses(_config("ppo"), (), {}, rows(1.0)).told
    (text,) = collapses(_config("ppo"), (), {}, rows(-0.1)).told.values()
    assert text.startswith("warning after step 1,")
    assert "entropy has halved: the policy 3 nats, then" in text
    assert "ppo.entropy (now 0.01)" in text


_SERIES = st.lists(st.sampled_from([0.0, 0.2, 0.9, 1.0]), min_size=20, max_size=30)


@settings(max_examples=40)
@given(_SERIES, _SERIES, st.integers(0, 20), st.sampled_from(["local", "api"]))
def test_a_resume_goes_on_as_if_there_had_been_no_stop(
    rewards: list[float], figures: list[float], cut: int, backend: str
) -> None:
    """Each sentence comes once, at the same update, and a report has the same ones."""
    events = _events(figures[: len(rewards)])
    series = [reward for reward in rewards for _ in range(EVERY)]
    glances = _glances(series, figures + [0.5] * 60, [*reversed(figures), *[0.5] * 60])
    whole, said = Collapses(_config(backend)), list[str]()
    for event in events:
        said += whole.learned(event, glances)
    part = collapses(_config(backend), events[:cut], glances)
    before = [*part.told.values()]
    after = [text for event in events[cut:] for text in part.learned(event, glances)]
    assert before + after == said
    assert len(whole.told) == len(said)
    assert part.said() == whole.said() == collapses(_config(backend), events, glances).said()


def test_every_key_that_is_advised_exists() -> None:
    known = {key for key, _ in leaves(RunConfig().model_dump(mode="json", by_alias=True))}
    known |= {"agents.ROLE.examples", "weights.PART"}
    for backend, kinds in _ADVICE.items():
        for text in kinds.values():
            named = set(re.findall(r"\b[a-z]+\.[A-Za-z_]+(?:\.[a-z]+)?", text)) - {"rewards.csv"}
            assert named <= known, (backend, named - known)
