"""Policy gradients beside autograd of the written-out formula; faults of others, planted.

Four parts: our whole path (rollout, groups, log-probabilities, loss, backward) against equations 1
and 2 of MAGRPO as they are written; faults that were found in another trainer, planted in the
written-out formula; a bandit with a known optimum; and what was recorded at drawing against what
the learner computes.

    python -m benchmarks.gradients [--seeds N] [--bandits N] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch  # noqa: TID253 - nothing here can be had without it
from transformers.utils import logging as untyped  # noqa: TID253

from benchmarks import page
from benchmarks.gradients_bandit import bandits
from benchmarks.gradients_faults import learned, planted, worst
from benchmarks.gradients_formula import Plain, written_out
from benchmarks.gradients_report import Cell, Drawn, Found, report
from benchmarks.gradients_world import (
    END_ID,
    TEMPERATURE,
    WORDS,
    as_if_trained,
    crew_of,
    new_trainer,
    played,
    problem,
    saved_model,
)
from orchestry.backends.local.crew import Crew
from orchestry.backends.local.groups import gather
from orchestry.backends.local.logprobs import Packed, completion_logprobs
from orchestry.backends.local.sampling import Drawn as Answer
from orchestry.backends.local.sampling import Prompt, Sampler
from orchestry.core.seeds import derive
from orchestry.rollout.beam import Joint

GROUPS: dict[Joint, dict[int, int]] = {"aligned": {2: 4, 3: 4}, "cross": {2: 3, 3: 2}}
"""Samples an agent, by number of agents; `cross` combines all of them."""
MANY = {"micro_tokens": 64}
"""For many micro-batches, where otherwise an agent has one."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def cells(seeds: int) -> list[Cell]:
    """Joint actions, agents and turns in every combination, each over all seeds."""
    found = list[Cell]()
    for joint, groups in GROUPS.items():
        for agents, group in groups.items():
            for turns in (1, 2):
                rows = [
                    asyncio.run(compare(seed, joint, agents, group, turns)) for seed in range(seeds)
                ]
                one, many, answers = zip(*rows, strict=True)
                found.append(Cell(joint, agents, turns, max(one), max(many), sum(answers)))
    return found


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
    return Drawn(str(dtype).removeprefix("torch."), answers, learner, same, batch)


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


def measure(seeds: int, games: int) -> Found:
    """All parts."""
    began = time.process_time()
    faults, rest = planted(seeds)
    learning, control = bandits(games)
    return Found(
        seeds=seeds,
        cells=cells(seeds),
        faults=faults,
        rest=rest,
        learning=learning,
        control=control,
        drawn=[draws(dtype, seeds) for dtype in DTYPES],
        seconds=time.process_time() - began,
    )


def main() -> None:
    """Prints the section, and with --write writes it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="of models, for the gradients")
    parser.add_argument("--bandits", type=int, default=30, help="seeds of the bandit")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    logging: Any = untyped
    logging.disable_progress_bar()
    body = report(measure(args.seeds, args.bandits))
    print(body)
    if args.write:
        page.write("gradients", "python -m benchmarks.gradients --write", body)


if __name__ == "__main__":
    main()
