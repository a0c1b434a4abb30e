"""The most that a run can cost: every call at its longest, asked and billed as often as can be.

That is known only where the answers decide neither how many calls are made nor who makes them, and
where every prompt shows them whole: of a TeamTask whose agents speak in order and observe all that
was said, in a run that learns nothing. Elsewhere nothing but the budget is a maximum.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import floor
from typing import Any

from orchestry.backends.base import Backend
from orchestry.core.types import MAX_CHARS, Completion, Request, sample_of
from orchestry.engine.plan import Plan
from orchestry.engine.rehearsal import drawn_scores, learns_every, rollout_of
from orchestry.models.prices import MTOK
from orchestry.rollout.schedule import Beam
from orchestry.store.summary import NANO, nano
from orchestry.task.base import BaseTask, TeamTask

WALKED = 3000
"""Most calls that are walked; a wider run has no maximum but its budget."""
LONGEST_TOKEN = 16
"""Bytes of text that a token of an answer brings into later prompts at most, over an answer.
Longer tokens exist (rows of spaces), but they are read back as few tokens as they were written."""
WIDE = "\U00010348"
"""A character of four bytes: texts are cut by characters and billed, at worst, by bytes."""
TURNS = ("reset", "to_act", "step", "told", "observe")
"""What a TeamTask must not have changed for its turns and prompts to be known. An `observe` of its
own may show a page that an answer names, and no made-up answer names the longest one."""
REASON = 1300
"""Bytes of the fault that a repair names, at most: 300 characters and the candidate's label."""


class Dearest:
    """A policy whose every answer is as long and as dear as it can be, and never a verdict."""

    def __init__(self, backend: Backend) -> None:
        self.nano_usd = defaultdict[str, list[int]](list)
        """Of each call, by purpose."""
        self._backend = backend

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy."""
        return [[self._answer(sample_of(request, j)) for j in range(n)] for request in requests]

    def _answer(self, request: Request) -> Completion:
        provider, prices = self._backend.asked(request)
        repair = any(message.role == "assistant" for message in request.messages)
        bound = provider.input_bound(request) + REASON * repair
        shared = request.response_schema is None
        once = prices.worst(request.model, bound, request.max_tokens, shared)
        paid = self.nano_usd[request.purpose]
        paid.append(nano(once) * self._backend.config.retry.attempts)
        text = WIDE * min(request.max_tokens * LONGEST_TOKEN // len(WIDE.encode()), MAX_CHARS)
        return Completion(text=f"{len(paid)} {text}", model=request.model)


async def most(plan: Plan) -> float | None:
    """Dollars that no run of the plan passes; None where that is not known."""
    if _free(plan):
        return 0.0
    count = min(len(plan.problems), plan.config.episodes)
    if not _fixed_turns(plan.task) or learns_every(plan) or plan.calls * count > WALKED:
        return None
    each = [await _episode(plan, n) for n in range(count)]
    passes = -(-plan.config.episodes // count)
    verdicts = [judging for _, judging in each]
    judged = min(passes * sum(verdicts), plan.judged_episodes * max(verdicts))
    return (passes * sum(plays for plays, _ in each) + judged) / NANO


def _free(plan: Plan) -> bool:
    """Whether nobody whom the run may ask costs anything."""
    backend = plan.backend
    asked = [
        (backend.answering(role).prices, one.model) for role, one in backend.team(plan.task).items()
    ]
    asked += [(one.prices, one.provider.model) for one in (backend.bench, backend.author)]
    return not any(prices.worst(model, MTOK, MTOK, shared=True) for prices, model in asked)


def _fixed_turns(task: BaseTask[Any]) -> bool:
    """Whether the agents speak in order whatever they say, each sees all of it, and none calls
    tools."""
    if any(spec.tools for spec in task.agents):
        return False
    same = [getattr(type(task), name) is getattr(TeamTask, name, None) for name in TURNS]
    return isinstance(task, TeamTask) and all(same)


async def _episode(plan: Plan, episode: int) -> tuple[int, int]:
    """Nano-dollars of one episode: of its plays, and of the judge, if it is asked there.

    No two scores are equal, so that each stage keeps the states from which the next one draws most,
    and the feedback is as long as a judge is shown. Replays ask the same agents in states of the
    same kind, so that none of their calls is dearer than all of these. A set that is judged has two
    siblings at least, and each verdict may need a repair.
    """
    config, policy = plan.config, Dearest(plan.backend)
    rate = drawn_scores(random.Random(0), feedback=WIDE * (config.judge.max_chars + 1))
    rollout = rollout_of(plan, policy, rate, episode, when="always")
    breadth = rollout.schedule.breadth
    if isinstance(rollout.schedule, Beam):  # though a task may take all these answers for the same
        rollout = replace(rollout, schedule=replace(rollout.schedule, collapse=False))
    tree = await rollout.play(plan.problem(episode), plan.seed(episode))
    acts, verdicts = policy.nano_usd["act"], policy.nano_usd["judge"]
    share = (config.credit.share or 0.0) if config.credit.method == "replay" else 0.0
    stages = max(leaf.id.stage for leaf in tree.leaves)
    asked = 2 * config.judge.repeats * stages * (breadth // 2)
    plays = sum(acts) + floor(share * len(acts)) * max(acts)
    return plays, asked * max(verdicts, default=0)
