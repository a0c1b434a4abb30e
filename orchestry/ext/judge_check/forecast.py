"""The dry run of a check of a judge: asks no model.

The candidates are scored in the sandbox as the check would, so that the prompts are the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestry.core.config import RunConfig
from orchestry.core.types import Policy, Tools
from orchestry.engine.estimate import Estimate, foretold
from orchestry.engine.graded import graded_sets
from orchestry.engine.plan import Plan
from orchestry.engine.run import in_own_loop, prepare
from orchestry.engine.worst import Dearest
from orchestry.ext.judge_check.check import QUESTIONS, resolved
from orchestry.rollout.rollout import task_rater
from orchestry.sandbox import open_sandbox
from orchestry.store.summary import NANO


def forecast(
    config: RunConfig,
    problems: int,
    note: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    runs: Sequence[Path] = (),
) -> Estimate:
    """What the check would ask and cost, a problem being an episode; raises ConfigError as the
    check itself would, save for a missing key."""
    plan = prepare(resolved(config, problems), note, environ, need_key=False)
    note(f"scoring the answers of {problems} problems in the sandbox; no model is asked")
    return in_own_loop(_forecast(plan, note, runs))


async def _forecast(plan: Plan, note: Callable[[str], None], runs: Sequence[Path]) -> Estimate:
    config = plan.config
    async with open_sandbox(config.sandbox, allow_unsafe=config.allow_unsafe_code) as sandbox:
        rate = task_rater(plan.task, Tools(sandbox))
        sets = await graded_sets(plan.task, config.seed, config.episodes, rate)

    async def part(policy: Policy) -> dict[str, float]:
        """All of it. An order and its reverse are of one length, so that one stands for both."""
        for each in sets * QUESTIONS:
            await plan.judge(policy).values(each.siblings)
        return {"judge": 1.0}

    dearest = Dearest(plan.backend)
    await part(dearest)
    found = await foretold(plan, part, sum(dearest.nano_usd["judge"]) / NANO, note, runs)
    return found.model_copy(update={"episodes": len(sets)})
