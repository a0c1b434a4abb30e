"""A search over a team's trajectories, in one file: the heart of `orchestry run --backend api`.

    python examples/search_loop.py [--task code_review] [--provider fake] [--problems 2]

A beam keeps the best states of each stage: every agent in turn gives K samples in each of them. The
task scores the leaves, their rewards are backed up the tree, and each agent gets the credit of its
moves. Every paid call is reserved in a ledger first. Answers go into the cache, so that the same
search is paid for once; the journal goes with the script.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import warnings
from pathlib import Path

from orchestry import AgentSpec, Limits, RunConfig, Tools
from orchestry.core.types import Member
from orchestry.models.gateway import open_gateway
from orchestry.models.prices import price_table
from orchestry.models.providers import open_provider
from orchestry.rollout.credit import credits
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Beam
from orchestry.rollout.tree import best_leaf
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Journal
from orchestry.task.registry import load_task

K, WIDTH = 4, 2
"""Samples per agent and state, and states that survive a stage."""
TOKENS = 256


async def search(config: RunConfig, problems: int, journal: Path) -> None:
    """Plays the first train problems, and prints what each came to."""
    task = load_task(config.task)
    provider = open_provider(config.provider, config.seed, os.environ)
    prices = price_table(provider, config)
    async with (
        provider,
        open_sandbox(Limits()) as sandbox,
        open_gateway(
            config, provider, prices, Journal(journal), (), on_warn=warnings.warn
        ) as gateway,
    ):
        rollout = Rollout(
            task=task,
            team={agent.role: member(agent, provider.model) for agent in task.agents},
            policy=gateway,
            rate=task_rater(task, Tools(sandbox=sandbox)),
            schedule=Beam(K, WIDTH),
        )
        for number, problem in enumerate(task.problems("train")[:problems]):
            tree = await rollout.play(problem, seed=config.seed + number)
            best = best_leaf(tree)
            print(f"{problem.id}: reward {best.total:.3f}, the best of {len(tree.leaves)}")
            for one in credits(tree, [best.id], [*rollout.team], {}):
                print(f"  {one.agent}: credit {one.credit:+.3f} [{one.low:+.3f}, {one.high:+.3f}]")
        print(f"${gateway.ledger.spent:.4f} of ${config.budget.usd:g}")


def member(agent: AgentSpec, model: str) -> Member:
    """An agent as the task has it, played by that model."""
    return Member(agent.role, agent.system_prompt, model, TOKENS, temperature=0.8)


def main() -> None:
    """Reads the command line, and searches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", default="code_review")
    parser.add_argument("--provider", default="fake")
    parser.add_argument("--problems", type=int, default=2)
    args = parser.parse_args()
    config = RunConfig.model_validate({"task": args.task, "provider": {"name": args.provider}})
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(search(config, args.problems, Path(folder) / "journal.jsonl"))


if __name__ == "__main__":
    main()
