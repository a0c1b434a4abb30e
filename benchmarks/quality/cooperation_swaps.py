"""Why a team earns what it earns: the learned main programmer with the answers of other helpers.

Both agents act at once and see the same problem, so that a helper's recorded answer is as good a
draw of its policy beside one main programmer as beside another. Nothing is drawn anew: the recorded
answers are put together, and scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stats import Rows
from orchestry.core.types import Limits, Problem, Tools
from orchestry.sandbox import open_sandbox
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run
from orchestry.task.base import BaseTask
from orchestry.task.registry import load_task

HELPER, MAIN = "helper", "main"
STUB = "```python\ndef aux(*args):\n    return None\n```"
"""The answer of a helper that does nothing."""
Swaps = Mapping[str, Rows]
"""By helper, the mean reward of each problem."""


def swapped(learned: Run, helper: Run | None, bank: Path) -> Rows:
    """The reward of the learned main programmer with a helper, by problem; None is the stub."""
    task = load_task(learned.config["task"], options={"bank": str(bank)})
    return asyncio.run(_scored(task, learned.episodes, helper))


async def _scored(
    task: BaseTask[Any], episodes: Sequence[EpisodeRecord], helper: Run | None
) -> Rows:
    problems = {one.id: one for one in task.problems("test")}
    others = {one.problem: said(one, HELPER) for one in helper.episodes} if helper else {}
    async with open_sandbox(Limits()) as sandbox:
        tools = Tools(sandbox=sandbox)
        jobs = (
            _mean(
                task,
                problems[one.problem],
                said(one, MAIN),
                others.get(one.problem, [STUB]),
                tools,
            )
            for one in episodes
        )
        rewards = await asyncio.gather(*jobs)
    return {one.problem: [reward] for one, reward in zip(episodes, rewards, strict=True)}


async def _mean(
    task: BaseTask[Any],
    problem: Problem,
    mains: Sequence[str],
    helpers: Sequence[str],
    tools: Tools,
) -> float:
    """The mean reward of the main programmer's answers, each with the helper's of that number."""
    total = 0.0
    for number, answer in enumerate(mains):
        moves = {HELPER: helpers[number % len(helpers)], MAIN: answer}
        score = await task.evaluate(task.step(task.reset(problem, 0), moves), tools)
        total += score.total
    return total / len(mains)


def said(episode: EpisodeRecord, agent: str) -> list[str]:
    """An agent's answers in an episode's trajectories, one each."""
    return [
        turn.completion.text
        for leaf in episode.leaves()
        for turn in leaf.turns
        if turn.agent == agent
    ]
