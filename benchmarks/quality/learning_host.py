"""Plays the team for an optimiser in another process, and counts what it asks of the model.

Teams are played, rewarded and paid for by the run's own parts (gateway, rollout, sandbox), as the
dev trials of our own learner are: one chain a problem, without search. All plays of a problem go
under one seed, so that candidates are compared on common draws, and what was asked once is free.
The journal holds every answer and score: an optimiser that was cut off is started again and gets
the same ones, which brings it to where it was at no cost.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.page import ROOT
from orchestry.backends.api.backend import ApiBackend
from orchestry.backends.base import Opening
from orchestry.core.concurrency import together
from orchestry.core.config import RunConfig
from orchestry.core.seeds import derive
from orchestry.core.types import (
    Completion,
    Frozen,
    Message,
    Policy,
    Problem,
    Rate,
    Request,
    Tools,
    sample_of,
)
from orchestry.engine.run import prepare
from orchestry.engine.scores import Verdicts
from orchestry.models.request_key import request_digest
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Answered, Event, Opened, Stopped
from orchestry.store.journal import read as read_journal
from orchestry.store.records import UsageRecord
from orchestry.store.run import Store
from orchestry.task.base import BaseTask

MAX_LINE = 1 << 24
"""Bytes of one message."""
RESULT = "result.json"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""A second start has to ask the same; and nothing is fetched."""


class Kept(Frozen):
    """One candidate in the optimiser's pool: system prompts by role, mean reward on dev."""

    prompts: Mapping[str, str]
    dev: float


class Optimised(Frozen):
    """What an optimiser came to; the first of `kept` is what it started from."""

    kept: tuple[Kept, ...]
    best: int
    asked: int
    """The most calls that it might make."""
    usage: tuple[UsageRecord, ...]
    refused: int
    """Prompts that the model's context could not hold, answered with nothing."""
    seconds: float

    @property
    def winner(self) -> Kept:
        return self.kept[self.best]


def optimise(config: RunConfig, folder: Path, calls: int, command: Sequence[str]) -> Optimised:
    """Runs the optimiser `command` in a folder of its own, or reads what it came to before."""
    result = folder / RESULT
    if result.exists():
        return Optimised.model_validate_json(result.read_bytes())
    return asyncio.run(_optimise(config, folder, calls, command))


async def _optimise(
    config: RunConfig, folder: Path, calls: int, command: Sequence[str]
) -> Optimised:
    plan = prepare(config, _note)
    backend, task = plan.backend, plan.task
    assert isinstance(backend, ApiBackend), "whose prompts are optimised"
    with Store(folder) as store:
        store.write("config.yaml", plan.config.to_yaml())
        unsafe = plan.config.allow_unsafe_code
        async with open_sandbox(plan.config.sandbox, allow_unsafe=unsafe) as sandbox:
            tools = Tools(sandbox)
            rate = Verdicts(task_rater(task, tools), store.journal, store.events)
            async with backend.open(Opening(store, task, rate, tools, _note)):
                name, model = backend.provider.name, backend.provider.model
                store.journal.append(Opened(at=time.time(), provider=name, model=model))
                policy = Counted(backend.gateway, calls)
                done = await Host(backend, task, rate, plan.config, policy).serve(command)
                store.journal.append(Stopped(reason="done", at=time.time()))
        events = list(read_journal(store.journal.path))
        found = Optimised(
            **done,
            asked=calls,
            usage=backend.gateway.usage(),
            refused=sum(isinstance(e, Answered) and e.source == "refused" for e in events),
            seconds=wall_s(events),
        )
        store.write(RESULT, found.model_dump_json(indent=2) + "\n")
    return found


def wall_s(events: Iterable[Event]) -> float:
    """Seconds from the opening to the last event of each process, all processes together."""
    total, began, last = 0.0, 0.0, 0.0
    for event in events:
        if isinstance(event, Opened):
            total, began, last = total + last - began, event.at, event.at
        last = getattr(event, "at", last)
    return total + last - began


def calls_of(usage: Sequence[UsageRecord]) -> int:
    """Answers asked for: those that an earlier run left in the cache count as well."""
    return sum(row.calls + row.cache_hits for row in usage)


def _note(text: str) -> None:
    print(text, file=sys.stderr)


class OutOfCalls(Exception):
    """The optimiser has no calls left."""


@dataclass(slots=True)
class Counted:
    """A policy that answers at most `most` different requests; what was asked once is free.

    Answers of an earlier process count as well, so that an optimiser that is started again comes to
    its end where it came to it before.
    """

    policy: Policy
    most: int
    asked: set[str] = field(default_factory=set)

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy; raises OutOfCalls, and asks nothing, where not all of them fit."""
        each = (sample_of(request, j) for request in requests for j in range(n))
        asked = self.asked.union(map(request_digest, each))
        if len(asked) > self.most:
            raise OutOfCalls
        self.asked = asked
        return await self.policy.sample(requests, n)


@dataclass(slots=True)
class Host:
    """Answers an optimiser's asks; see benchmarks.peers.learning_line for the messages."""

    backend: ApiBackend
    task: BaseTask[Any]
    rate: Rate
    config: RunConfig
    policy: Counted
    reflections: int = 0

    async def serve(self, command: Sequence[str]) -> dict[str, Any]:
        """Starts the optimiser, gives it its order, answers it until it is done.

        Raises RuntimeError with its last words where it fails.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE,
            cwd=ROOT,
            env=_environment(),
        )
        assert process.stdin is not None
        assert process.stderr is not None
        words = asyncio.create_task(process.stderr.read())
        try:
            _write(process.stdin, self._order())
            done = await self._talk(process)
            if done is None:
                said = (await words).decode("utf-8", "replace").strip()[-2000:]
                raise RuntimeError(f"the optimiser failed: {said}")
            return done
        finally:
            if process.returncode is None:
                process.stdin.close()  # which ends it, if it has not ended already
            await asyncio.gather(process.wait(), words)

    async def _talk(self, process: Process) -> dict[str, Any] | None:
        """Answers until the last word, and returns it; None where the process ended without one.
        Raises the first error of an answer."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.TaskGroup() as group:
                while line := await process.stdout.readline():
                    ask = json.loads(line)
                    if ask.pop("ask") == "done":
                        return dict(ask)
                    group.create_task(self._reply(ask, process.stdin))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return None

    def _order(self) -> dict[str, Any]:
        team = self.backend.team(self.task).values()
        return {
            "seed": self.config.seed,
            "calls": self.policy.most,
            "prompts": {member.role: member.system_prompt for member in team},
            "train": {problem.id: problem.prompt for problem in self.task.problems("train")},
            "dev": {problem.id: problem.prompt for problem in self.task.problems("dev")},
        }

    async def _reply(self, ask: Mapping[str, Any], pipe: asyncio.StreamWriter) -> None:
        if "messages" in ask:
            said: dict[str, Any] = {"text": await self._reflect(ask["messages"])}
        else:
            known = {p.id: p for split in ("train", "dev") for p in self.task.problems(split)}
            problems = [known[id] for id in ask["problems"]]
            said = {"plays": await together(self._play(ask["prompts"], one) for one in problems)}
        _write(pipe, {"number": ask["number"], **said, "calls": len(self.policy.asked)})

    async def _play(self, prompts: Mapping[str, str], problem: Problem) -> dict[str, Any] | None:
        """One chain of the team with these system prompts; None where it is not paid for, or where
        one of its calls failed for good."""
        members = self.backend.team(self.task)
        rollout = Rollout(
            task=self.task,
            team={r: replace(member, system_prompt=prompts[r]) for r, member in members.items()},
            policy=self.policy,
            rate=self.rate,
            schedule=Chains(1),
            purpose="trial",
        )
        try:
            tree = await rollout.play(problem, derive(self.config.seed, "common", problem.id))
        except OutOfCalls:
            return None
        if not tree.leaves:
            return None
        leaf = tree.leaves[0].trajectory
        assert leaf.score is not None
        turns = [
            {
                "agent": turn.agent,
                "saw": turn.messages[-1].content,
                "answered": turn.completion.text,
            }
            for turn in leaf.turns
        ]
        return {"reward": leaf.score.total, "feedback": leaf.score.feedback, "turns": turns}

    async def _reflect(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A reflection, with as many tokens as our own distillation may take; '' where it is not
        paid for."""
        request = Request(
            agent="reflection",
            purpose="distil",
            model=self.backend.provider.model,
            messages=tuple(Message.model_validate(message) for message in messages),
            max_tokens=self.config.judge.max_tokens,
            seed=derive(self.config.seed, "reflect", self.reflections),
        )
        self.reflections += 1
        try:
            ((answer,),) = await self.policy.sample([request], 1)
        except OutOfCalls:
            return ""
        return answer.text


def _write(pipe: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    pipe.write(json.dumps(message).encode() + b"\n")


def _environment() -> dict[str, str]:
    """That of this process, but no keys: an optimiser asks no server."""
    own = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return {**own, **ENVIRONMENT}
