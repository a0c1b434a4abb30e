"""The most that a run can cost: every call at its longest, asked and billed as often as can be.

That is known only where the answers decide neither how many calls are made nor who makes them: of a
TeamTask whose agents speak in order, in a run that learns nothing. Elsewhere nothing but the budget
is a maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import floor
from typing import Any

from orchestry.backends.base import Backend
from orchestry.core.types import MAX_CHARS, Completion, Rate, Request, Score, Trajectory
from orchestry.engine.plan import Plan
from orchestry.engine.rehearsal import (
    FENCE,
    rollout_of,
    score_of,
    updates_of,
)
from orchestry.judge.judge import PURPOSE as JUDGES
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
SHAPES = ("{}", FENCE)
"""Forms of an answer. Tasks that show the next agent only the code of an answer would hide all of
one without a fence; others may hide what is fenced."""
TURNS = ("reset", "to_act", "step", "told")
"""What a TeamTask must not have changed for its turns to be known."""
REASON = 1300
"""Bytes of the fault that a repair names, at most: 300 characters and the candidate's label."""


class Dearest:
    """A policy whose every answer is as long and as dear as it can be, and never a verdict."""

    def __init__(self, backend: Backend, shape: str = SHAPES[0]) -> None:
        self.nano_usd = self.calls = self.repairs = self.sent = 0
        """`sent` counts the bytes of the questions, repairs aside."""
        self.dearest = 0
        """Nano-dollars of the dearest of the calls."""
        self._backend, self._shape = backend, shape

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[self._answer(request, index) for index in range(n)] for request in requests]

    def _answer(self, request: Request, index: int) -> Completion:
        provider, prices = self._backend.asked(request)
        sample = request.model_copy(update={"sample_index": index})  # may lengthen the prompt
        repair = any(message.role == "assistant" for message in request.messages)
        bound = provider.input_bound(sample) + REASON * repair
        shared = request.response_schema is None
        once = prices.worst(request.model, bound, request.max_tokens, shared)
        usd = nano(once) * self._backend.config.retry.attempts
        self.nano_usd += usd
        self.dearest = max(self.dearest, usd)
        self.repairs += repair
        self.calls += not repair
        self.sent += 0 if repair else sum(len(m.content.encode()) for m in request.messages)
        text = WIDE * min(request.max_tokens * LONGEST_TOKEN // len(WIDE.encode()), MAX_CHARS)
        return Completion(text=self._shape.format(f"{self.calls} {text}"), model=request.model)


async def most(plan: Plan) -> float | None:
    """Dollars that no run of the plan passes; None where that is not known."""
    if free(plan.backend, plan.task):
        return 0.0
    problems = plan.problems[: plan.config.episodes]
    if not fixed_turns(plan.task) or updates_of(plan):
        return None
    if plan.calls * len(problems) > WALKED:
        return None
    each = [await _episode(plan, episode) for episode in range(len(problems))]
    return sum(each) * -(-plan.config.episodes // len(problems)) / NANO


def free(backend: Backend, task: BaseTask[Any]) -> bool:
    """Whether nobody whom the run may ask costs anything."""
    whom = [(member.role, "act", member.model) for member in backend.team(task).values()]
    for agent, purpose, model in (*whom, (JUDGES, JUDGES, backend.bench.provider.model)):
        request = Request(agent=agent, purpose=purpose, model=model, messages=(), max_tokens=1)
        if backend.asked(request)[1].worst(model, MTOK, MTOK, shared=True):
            return False
    return True


def fixed_turns(task: BaseTask[Any]) -> bool:
    """Whether the agents speak in order for a number of rounds, whatever they say."""
    kind, turns = type(task), TeamTask
    same = [getattr(kind, name) is getattr(turns, name, None) for name in TURNS]
    return isinstance(task, TeamTask) and all(same)


async def _episode(plan: Plan, episode: int) -> int:
    """Nano-dollars of one episode, in the form of answer that makes it dearest.

    Replays ask the same agents in states of the same kind, so that none of their calls is dearer
    than all of these. A set that is judged has two siblings at least, and each verdict may need a
    repair.
    """
    found, config = list[int](), plan.config
    share = (config.credit.share or 0.0) if config.credit.method == "replay" else 0.0
    way = plan.schedule(episode)
    if isinstance(way, Beam):
        way = replace(way, collapse=False)  # though a task may take all these answers for the same
    for shape in SHAPES:
        agents, critic = Dearest(plan.backend, shape), Dearest(plan.backend)
        rollout = rollout_of(plan, agents, _different(config.judge.max_chars + 1), way)
        if plan.backend.judges:
            rollout = replace(rollout, judge=plan.judge(critic, when="always"))
        tree = await rollout.play(plan.problem(episode), plan.seed(episode))
        replays = floor(share * agents.calls)
        stages = max(leaf.id.stage for leaf in tree.leaves)
        verdicts = 2 * config.judge.repeats * stages * (way.breadth // 2)
        found.append(agents.nano_usd + replays * agents.dearest + verdicts * critic.dearest)
    return max(found)


def _different(chars: int) -> Rate:
    """No two scores are equal, so that each stage keeps the states from which the next one draws
    most; the feedback is as long as a judge is shown."""

    async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        return [score_of(place / len(nodes), WIDE * chars) for place in range(1, len(nodes) + 1)]

    return rate
