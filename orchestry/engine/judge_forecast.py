"""The dry run of a check: its calls, and the most that they can cost. Asks no model.

The candidates are scored in the sandbox as the check would, so that the prompts are the real ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from orchestry.core.config import RunConfig
from orchestry.core.types import Frozen, Tools
from orchestry.engine.graded import GradedSet, graded_sets
from orchestry.engine.judge_check import QUESTIONS, resolved
from orchestry.engine.plan import Plan
from orchestry.engine.rehearsal import BYTES_PER_TOKEN
from orchestry.engine.run import prepare
from orchestry.engine.worst import Dearest
from orchestry.rollout.rollout import task_rater
from orchestry.sandbox import open_sandbox
from orchestry.store.summary import NANO


class Forecast(Frozen):
    """What `--dry-run` prints."""

    task: str
    provider: str
    model: str
    problems: int
    calls: int
    """If every verdict can be read."""
    most_calls: int
    """If every verdict must be asked for once more."""
    input_tokens: int
    """Of `calls`, by a rule of thumb."""
    worst_usd: float
    """Every answer at its longest, every verdict repaired, every retry billed; at most the
    budget."""
    budget_usd: float | None


def forecast(
    config: RunConfig,
    problems: int,
    note: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Forecast:
    """What the check would ask and cost; raises ConfigError as the check itself would, save for a
    missing key."""
    plan = prepare(resolved(config, problems), note, environ, need_key=False)
    note(f"scoring the answers of {problems} problems in the sandbox; no model is asked")
    policy = asyncio.run(_asked(plan))
    worst, cap = policy.nano_usd / NANO, plan.config.budget.usd
    return Forecast(
        task=plan.config.task,
        provider=plan.backend.provider.name,
        model=plan.backend.provider.model,
        problems=policy.calls // QUESTIONS,
        calls=policy.calls,
        most_calls=policy.calls + policy.repairs,
        input_tokens=round(policy.sent / BYTES_PER_TOKEN),
        worst_usd=worst if cap is None else min(worst, cap),
        budget_usd=cap,
    )


async def _asked(plan: Plan) -> Dearest:
    policy = Dearest(plan.backend)
    unsafe = plan.config.allow_unsafe_code
    async with open_sandbox(plan.config.sandbox, allow_unsafe=unsafe) as sandbox:
        rate = task_rater(plan.task, Tools(sandbox))
        sets = await graded_sets(plan.task, plan.config.seed, plan.config.episodes, rate)
    for each in sets:
        await _ask_all(plan, policy, each)
    return policy


async def _ask_all(plan: Plan, policy: Dearest, each: GradedSet) -> None:
    """An order and its reverse are of one length, so that one question stands for all."""
    for _ in range(QUESTIONS):
        await plan.judge(policy).values(each.siblings)
