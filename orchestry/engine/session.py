"""One process's part of a run: plays the episodes that are not committed yet, in order.

Where the backend learns, episodes come in blocks with an update after each; all episodes of a
block are played with what was learned before it, however they overlap.

A failure never throws away what was paid for: calls in flight finish into the journal, finished
episodes are committed, and the run directory is left ready for `orchestry resume`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from orchestry.backends.base import Backend
from orchestry.core.concurrency import heeding
from orchestry.core.config import RunConfig
from orchestry.core.errors import (
    BudgetExceeded,
    Interrupted,
    OrchestryError,
    StoreError,
    TaskFault,
    fault,
)
from orchestry.core.seeds import derive, shuffled
from orchestry.core.types import Problem
from orchestry.engine.scores import Verdicts
from orchestry.models.ledger import Ledger
from orchestry.rollout.replay import give_credit
from orchestry.rollout.schedule import schedule
from orchestry.rollout.tree import episode_record
from orchestry.store.journal import Learned, ratings
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Store
from orchestry.task.base import BaseTask
from orchestry.task.guard import count_stages

STAGES_A_PLACE = 4


class Observer(Protocol):
    """Who watches a run; every call is cheap and none may fail."""

    def note(self, text: str) -> None:
        """Something the user should know, in one line."""
        ...

    def started(self, folder: Path, plan: Plan, done: int) -> None:
        """All is open; `done` episodes were committed by earlier processes."""
        ...

    def committed(self, record: EpisodeRecord) -> None:
        """An episode is part of the run."""
        ...


class Silent:
    """Nobody watches."""

    def note(self, text: str) -> None: ...

    def started(self, folder: Path, plan: Plan, done: int) -> None: ...

    def committed(self, record: EpisodeRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that was checked: its task loads, its key, prices and agents are known."""

    config: RunConfig
    task: BaseTask[Any]
    problems: Sequence[Problem]
    backend: Backend
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the task's files."""

    def problem(self, episode: int) -> Problem:
        """Every problem once, in seeded order, before any comes again in another order."""
        epoch, place = divmod(episode, len(self.problems))
        order = shuffled(len(self.problems), self.config.seed, "epoch", epoch)
        return self.problems[order[place]]

    @property
    def episodes_in_flight(self) -> int:
        """As the config says, else enough that calls are always waiting for a free place.

        An episode pauses between its stages until the slowest call is answered; four stages' worth
        of calls a place make up for that (measured in benchmarks/peers/overhead.py), and no more,
        since episodes that are begun and not finished are worth nothing yet.
        """
        search = self.config.search
        if search.episodes_in_flight is not None:
            return search.episodes_in_flight
        asked = {self.backend.answering(spec.role).provider for spec in self.task.agents}
        slots = max(provider.slots or search.concurrency for provider in asked)
        places = min(search.concurrency, slots)
        breadth = schedule(search, self.task, self.problems[0]).breadth
        return min(places, max(2, -(-STAGES_A_PLACE * places // breadth)))

    @property
    def calls(self) -> int:
        """Calls that an episode makes at most to play, counted on the first problem."""
        problem = self.problems[0]
        breadth = schedule(self.config.search, self.task, problem).breadth
        acting = len(self.task.to_act(self.task.reset(problem, 0)))
        return breadth * acting * count_stages(self.task, problem)

    def foresee(self, ledger: Ledger, finished: int) -> None:
        """Tells the ledger what an episode may take, before any of this process has finished."""
        backend = self.backend
        usd = max(
            backend.answering(role).prices.worst(member.model, 0, member.max_tokens, shared=False)
            for role, member in backend.team(self.task).items()
        )
        ledger.foresee(self.calls, usd, finished)


class Session:
    """Plays a plan into a store."""

    def __init__(self, plan: Plan, store: Store, watch: Observer, rate: Verdicts) -> None:
        self.plan, self.store, self.watch, self.rate = plan, store, watch, rate
        self.failure: OrchestryError | None = None
        self._waiting: dict[int, EpisodeRecord] = {}
        self._next = 0
        self._asked_to_stop = False
        self._workers: list[asyncio.Task[None]] = []

    async def play(self) -> OrchestryError | None:
        """Plays all that is left; returns what stopped it, or None."""
        self.plan.foresee(self._ledger, len(self.store.episodes))
        with heeding(self._interrupt):
            await self._run([self._evaluate()])
            for update, block in enumerate(self._blocks()):
                await self._play(block)
                self._settle(block)
                if self.failure:
                    break
                if len(block) == self.plan.backend.every and update == self.plan.backend.updates:
                    await self._run([self._learn(update + 1, block)])
                    await self._run([self._evaluate()])
        return self.failure

    def _blocks(self) -> Iterator[range]:
        """The episodes between two updates, all at once where there are none."""
        asked = self.plan.config.episodes
        size = self.plan.backend.every or asked
        return (range(first, min(first + size, asked)) for first in range(0, asked, size))

    async def _play(self, block: range) -> None:
        queue = (number for number in block if number not in self.store.episodes)
        places = min(len(block), self.plan.episodes_in_flight)
        await self._run([self._work(queue) for _ in range(places)])

    async def _run(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            self._workers = [group.create_task(each) for each in work]

    async def _learn(self, number: int, block: range) -> None:
        """One update of the backend, from the episodes of its block."""
        backend = self.plan.backend
        which = f"episodes {block[0]} to {block[-1]}" if len(block) > 1 else f"episode {block[0]}"
        self.watch.note(f"update {number}: learning from {which}")
        backend.gateway.pulse.doing = f"update {number}"
        try:
            episodes, said = self.store.episodes, ratings(self.store.events)
            rated = sorted({number for number, _ in said} & episodes.keys() - set(block))
            update = await backend.update(
                [episodes[number] for number in block if not episodes[number].failed],
                said,
                [episodes[n] for n in rated],
            )
            learned = Learned(update=number, state=dict(update.state), at=time.time())
            self.store.learned(learned)
            for name, text in update.files.items():
                self.store.write(name, text)
            for note in update.notes:
                self.watch.note(note)
        except Exception as error:
            self._fail(error if isinstance(error, OrchestryError) else fault(error))

    async def _evaluate(self) -> None:
        """What the team earns on dev as it stands, where the backend says that this is due."""
        if self.failure:
            return
        try:
            found = await self.plan.backend.evaluate()
            if found is not None:
                self.store.evaluated(found.event)
                self.watch.note(found.note)
        except Exception as error:
            self._fail(error if isinstance(error, OrchestryError) else fault(error))

    async def _work(self, queue: Iterator[int]) -> None:
        for episode in queue:
            if self.failure:
                return
            try:
                async with self._claim(episode):
                    if self.failure:  # meanwhile
                        return
                    self._waiting[episode] = await self._episode(episode)
                self._commit(self._in_order())
            except Exception as error:
                self._fail(error if isinstance(error, OrchestryError) else fault(error))
                return

    @property
    def _ledger(self) -> Ledger:
        return self.plan.backend.gateway.ledger

    def _claim(self, episode: int) -> AbstractAsyncContextManager[None]:
        """Waits until what is left of the budget covers one more episode."""
        return nullcontext() if self.plan.backend.in_step else self._ledger.episode(episode)

    async def _episode(self, episode: int) -> EpisodeRecord:
        plan, problem = self.plan, self.plan.problem(episode)
        way = schedule(plan.config.search, plan.task, problem)
        rollout = plan.backend.rollout(plan.task, self.rate, way, episode)
        tree = await rollout.play(problem, derive(plan.config.seed, "episode", episode))
        if not tree.leaves:
            return episode_record(tree, episode)
        if not (self.store.episodes or self._waiting):  # the first one to end
            self.rate.check(2)  # of one answer alone nothing is known
        credited = await give_credit(rollout, tree, plan.config.credit)
        return episode_record(tree, episode, credited.records, credited.calls)

    def _in_order(self) -> list[int]:
        """Finished episodes with no unfinished one before them, so that files grow in order.

        One that failed waits until a later call is answered, or all others are done.
        """
        ready = list[int]()
        while self._next in self.store.episodes or self._next in self._waiting:
            if self._next in self._waiting:
                if self._doubtful(self._next):
                    break
                ready.append(self._next)
            self._next += 1
        return ready

    def _doubtful(self, episode: int) -> bool:
        """Whether an episode failed for what may be a setting's fault: then it is not final."""
        return bool(self._waiting[episode].failed) and self.plan.backend.gateway.in_doubt

    def _settle(self, block: range) -> None:
        """Commits what is whole, though an earlier episode was cut off, at the end of a block."""
        refused = None if self.failure else self.plan.backend.gateway.verdict()
        if refused is not None:
            self._fail(refused)
        try:
            whole = sorted(self._waiting)
            self._commit([n for n in whole if not (self.failure and self._doubtful(n))])
            if self.failure is None:
                self.rate.check(1)
                self._check_whole(block)
        except (StoreError, TaskFault) as error:
            self._fail(error)

    def _check_whole(self, block: range) -> None:
        """A task that cancels the work it is part of takes an episode away without a word."""
        if lost := [number for number in block if number not in self.store.episodes]:
            self._fail(
                OrchestryError(
                    f"{len(lost)} episodes of the block ended without a result (episode {lost[0]} "
                    "first): the task cancelled the work that it is part of; mend it, then "
                    f"`orchestry resume {self.store.folder} --accept-changes`"
                )
            )

    def _commit(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            record = self._waiting.pop(number)
            self.store.commit(record, time.time())
            self.watch.committed(record)

    def _fail(self, error: OrchestryError) -> None:
        """Keeps the first failure (a real one before a stop at the cap), and starts no more.

        At the cap the other episodes may still fit; after any other failure new calls are refused.
        """
        if self.failure is None or isinstance(self.failure, BudgetExceeded):
            self.failure = error
        if not isinstance(error, BudgetExceeded):
            self.plan.backend.gateway.close_door(str(error))

    def _interrupt(self) -> None:
        """First time: paid calls in flight may finish. Second time: they are given up."""
        if self._asked_to_stop:
            self._give_up()
            return
        self._asked_to_stop = True
        paid = self.plan.backend.gateway.paid_in_flight
        wait = f"{paid} paid calls in flight may finish; press Ctrl-C again to give them up"
        self.watch.note(f"stopping: {wait}" if paid else "stopping")
        self._fail(Interrupted(f"interrupted: `orchestry resume {self.store.folder}` goes on"))
        if not paid and not self.plan.backend.in_step:  # whose threads stop of themselves
            self._give_up()

    def _give_up(self) -> None:
        for worker in self._workers:
            worker.cancel()
