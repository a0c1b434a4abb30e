"""The simulated run: answers that keep to a schema most times, and scores that tie or do not."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from orchestry.backends.simulated import Rewards, Simulated
from orchestry.core.config import resolve
from orchestry.core.types import ROOT, Completion, Message, Problem, Rate, Request, Trajectory, Turn
from orchestry.engine.run import prepare
from orchestry.judge import prompt as rating

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
SETS = ("task=words", f"task_path=[{TASKS}]", "provider.name=fake")
PRICES = ("prices.fake-1.input=1", "prices.fake-1.output=5")
OWN = ("judge.provider.name=fake", "judge.provider.model=wise")


def simulated(*sets: str) -> Simulated:
    plan = prepare(resolve([], [*SETS, *PRICES, *sets]), environ={}, need_key=False)
    return Simulated(plan.backend, Random(0), 1.0)


def verdict(max_tokens: int, model: str = "fake-1") -> Request:
    return Request(
        agent="judge",
        purpose="judge",
        model=model,
        messages=(Message(role="user", content="rate these"),),
        max_tokens=max_tokens,
        response_schema=rating.schema(3),
    )


async def test_most_verdicts_can_be_read_and_those_cut_off_can_not() -> None:
    policy = simulated()
    texts = [one.text for (one,) in await policy.sample([verdict(1024)] * 200, 1)]
    good = [text for text in texts if text.endswith("}}")]
    assert 0.7 * len(texts) < len(good)
    assert all(set(json.loads(text)) == {"A", "B", "C"} for text in good)
    short = [one for (one,) in await policy.sample([verdict(16)] * 20, 1)]
    assert {one.output_tokens for one in short} == {16}
    assert not any(one.text.endswith("}}") for one in short)


async def test_the_critic_pays_its_own_price_into_the_same_books() -> None:
    policy = simulated(*OWN, "prices.wise.input=0", "prices.wise.output=100")
    await policy.critic().sample([verdict(1024, "wise")], 1)
    tally = policy.books.tallies["judge", "judge"]
    assert tally.calls == policy.books.calls("judge") == 1
    assert tally.usd == 100e-6 * tally.output_tokens
    assert policy.books.spent["judge"] >= tally.usd > 0


async def test_an_agents_moves_change_the_score_or_never_do() -> None:
    """And somebody's always do."""
    kinds = set()
    for seed in range(40):
        rewards = Rewards(Random(seed), ["a", "b"])
        found = [await scores(rewards.of_episode(), agent) for agent in ("a", "b")]
        kinds.add(tuple(len(set(each)) == 1 for each in found))
    assert kinds == {(True, False), (False, True), (False, False)}


async def scores(rate: Rate, agent: str) -> list[float]:
    root = Trajectory(ROOT, Problem(id="p", prompt=""), 0, ("root", -1))
    turn = Turn(agent=agent, messages=(), completion=Completion(text="", model="m"))
    nodes = [root.extend(index, (agent, index), [turn]) for index in range(12)]
    return [score.total for score in await rate(nodes)]
