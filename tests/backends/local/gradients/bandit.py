"""A bandit of two agents whose best joint action is known, learned as a local run learns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from orchestry.backends.local.batch import Packed, gather
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.trainer import Trainer
from orchestry.core.seeds import derive
from orchestry.core.types import Problem, Tree
from tests.backends.local.gradients.world import (
    LETTERS,
    ROLES,
    TEMPERATURE,
    WORDS,
    crew_of,
    new_trainer,
    played,
    problem,
    saved_model,
)

WORTH = ((0.4, 0.2, 0.3), (0.2, 0.5, 0.1), (1.0, 0.2, 0.3))
"""Of each pair of arms. Who leaves (1, 1) alone loses, so it holds who comes near it."""
BEST, TRAP = (2, 0), (1, 1)
RATE, UPDATES, EPISODES = 2e-3, 80, 8
SOLVED = 0.9
Arms = Sequence[dict[str, int]]
"""By agent, what each letter stands for."""


@dataclass(frozen=True, slots=True)
class Played:
    """One seed's run."""

    start: float
    """The chance of the best joint action before the first update."""
    end: float
    updates: int
    likeliest: tuple[int, int]
    """The joint action that the team comes to most often in the end."""


async def play(seed: int, rate: float, updates: int) -> Played:
    """Learns until the best joint action has a chance of SOLVED, or the updates are spent."""
    arms = _arms(seed)
    with saved_model(seed) as folder:
        trainer = new_trainer(folder, 2, seed, learning_rate=rate, max_grad_norm=1.0)
    best = list[float]()
    for update in range(updates + 1):
        trees = await played(trainer, _problems(seed, arms), derive(seed, update), max_tokens=1)
        one, other = chances(trainer, arms, trees[0])
        best.append(one[BEST[0]] * other[BEST[1]])
        if best[-1] >= SOLVED or update == updates:
            break
        trainer.learn(gather(trees))
    likeliest = one.index(max(one)), other.index(max(other))
    return Played(best[0], best[-1], len(best) - 1, likeliest)


def _arms(seed: int) -> Arms:
    """Every letter is one of three arms, another one for each seed and agent."""
    rng = random.Random(derive(seed, "arms"))
    return [{letter: i % 3 for i, letter in enumerate(rng.sample(LETTERS, 13))} for _ in range(2)]


def _problems(seed: int, arms: Arms) -> list[Problem]:
    """The same bandit for all episodes of an update; no letter at all is worth nothing."""
    table = {
        one + other: WORTH[arms[0][one]][arms[1][other]] for one in LETTERS for other in LETTERS
    }
    one = problem(seed, agents=2, turns=1, score="table", table=table)
    return [one.model_copy(update={"id": f"{seed}-{i}"}) for i in range(EPISODES)]


def chances(trainer: Trainer, arms: Arms, tree: Tree[object]) -> list[list[float]]:
    """Of each agent's three arms, exactly: over all letters that stand for one."""
    crew, turns, found = crew_of(trainer), tree.leaves[0].trajectory.turns, []
    for agent, role in enumerate(ROLES[:2]):
        prompt = next(t.completion.tokens for t in turns if t.agent == role and t.completion.tokens)
        every = Packed(agent, prompt.prompt_ids, tuple((token,) for token in range(len(WORDS))))
        with torch.no_grad():
            logprobs = completion_logprobs(crew.base, crew.adapters, [every], TEMPERATURE)
        letters = arms[agent].items()
        found.append(
            [
                sum(
                    float(logprobs[WORDS.index(letter)].exp())
                    for letter, own in letters
                    if own == arm
                )
                for arm in range(3)
            ]
        )
    return found
