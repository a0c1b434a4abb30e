"""Our whole path (rollout, groups, log-probabilities, loss, backward) beside autograd of equations
1 and 2 of MAGRPO as they are written; and what drawing records beside what the learner computes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from orchestry.backends.local.batch import Packed, gather
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.sampler import Drawn as Answer
from orchestry.backends.local.sampler import Prompt, Sampler
from orchestry.backends.local.trainer import Crew, Trainer
from orchestry.core.seeds import derive
from orchestry.ext.distil.tuning import Pair, Preferences, Target, answers, preferences
from orchestry.rollout.schedule import Joint
from tests.backends.local.gradients.faults import learned, worst
from tests.backends.local.gradients.formula import Move, Plain, written_out
from tests.backends.local.gradients.world import (
    END_ID,
    ROLES,
    TEMPERATURE,
    WORDS,
    as_if_trained,
    crew_of,
    new_trainer,
    played,
    problem,
    saved_model,
)

MANY = {"micro_tokens": 64}
"""For many micro-batches, where otherwise an agent has one."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Answers drawn in a batch and alone, and largest differences of log-probabilities in nats."""

    answers: int
    learner: float
    """Recorded at drawing, beside the learner's."""
    same: int
    """Answers that came out alike in the batch and alone."""
    batch: float
    """Recorded in the batch, beside alone."""


async def compare(
    seed: int, joint: Joint, agents: int, group: int, turns: int
) -> tuple[float, float, int]:
    """The differences with one micro-batch an agent and with many, and the answers drawn."""
    with saved_model(seed) as folder:
        whole, parts = (
            as_if_trained(new_trainer(folder, agents, seed, learning_rate=0.0, **more), seed)
            for more in ({}, MANY)
        )
        plain = Plain(folder)
    problems = [problem(2 * seed + i, agents=agents, turns=turns) for i in range(2)]
    trees = await played(whole, problems, seed, group=group, joint=joint)
    batch = gather(trees, joint=joint)
    right = plain.gradient(whole, written_out(trees, group if joint == "cross" else None))
    one, many = (worst(learned(trainer, batch), right) for trainer in (whole, parts))
    return one, many, sum(batch.actions.values())


@dataclass(frozen=True, slots=True)
class Fine:
    """Differences of the gradients of fine-tuning from autograd of the losses as written."""

    supervised: float
    preferences: float


def tuned(seed: int, beta: float = 0.3, **settings: Any) -> Fine:
    """Pairs of answers of two agents, some to one prompt; the reference is the team before a step
    that is not small."""
    with saved_model(seed) as folder:
        trainer = as_if_trained(new_trainer(folder, 2, seed, learning_rate=0.0, **settings), seed)
        plain = Plain(folder)
    pairs = _pairs(seed)
    targets = [side for pair in pairs for side in (pair.better, pair.worse)]
    tokens = Counter[str]()
    for one in targets:
        tokens[one.agent] += len(one.ids)
    moves = [replace(_move(one), weight=1.0 / tokens[one.agent]) for one in targets]
    supervised = worst(learned(trainer, answers(targets)), plain.gradient(trainer, moves))
    method = Preferences(trainer, pairs, beta)
    reference = plain.logprobs(trainer, [_move(one) for one in targets])
    _shift(trainer, seed)
    batch = preferences(pairs, method.margins(pairs), beta)
    after = plain.logprobs(trainer, [_move(one) for one in targets])
    gaps = [new - old.detach() for new, old in zip(after, reference, strict=True)]
    actions = Counter(pair.agent for pair in pairs)
    losses = [
        -torch.nn.functional.logsigmoid(beta * (better - worse)) / actions[pair.agent]
        for pair, better, worse in zip(pairs, gaps[::2], gaps[1::2], strict=True)
    ]
    weights = crew_of(trainer).adapters.parameters()
    right = torch.autograd.grad(torch.stack(losses).sum(), weights)
    return Fine(supervised, worst(learned(trainer, batch), list(right)))


def _pairs(seed: int) -> list[Pair]:
    rng = random.Random(derive(seed, "pairs"))

    def ids(most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(END_ID, len(WORDS)) for _ in range(rng.randint(1, most)))

    prompts = [ids(9) for _ in range(3)]
    asked = [(ROLES[number % 2], rng.choice(prompts)) for number in range(7)]
    return [Pair(*(Target(role, prompt, ids(8)) for _ in range(2))) for role, prompt in asked]


def _move(one: Target) -> Move:
    return Move(ROLES.index(one.agent), 0, 0, one.prompt_ids, one.ids, 1.0)


def _shift(trainer: Trainer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in crew_of(trainer).adapters.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data += 0.1 * noise


def draws(dtype: torch.dtype, seeds: int, n: int = 8) -> Drawn:
    """Answers of two agents to prompts of unequal lengths, in one batch and each alone."""
    learner, batch, same, answers = 0.0, 0.0, 0, 0
    for seed in range(seeds):
        with saved_model(seed) as folder:
            crew = crew_of(as_if_trained(new_trainer(folder, 2, seed), seed, dtype))
        asked = [_prompt(seed, agent, length, n) for agent, length in ((0, 3), (1, 40))]
        sampler = Sampler(crew.base, crew.adapters)
        for prompt, together in zip(asked, sampler.draw(asked, n), strict=True):
            learner = max(learner, _from_learner(crew, prompt, together))
            singly = [replace(prompt, seeds=(own,)) for own in prompt.seeds]
            for one, answer in zip(singly, together, strict=True):
                [[alone]] = sampler.draw([one], 1)
                answers += 1
                if alone.ids == answer.ids:
                    same += 1
                    batch = max(batch, _largest(alone.logprobs, answer.logprobs))
    return Drawn(answers, learner, same, batch)


def _prompt(seed: int, agent: int, length: int, n: int) -> Prompt:
    rng = random.Random(derive(seed, agent, "prompt"))
    ids = tuple(rng.randrange(END_ID + 1, len(WORDS)) for _ in range(length))
    seeds = tuple(derive(seed, agent, j) for j in range(n))
    return Prompt(agent, ids, 24, TEMPERATURE, 0.95, (), seeds)


def _from_learner(crew: Crew, prompt: Prompt, answers: Sequence[Answer]) -> float:
    """The largest difference of a token's log-probability at drawing from the learner's."""
    ids = tuple(answer.ids for answer in answers)
    packed = [Packed(prompt.agent_index, prompt.prompt_ids, ids)]
    with torch.no_grad():
        found = completion_logprobs(crew.base, crew.adapters, packed, TEMPERATURE)
    pairs = zip(found, answers, strict=True)
    return max(_largest(mine.tolist(), answer.logprobs) for mine, answer in pairs)


def _largest(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
