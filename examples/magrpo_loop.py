"""MAGRPO in one file: the heart of `orchestry run --backend local` (arXiv 2508.04652).

    python examples/magrpo_loop.py [--model embedded] [--task tldr] [--updates 4]

One frozen base, a LoRA adapter per agent. In each update the team plays G independent trajectories
of a few train problems. A move's return is the sum of what its turn and later turns earned; its
advantage is that return minus the mean of its group (equation 1), and each agent's adapter takes
one step along the mean of advantage times log-probability (equation 2).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from itertools import cycle, islice
from statistics import fmean
from typing import Any

from orchestry import Limits, Tools
from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.batch import Batch, gather, packed
from orchestry.backends.local.logprobs import completion_logprobs, micro_batches
from orchestry.backends.local.magrpo import policy_loss
from orchestry.backends.local.model import Base, load_base
from orchestry.backends.local.optimizer import TeamOptimizer
from orchestry.backends.local.sampler import Drawn, Prompt, Sampler
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Member, Problem, Request, Tokens, Tree
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task

G, PROBLEMS = 4, 4
"""Trajectories per problem, and problems per update."""
RATE, TEMPERATURE, TOKENS = 2e-4, 0.8, 72
MICRO_TOKENS = 4096
"""Of one forward pass; more passes give the same gradient."""


class Weights:
    """A base and its adapters, as a Policy."""

    def __init__(self, base: Base, roles: Sequence[str], seed: int) -> None:
        self.base, self.roles = base, tuple(roles)
        self.adapters = Adapters(base, roles, seed=seed)
        self.sampler = Sampler(base, self.adapters)

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` answers per request, all in one batch."""
        prompts = [self._prompt(request, n) for request in requests]
        drawn = self.sampler.draw(prompts, n)
        return [
            [self._completion(prompt, one) for one in answers]
            for prompt, answers in zip(prompts, drawn, strict=True)
        ]

    def _prompt(self, request: Request, n: int) -> Prompt:
        return Prompt(
            agent_index=self.roles.index(request.agent),
            prompt_ids=self.base.render(request.messages, request.max_tokens),
            max_tokens=request.max_tokens,
            temperature=TEMPERATURE,
            top_p=1.0,
            stop=request.stop,
            seeds=tuple(derive(request.seed, index) for index in range(n)),
        )

    def _completion(self, prompt: Prompt, drawn: Drawn) -> Completion:
        tokens = Tokens(prompt_ids=prompt.prompt_ids, ids=drawn.ids, logprobs=drawn.logprobs)
        return Completion(text=drawn.text, model=self.base.name, stop=drawn.stop, tokens=tokens)

    def learn(self, batch: Batch, optimizer: TeamOptimizer) -> None:
        """One step per agent; an agent whose groups are all equal stays as it is."""
        for index, role in enumerate(self.roles):
            own = [one for one in batch.samples if one.agent == role]
            groups, samples = packed(index, own)
            advantages = iter([one.advantage for one in samples])
            for micro in micro_batches(groups, MICRO_TOKENS):
                logprobs = completion_logprobs(self.base, self.adapters, micro, TEMPERATURE)
                mine = [next(advantages) for _ in logprobs]
                optimizer.backward(policy_loss(logprobs, mine, actions=batch.actions[role]))
        if batch.samples:
            optimizer.step()


async def train(model: str, name: str, updates: int, seed: int = 0) -> None:
    """Prints each update's mean reward and the share of moves that taught something."""
    task = load_task(name)
    weights = Weights(load_base(model, device="cpu"), [one.role for one in task.agents], seed)
    own = {one: weights.adapters.parameters(i) for i, one in enumerate(weights.roles)}
    optimizer = TeamOptimizer(own, rate=RATE, updates=updates)
    problems = cycle(task.problems("train"))
    async with open_sandbox(Limits()) as sandbox:
        rollout: Rollout[Any] = Rollout(
            task=task,
            team={
                one.role: Member(one.role, one.system_prompt, model, TOKENS, TEMPERATURE)
                for one in task.agents
            },
            policy=weights,
            rate=task_rater(task, Tools(sandbox=sandbox)),
            schedule=Chains(G),
        )
        for update in range(updates):
            trees = await play(rollout, [*islice(problems, PROBLEMS)], derive(seed, "play", update))
            batch = gather(trees)
            weights.learn(batch, optimizer)
            reward = fmean(leaf.total for tree in trees for leaf in tree.leaves)
            learned = 1 - batch.skipped / sum(batch.actions.values())
            print(f"update {update + 1}: reward {reward:.3f}, {learned:.0%} of moves taught")


async def play(rollout: Rollout[Any], problems: Sequence[Problem], seed: int) -> list[Tree[Any]]:
    """G trajectories of each problem."""
    return [await rollout.play(one, derive(seed, one.id)) for one in problems]


def main() -> None:
    """Reads the command line, and trains."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--task", default="tldr")
    parser.add_argument("--updates", type=int, default=4)
    args = parser.parse_args()
    asyncio.run(train(args.model, args.task, args.updates))


if __name__ == "__main__":
    main()
